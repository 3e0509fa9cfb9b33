"""What sets the degrees: every other one solved for, or the rules in its way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.cost.job import make_job
from meshwright.cost.transformer import kv_shards
from meshwright.explanations.conflict import clash_of, costly_decisions, has_room
from meshwright.explanations.fixed import fixed_in, with_plan, without
from meshwright.explanations.framework_rules import rules_behind
from meshwright.explanations.gap import gap
from meshwright.lattice.degrees import degree_rows, legal_degrees
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import Skeletons
from meshwright.results.explanation import (
    AxisDegrees,
    Degrees,
    Fixed,
    OtherDegree,
    Shares,
)
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.solver.prepared import Prepared
from meshwright.spec.cluster import Cluster
from meshwright.spec.divisors import divisors
from meshwright.spec.model import Model
from meshwright.spec.pins import Pins
from meshwright.spec.spec import Spec

WHOLE = ("tp", "pp")
"""Axes of which every degree is solved for."""

NEAR = ("cp", "dp")
"""Axes of which the next degree below and the next above are."""

TALKERS = {
    "tp": ("tp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "pp": ("pp",),
    "zero": ("dp_shard", "expert_shard"),
    "dp": ("dp_shard", "dp_replicate", "expert_shard", "expert_replicate"),
}
"""Parts of the step that are traffic, and the groups whose it is."""


Solve = Callable[[Spec, Prepared | None], Outcome]
"""Solves a spec, which may be prepared already."""

SolveAt = Callable[[str, int], Outcome]
"""Solves with a degree of an axis decided."""


@dataclass(frozen=True)
class Neighbourhood:
    """A spec, its best plan, and how to find the best plan with another degree."""

    spec: Spec
    best: PricedPlan
    solve: SolveAt

    def axis(self, axis: str) -> AxisDegrees:
        """Return what other degrees of an axis take."""
        own = degree_of(self.best.plan, axis)
        others = _every(self.spec, self.best.plan)
        if axis in NEAR:
            others = _next_to(own, others)
        return AxisDegrees.model_validate(
            {
                "axis": axis,
                "degree": own,
                "is_pinned": getattr(self.spec.pins, axis) is not None,
                "link": fullest_links(self.best).get(axis, ""),
                "others": tuple(self._other(axis, n) for n in others if n != own),
            }
        )

    def _other(self, axis: str, degree: int) -> OtherDegree:
        outcome = self.solve(axis, degree) if self._is_open(axis, degree) else None
        if outcome is None or outcome.best is None:
            rules = self._rules(axis, degree, outcome)
            return OtherDegree(degree=degree, rules=rules)
        found = outcome.best
        return OtherDegree(
            degree=degree,
            plan=found.plan,
            step_s=found.step_s,
            gap=gap(found, self.best),
            shares=shares(self.spec.model, found),
            links=fullest_links(found),
        )

    def _is_open(self, axis: str, degree: int) -> bool:
        """Return whether there may be a plan; of unlike parts only a solve can tell."""
        is_mixed = bool(self.spec.cluster.parts)
        return is_mixed or degree in getattr(self._legal, axis)

    def _rules(
        self, axis: str, degree: int, outcome: Outcome | None
    ) -> tuple[Fixed, ...]:
        """Return what clashes with a degree: decisions, and rules of the framework.

        Of unlike parts it is what the nearest plan breaks, unless rules bar the degree
        wherever it lies.
        """
        asked, pin = with_degree(self.spec, axis, degree), f"pins.{axis}"
        is_legal = degree in getattr(self._legal, axis)
        if asked.cluster.parts:
            if is_legal and outcome is not None:
                return tuple(_broken(outcome))
            alike = Cluster(topology=asked.cluster.topology)
            asked = asked.model_copy(update={"cluster": alike})
        names = (pin, *_clashing(asked)) if is_legal else (pin,)
        decided = [own for own in fixed_in(asked) if own.rule in names]
        others = tuple(own for own in decided if own.rule != pin)
        return (*others, *rules_behind(asked, names))

    @cached_property
    def _legal(self) -> Skeletons:
        """Return the degrees that are legal where nothing is decided."""
        free = without(self.spec, [own.rule for own in fixed_in(self.spec)])
        return degree_rows(legal_degrees(make_job(free))[0])


def degrees(
    spec: Spec,
    best: PricedPlan,
    solve: SolveAt,
    say: Callable[[str], None],
) -> Degrees:
    """Return what other degrees take than those of a spec's best plan.

    `solve` answers the spec with a degree of an axis decided, instead of what the spec
    pins of it, and all else chosen anew.
    """
    near = Neighbourhood(spec, best, solve)

    def every() -> Iterator[AxisDegrees]:
        for axis in (*WHOLE, *NEAR):
            say(f"solving with other degrees of {axis}")
            yield near.axis(axis)

    return Degrees(shares=shares(spec.model, best), axes=tuple(every()))


def solver_at(spec: Spec, prepared: Prepared | None, solve: Solve) -> SolveAt:
    """Return how to solve a spec with a degree of an axis decided.

    What a spec leaves open of an axis is a part of what was `prepared` for it, which
    need not be listed and bounded again.
    """

    def solve_at(axis: str, degree: int) -> Outcome:
        asked = with_degree(spec, axis, degree)
        if prepared is None or getattr(spec.pins, axis) is not None:
            return solve(asked, None)
        lattice = prepared.lattice
        has_degree = getattr(degree_rows(lattice.degrees), axis) == degree
        return solve(asked, prepared.among(has_degree[lattice.degree]))

    return solve_at


def with_degree(spec: Spec, axis: str, degree: int) -> Spec:
    """Return a spec with a degree decided instead of what it pins of the axis."""
    return with_plan(spec, Pins.model_validate({axis: degree}))


def degree_of(plan: Plan, axis: str) -> int:
    """Return how many GPUs a plan has along an axis."""
    if axis == "dp":
        return plan.dp_replicate * plan.dp_shard
    return int(getattr(plan, axis))


def _clashing(asked: Spec) -> tuple[str, ...]:
    """Return decisions of a spec without a plan that are in each other's way.

    Where those that only a solve can tell of are the last straw, it is they.
    """
    costly = costly_decisions(asked)
    rest = without(asked, costly)
    if costly and has_room(rest):
        return tuple(costly)
    clash = clash_of(rest, has_room)
    return clash.decisions.named(clash.conflict)


def _broken(outcome: Outcome) -> Iterator[Fixed]:
    """Yield the rules that the nearest miss of an outcome breaks, pins left out."""
    for own in outcome.near_miss.broken_rules if outcome.near_miss else ():
        if not own.rule.startswith("pin "):
            yield Fixed(rule=own.rule, sentence=own.sentence)


def _every(spec: Spec, plan: Plan) -> list[int]:
    """Return what divides the GPUs, or those of the parts that a plan is on."""
    return sorted({*divisors(spec.cluster.gpus), *divisors(plan.world_size)})


def _next_to(own: int, known: list[int]) -> list[int]:
    below = [degree for degree in known if degree < own]
    above = [degree for degree in known if degree > own]
    return [*below[-1:], *above[:1]]


def fullest_links(priced: PricedPlan) -> dict[str, str]:
    """Return the most loaded link of each part of the step that is traffic."""
    result = {}
    for part, groups in TALKERS.items():
        loads = [load for load in priced.links if load.phase in groups]
        if loads:
            result[part] = max(loads, key=lambda load: load.seconds).link
    return result


def shares(model: Model, priced: PricedPlan) -> Shares:
    """Return what a plan's degrees leave a GPU of each layer, and each stage."""
    plan, moe = priced.plan, model.moe
    kv_heads = model.n_kv_heads / float(kv_shards(model, np.array(plan.tp)))
    layers = [stage.layers for stage in plan.stages]
    return Shares(
        heads=model.n_heads / plan.tp,
        kv_heads=kv_heads,
        d_ff=moe.d_ff if moe else model.d_ff / plan.tp,
        experts=moe.n_experts / plan.ep if moe else 0.0,
        layers=(min(layers), max(layers)),
        bubble=priced.time_parts["bubble"] / priced.step_s,
    )
