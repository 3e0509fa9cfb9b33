"""Open choices and rentals with drawn steps: the best of them is found, in few solves.

No plan is looked for: a solve tells the step that was drawn, where it is asked for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

import meshwright as mw
from meshwright.deadline import Deadline
from meshwright.planner.compute_bound import Wanted
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.results.outcome import Outcome
from meshwright.spec.goals import Level
from meshwright.spec.open_spec import OpenSpec
from meshwright.sweeps import open_choices
from meshwright.sweeps.open_choices import (
    Chosen,
    OpenChoice,
    OpenSearch,
    _certified,
    _order,
    loss_of,
)
from meshwright.sweeps.rentals import (
    BOTH,
    RentalChoice,
    RunLimits,
    ToSolve,
    ranked,
)
from tests.sweeps.test_open_question import SMALL

LEVELS: tuple[tuple[tuple[str, float], ...], ...] = (
    (("step_s", 0.0),),
    (("usd_per_mtoken", 0.0),),
    (("step_s", 0.1), ("gpus", 0.0)),
    (("gpus", 0.5), ("step_s", 0.0)),
    (("usd_per_mtoken", 0.2), ("gpus", 0.5), ("step_s", 0.0)),
)


def levels_of(pairs: Sequence[tuple[str, float]]) -> list[Level]:
    return [Level.model_validate({"metric": n, "tolerance": t}) for n, t in pairs]


@cache
def solved() -> Outcome:
    return solve(mw.load("gpt2-xl-2x4090-pcie", mw.Spec))


@dataclass
class Drawn:
    """The choices of a small question, with the best step of each."""

    choices: list[OpenChoice]
    steps: dict[int, float]
    """Best step by number; infinite where no plan fits."""
    solves: list[int] = field(default_factory=list)

    def search(self, patch: pytest.MonkeyPatch) -> OpenSearch:
        """Return a search that is told steps, where they are within its cutoffs."""
        numbers = {id(choice): choice.number for choice in self.choices}

        def prepared(choice: OpenChoice, near: Wanted | None = None) -> Any:
            number = numbers[id(choice)]
            self.solves.append(number)
            least_s = (choice.least_s + self.steps[number]) / 2
            lattice = SimpleNamespace(skeletons=1_000)
            return SimpleNamespace(number=number, least_s=least_s, lattice=lattice)

        def told(prepared: Any, options: Options, _: Deadline) -> Outcome:
            step_s = self.steps[prepared.number]
            if step_s > options.known_s or math.isinf(step_s):
                none = {"best": None, "certificate": None, "status": "infeasible"}
                return solved().model_copy(update=none)
            best, proof = solved().best, solved().certificate
            assert best
            assert proof
            return solved().model_copy(
                update={
                    "best": best.model_copy(update={"step_s": step_s}),
                    "certificate": proof.model_copy(update={"bound_s": step_s}),
                }
            )

        patch.setattr(open_choices, "best_outcome", told)
        search = OpenSearch(Options(), Deadline())
        patch.setattr(search, "_prepared", prepared)
        return search


@cache
def question() -> OpenSpec:
    asked = mw.load({**SMALL, "objective": "step_s"})
    assert isinstance(asked, OpenSpec)
    return asked


def drawn(seed: int) -> Drawn:
    """Return choices of steps about as long as their GPUs share the work."""
    draw, choices, steps = Random(seed), list[OpenChoice](), {}
    for number, spec in enumerate(question().choices):
        work = spec.training.global_batch / spec.cluster.gpus
        steps[number] = work * draw.uniform(1, 2) if draw.random() < 0.8 else math.inf
        known_s = work * draw.uniform(0.5, 1)
        compute: Any = SimpleNamespace(
            least_s=lambda _, s=known_s: s, shared_s=lambda _, s=known_s: 0.9 * s
        )
        choices.append(OpenChoice(number, spec, compute, known_s))
    return Drawn(choices, steps)


def best_of(given: Drawn, levels: list[Level]) -> set[int]:
    """Return the choices that are best by all levels, one after the other."""
    left = [c for c in given.choices if not math.isinf(given.steps[c.number])]
    for number, level in enumerate(levels):
        tolerance = level.tolerance if number < len(levels) - 1 else 0.0
        values = {c.number: c.value(level, given.steps[c.number]) for c in left}
        most = min(values.values(), default=0.0) * (1 + tolerance + 1e-9)
        left = [c for c in left if values[c.number] <= most]
    return {choice.number for choice in left}


def test_the_best_choice_is_that_of_all_steps_with_few_solves() -> None:
    solves = 0
    for seed in range(300):
        found, levels = drawn(seed), levels_of(LEVELS[seed % len(LEVELS)])
        with pytest.MonkeyPatch.context() as patch:
            best = found.search(patch).best(found.choices, levels)
        expected = best_of(found, levels)
        solves += len(found.solves)
        if best is None:
            assert not expected
            continue
        assert best.number in expected
        for choice in found.choices:
            step_s = found.steps[choice.number]
            assert not choice.is_stopped
            assert choice.least_s <= step_s
            assert choice.step_s in (None, step_s)
            if math.isinf(step_s):
                assert choice.verdict in ("bounded", "none_fits")
    assert solves == 2661


def with_steps(steps: Sequence[float]) -> list[OpenChoice]:
    """Return solved choices of growing machines, of one batch, with these steps."""
    batch = question().choices[0].training.global_batch
    specs = [c for c in question().choices if c.training.global_batch == batch]
    compute: Any = None
    return [
        OpenChoice(n, spec, compute, least_s=step_s, step_s=step_s)
        for n, (spec, step_s) in enumerate(zip(specs, steps, strict=False))
    ]


@pytest.mark.parametrize(
    ("step_s", "level", "loss"),
    [
        (10.0, "gpus", 1.0),
        (11.0, "gpus", 1.0),
        (11.00002, "step_s", 0.100002),
        (9.9, "step_s", -0.01),
        (9.999995, "gpus", 1.0),
    ],
)
def test_the_first_level_that_tells_two_choices_apart_is_told(
    step_s: float, level: str, loss: float
) -> None:
    """As long as a loss is within its tolerance, or nothing but rounding, the next."""
    levels = levels_of((("step_s", 0.1), ("gpus", 0.0)))
    best, other = with_steps([10.0, step_s])
    told, share = loss_of(levels, other, best)
    assert told == level
    assert share == pytest.approx(loss)
    same, _ = with_steps([10.0, 10.0])
    assert loss_of(levels, same, best) == ("gpus", 0.0)


def test_of_choices_that_cost_the_same_the_fewest_gpus_come_first() -> None:
    """8, 16 and 24 GPUs of 6, 3 and 2 s a step, of which the most look best before."""
    (level,) = levels_of((("usd_per_mtoken", 0.0),))
    choices = with_steps([6.0, 3.0, 2.0])
    for choice, shared_s in zip(choices, (60.0, 20.0, 10.0), strict=True):
        compute: Any = SimpleNamespace(shared_s=lambda _, s=shared_s: s)
        choice.compute = compute
    backwards = choices[::-1]
    assert sorted(backwards, key=partial(_order, level)) == choices
    for choice in choices:
        choice.step_s = None
    assert sorted(choices, key=partial(_order, level)) == backwards
    # What is known comes after what may be better than all.
    choices[2].step_s = 2.0
    assert sorted(choices, key=partial(_order, level)) == [*choices[1::-1], choices[2]]


def test_choices_left_open_say_how_much_better_one_may_be() -> None:
    """The best of those that were not looked at may take 2 of 10 seconds less."""
    levels = levels_of((("step_s", 0.0),))
    choices = with_steps([10.0, 8.0, 9.0, 12.0])
    for choice in choices[1:]:
        choice.step_s, choice.is_stopped = None, True
    choices[0].outcome = solved()
    search = OpenSearch(Options(), Deadline())
    chosen = Chosen(question(), search, choices, levels, choices[0])
    told = _certified(chosen, solved())
    assert told["status"] == "feasible"
    assert told["is_stopped"] is False
    proof = told["certificate"]
    assert proof.gap == pytest.approx(0.2)
    assert proof.left_open == (
        "It was stopped before all choices of cluster.count and "
        "training.global_batch were looked at."
    )
    assert [one.verdict for one in told["open"].choices] == [
        "solved", "undecided", "undecided", "undecided"
    ]  # fmt: skip
    none = Chosen(question(), search, choices, levels, None)
    assert _certified(none, solved())["status"] == "unknown"


def rentals_of(given: Drawn, seed: int) -> list[RentalChoice]:
    """Return the choices on offers with drawn prices and days for each second."""
    draw, found = Random(seed), []
    for choice in given.choices:
        offered: Any = SimpleNamespace(
            spec=choice.spec,
            offer=SimpleNamespace(instance=f"i{choice.number}"),
            usd_per_step_s=draw.uniform(0.5, 2) * choice.spec.cluster.gpus,
            days_per_step_s=draw.uniform(0.5, 2),
        )
        found.append(RentalChoice(offered, choice))
    return found


@dataclass
class Solver:
    """Tells drawn steps within their cutoffs, and counts what is asked."""

    own: Drawn
    rounds: int = 0
    solves: int = 0

    def __call__(self, asked: list[ToSolve]) -> list[OpenChoice]:
        self.rounds += 1
        self.solves += len(asked)
        for choice, most_s in asked:
            step_s = self.own.steps[choice.number]
            if step_s <= most_s and not math.isinf(step_s):
                choice.step_s = choice.least_s = step_s
            else:
                choice.least_s = math.nextafter(most_s, math.inf)
        return [choice for choice, _ in asked]


Values = dict[int, list[float]]
"""USD and days of every choice, by number."""


def within(values: Values, usd: float, days: float) -> Values:
    """Return the choices that have a plan and keep the limits."""
    return {
        number: value
        for number, value in values.items()
        if value[0] <= usd and value[1] <= days and not math.isinf(value[0])
    }


def test_the_front_of_rentals_is_that_of_all_steps_with_few_solves() -> None:
    rounds = solves = 0
    for seed in range(300):
        result = drawn(seed)
        rentals, draw = rentals_of(result, seed), Random(-seed)
        values = {
            one.choice.number: [
                result.steps[one.choice.number] * one.rate(axis) for axis in BOTH
            ]
            for one in rentals
        }
        some = draw.choice([*values.values()])
        limits = RunLimits(
            usd=draw.choice([math.inf, 1.5 * some[0], some[0]]),
            days=draw.choice([math.inf, 1.5 * some[1], some[1], 0.5 * some[1]]),
        )
        solver = Solver(result)
        found = ranked(rentals, limits, solver)

        keep = within(values, limits.usd, limits.days)
        expected = {
            n
            for n, v in keep.items()
            if not any(w[0] <= v[0] and w[1] <= v[1] and w != v for w in keep.values())
        }
        assert {one.choice.number for one in found.front} == expected
        rounds, solves = rounds + solver.rounds, solves + solver.solves
        if expected:
            assert found.binds == "neither"
            continue
        in_time = within(values, math.inf, limits.days)
        in_budget = within(values, limits.usd, math.inf)
        cheapest = min(in_time, key=lambda n: in_time[n][0], default=None)
        fastest = min(in_budget, key=lambda n: in_budget[n][1], default=None)
        assert (found.in_time and found.in_time.choice.number) == cheapest
        assert (found.in_budget and found.in_budget.choice.number) == fastest
    assert rounds <= 754
    assert solves <= 2536
