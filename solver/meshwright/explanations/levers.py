"""Levers: the switches of a framework, each with what it gains in a job.

A framework lists those that it offers (`Framework.levers`). Where a plan fits, a lever
is priced on it; where none does, it is a repair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from pydantic import ValidationError

from meshwright.check.check import Scored, broken_of, score, stage_memory
from meshwright.cost.profile import Profile
from meshwright.frameworks.base.framework import Lever, Setting
from meshwright.frameworks.base.registry import framework_of
from meshwright.frameworks.base.switches import Switch
from meshwright.plans.plan import Plan
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import LEVER_EFFECTS, PricedLever
from meshwright.spec.consistency import problems
from meshwright.spec.spec import Spec
from meshwright.spec.training import Training

LEAST_GAIN = 0.005
"""Least share of the step, or of the memory, for which a lever is worth a word."""


ALLOCATOR = Lever(
    "expandable_segments",
    (True,),
    "PYTORCH_ALLOC_CONF=expandable_segments:True, before 2.9 PYTORCH_CUDA_ALLOC_CONF",
    "torch 2.13 c10/core/AllocatorConfig.h: AcceleratorAllocatorConfig",
)
"""What every framework has from PyTorch; a spec has it unless it says otherwise."""


def levers_of(spec: Spec) -> tuple[Lever, ...]:
    """Return the levers of a spec's framework, and that of its allocator."""
    return (*framework_of(spec).levers, ALLOCATOR)


@dataclass(frozen=True)
class Pulled:
    """A lever in one position, and the spec with it there."""

    lever: Lever
    setting: Setting
    edit: str
    spec: Spec

    @property
    def option(self) -> str:
        """Return the option of a launch."""
        return re.sub(r"\bN\b", str(self.setting), self.lever.option)

    @property
    def told(self) -> str:
        """Return the switch with its note, as one of several."""
        effect = LEVER_EFFECTS[self.lever.numbers]
        return f"{self.lever.switch} by {self.option}, {effect}"

    @property
    def note(self) -> str:
        """Return the option, and what it changes in the numbers of training."""
        return f"{self.option}; {LEVER_EFFECTS[self.lever.numbers]}"


def pulled(spec: Spec) -> Iterator[Pulled]:
    """Yield each position of each lever that the framework of a spec offers for it.

    Positions that the spec has already, or that its other fields rule out, are left
    out. Those of one lever follow each other, the mildest first.
    """
    for lever in levers_of(spec):
        yield from pull(spec, lever)


def pull(spec: Spec, lever: Lever) -> Iterator[Pulled]:
    """Yield the positions of one lever beyond the one that a spec has."""
    switch = Switch(lever.switch)
    now = switch.of(spec)
    for setting in lever.settings_for(spec):
        is_less = type(setting) is int and type(now) is int and setting <= now
        changed = switch.at(spec, setting)
        if setting == now or is_less or not is_valid(changed):
            continue
        if lever.beside and not Switch(lever.beside).of(spec):
            continue
        old, new = _text(now), _text(setting)
        edit = f"training.{lever.switch}: {old} -> {new}"
        yield Pulled(lever, setting, edit, changed)


FREES_NOTHING = ("overlap", "cuda_graphs", "expert_dispatch", "context_exchange")
"""Fields of `training` that change no byte."""


def frees_memory(switch: str) -> bool:
    """Return whether a switch, by its path below `training`, may free memory."""
    return switch.partition(".")[0] not in FREES_NOTHING


def lever_sets(
    spec: Spec, has_plan: Callable[[Spec], bool]
) -> Iterator[tuple[Pulled, ...]]:
    """Yield the smallest sets of levers with which a plan exists, each in its order.

    Every lever is tried alone. Where none is enough, all are tried together, first
    those that leave the numbers of training alone, and then as many are left out as
    can be.
    """
    levers = [one for one in levers_of(spec) if frees_memory(one.switch)]
    alone = [_least(spec, lever, has_plan) for lever in levers]
    yield from ((one,) for one in alone if one is not None)
    if any(alone):
        return
    tried = ""
    for allowed in range(1, len(LEVER_EFFECTS) + 1):
        numbers = [*LEVER_EFFECTS][:allowed]
        chosen = [lever for lever in levers if lever.numbers in numbers]
        pulled, changed = _together(spec, chosen)
        edits = ", ".join(one.edit for one in pulled)
        if edits == tried or not has_plan(changed):
            tried = edits
            continue
        for lever in reversed(chosen):
            fewer = [other for other in chosen if other is not lever]
            if has_plan(_together(spec, fewer)[1]):
                chosen = fewer
        yield _together(spec, chosen)[0]
        return


def _least(spec: Spec, lever: Lever, has_plan: Callable[[Spec], bool]) -> Pulled | None:
    """Return the mildest position of a lever that is enough alone."""
    positions = [*pull(spec, lever)]
    if not positions or not has_plan(positions[-1].spec):
        return None
    return next(one for one in positions if has_plan(one.spec))


def _together(spec: Spec, levers: list[Lever]) -> tuple[tuple[Pulled, ...], Spec]:
    """Return levers in their strongest positions, one on top of the other."""
    found: list[Pulled] = []
    for lever in levers:
        found += [*pull(found[-1].spec if found else spec, lever)][-1:]
    return tuple(found), found[-1].spec if found else spec


def is_valid(spec: Spec) -> bool:
    """Return whether a spec that was changed is one that a user may write."""
    try:
        Training.model_validate(spec.training.model_dump(by_alias=True))
    except ValidationError:
        return False
    return not any(problems(spec))


def _text(value: Setting | None) -> str:
    """Return a position as YAML, of an unknown one the word for it."""
    return "default" if value is None else str(value).lower()


def levers_beside(
    spec: Spec, outcome: Outcome, profile: Profile
) -> tuple[PricedLever, ...]:
    """Return what each lever gains on the recommended plan of an outcome."""
    if outcome.best is None:
        return ()
    # Unlike parts are used in some order.
    used = spec.model_copy(update={"cluster": outcome.cluster})
    return priced_levers(used, outcome.best.plan, profile)


def priced_levers(spec: Spec, plan: Plan, profile: Profile) -> tuple[PricedLever, ...]:
    """Return what each lever gains on a plan that stays as it is, the best first.

    The plan need not fit. Left out are levers that gain neither time nor memory, or
    with which it breaks a rule that it keeps now. Of several positions of a lever the
    mildest within `LEAST_GAIN` of the best is told.
    """
    now = _Figures(score(profile.job(spec), plan))
    best: dict[Lever, PricedLever] = {}
    for one in pulled(spec):
        told = _priced(one, now, plan, profile)
        known = best.get(one.lever)
        if told and (known is None or _worth(told) > _worth(known) + LEAST_GAIN):
            best[one.lever] = told
    return tuple(sorted(best.values(), key=_worth, reverse=True))


def _priced(
    one: Pulled, before: _Figures, plan: Plan, profile: Profile
) -> PricedLever | None:
    """Return what a lever gains on a plan; None if that is nothing, or breaks rules."""
    after = _Figures(score(profile.job(one.spec), plan))
    gain = before.step_s / after.step_s - 1
    freed_gib = before.peak_gib - after.peak_gib
    is_worth_it = _share(gain, freed_gib, before.peak_gib) > LEAST_GAIN
    # Rules are judged last: most levers gain nothing.
    if not is_worth_it or after.broken - before.broken:
        return None
    return PricedLever(
        switch=one.lever.switch,
        edit=one.edit,
        option=one.option,
        numbers=one.lever.numbers,
        source=one.lever.source,
        step_s=after.step_s,
        gain=gain,
        memory_gib=after.peak_gib,
        freed_gib=freed_gib,
        fits=not after.broken,
    )


@dataclass(frozen=True)
class _Figures:
    """The step time of a scored plan, and the rules that it breaks."""

    scored: Scored

    @cached_property
    def step_s(self) -> float:
        return self.scored.step_s

    @cached_property
    def peak_gib(self) -> float:
        return max(stage.total_gib for stage in stage_memory(self.scored))

    @cached_property
    def broken(self) -> frozenset[str]:
        return frozenset(rule.rule for rule in broken_of(self.scored))


def _worth(told: PricedLever) -> float:
    """Return the share that a lever gains.

    A lever with which the plan fits is worth more than any with which it does not.
    """
    return _share(told.gain, told.freed_gib, told.memory_gib + told.freed_gib)


def _share(gain: float, freed_gib: float, peak_gib: float) -> float:
    """Return the shares of time and, in a tenth of its weight, of memory gained."""
    return gain + freed_gib / peak_gib / 10
