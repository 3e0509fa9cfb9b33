"""What to rent: the front against brute force, and what binds where nothing is left."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

import meshwright as mw
from meshwright.api.search import rent_offered
from meshwright.loading.asked import Asked
from meshwright.loading.price_list import Offered, offered_specs, priced_machines
from meshwright.results.training_run import Rental, RentalAnswer
from meshwright.sweeps.rentals import Ranked
from tests.helpers.extent import gate

TYPES = ("p4d.24xlarge", "p5.48xlarge", "BM.GPU4.8", "BM.GPU.H100.8")

SPEC = {
    "model": "gpt-1.3b",
    "training": {"seq_len": 2048, "global_batch": 64},
    "pins": {"recompute": "none", "tp": 1},
    "run": {"tokens": 20e9},
}

OFF = 1e-5
"""Share of a step time that rounding to ticks may move a comparison."""


@dataclass(frozen=True)
class Point:
    """A choice whose fastest plan is known from a solve of its own."""

    name: tuple[str, int]
    usd: float
    days: float


@cache
def offered() -> Offered:
    machines = [
        priced_machine
        for priced_machine in priced_machines()
        if priced_machine.offer.instance in TYPES
    ]
    assert len(machines) == len(TYPES)
    return offered_specs(SPEC, Asked(count=[1, 2, 3, 4]), machines, None, [])


@cache
def points() -> tuple[Point, ...]:
    found = []
    for spec in offered().specs:
        outcome = mw.solve(spec.spec, fastest=True, by_kind=False, safety=False)
        step_s = outcome.best.step_s if outcome.best else math.inf
        steps = 20e9 / (2048 * 64)
        days = steps * step_s / 86_400
        count = spec.spec.cluster.count
        usd = days * 24 * spec.offer.price.hour_usd * count
        found.append(Point((spec.offer.instance, count), usd, days))
    return tuple(found)


def brute_front(usd: float, days: float) -> set[tuple[str, int]]:
    within = [point for point in points() if point.usd <= usd and point.days <= days]
    return {
        one.name
        for one in within
        if not any(
            other.usd <= one.usd
            and other.days <= one.days
            and (other.usd, other.days) != (one.usd, one.days)
            for other in within
        )
    }


def names(rentals: tuple[Rental, ...]) -> set[tuple[str, int]]:
    return {(rental.instance, rental.count) for rental in rentals}


def asked(usd: float = math.inf, days: float = math.inf) -> RentalAnswer:
    budget, deadline = (None if math.isinf(one) else one for one in (usd, days))
    return rent_offered(offered(), budget_usd=budget, deadline_days=deadline, workers=1)


def limits(axis: str) -> list[float]:
    """Return limits between the values of choices, and one without an end."""
    values = sorted(getattr(point, axis) for point in points())
    middle = values[len(values) // 2] * 1.01
    return [values[0] * 0.99, values[0] * 1.01, middle, math.inf]


@pytest.mark.slow
def test_the_front_is_that_of_brute_force() -> None:
    assert len(points()) > 8
    pairs = [*itertools.product(limits("usd"), limits("days"))]
    for usd, days in pairs[:: gate(3, everything=1)]:
        answer, front = asked(usd, days), brute_front(usd, days)
        assert names(answer.front) == front
        assert answer.status == ("optimal" if front else "infeasible")
        for one in answer.front:
            (point,) = (p for p in points() if p.name == (one.instance, one.count))
            assert one.status == "optimal"
            assert one.usd == pytest.approx(point.usd, rel=OFF)
            assert one.days == pytest.approx(point.days, rel=OFF)


@pytest.mark.slow
def test_where_nothing_keeps_both_it_says_what_keeps_each() -> None:
    cheapest = min(points(), key=lambda given: given.usd)
    fastest = min(points(), key=lambda given: given.days)
    both = asked(cheapest.usd * 1.001, fastest.days * 1.001)
    assert both.binds == "both"
    assert both.cheapest_in_time is not None
    assert both.fastest_in_budget is not None
    assert both.cheapest_in_time.days == pytest.approx(fastest.days, rel=OFF)
    assert both.fastest_in_budget.usd == pytest.approx(cheapest.usd, rel=1e-3)

    budget = asked(cheapest.usd / 2, fastest.days * 2)
    assert budget.binds == "budget"
    assert budget.fastest_in_budget is None
    in_time = [point for point in points() if point.days <= fastest.days * 2]
    least = min(one.usd for one in in_time)
    assert budget.cheapest_in_time is not None
    assert budget.cheapest_in_time.usd == pytest.approx(least, rel=OFF)

    deadline = asked(cheapest.usd * 2, fastest.days / 2)
    assert deadline.binds == "deadline"
    assert deadline.cheapest_in_time is None
    assert deadline.fastest_in_budget is not None


@pytest.mark.parametrize(
    ("in_time", "in_budget", "binds"),
    [
        (None, None, "no plan"),
        (None, "some", "deadline"),
        ("some", None, "budget"),
        ("some", "some", "both"),
    ],
)
def test_the_limit_that_binds_is_the_one_that_no_choice_keeps(
    in_time: Any, in_budget: Any, binds: str
) -> None:
    some: Any = "some"
    assert Ranked((), [], in_time, in_budget).binds == binds
    assert Ranked((), [some], in_time, in_budget).binds == "neither"


def test_limits_of_which_neither_can_be_kept_are_no_lack_of_a_plan() -> None:
    answer = rent_offered(offered(), budget_usd=0.01, deadline_days=1e-6, workers=1)
    assert (answer.status, answer.binds) == ("infeasible", "each")
    assert "keeps the budget in any time, nor the deadline" in " ".join(
        str(answer).split()
    )


@pytest.mark.slow
def test_the_answer_is_the_same_for_any_number_of_workers() -> None:
    one, two = (
        rent_offered(offered(), budget_usd=1e5, workers=each) for each in (1, 2)
    )
    assert one.to_dict() == two.to_dict()


def test_machines_that_hold_no_plan_are_told_where_nothing_else_is_limited() -> None:
    some = [one for one in priced_machines() if one.offer.instance == TYPES[0]]
    large = SPEC | {"model": "llama3-405b"}
    on_offer = offered_specs(large, Asked(count=[1, 2]), some, None, [])
    answer = rent_offered(on_offer, workers=1)
    assert (answer.status, answer.binds) == ("infeasible", "no plan")
    assert answer.closed.none_fits == 2


def test_a_time_limit_leaves_choices_undecided() -> None:
    answer = rent_offered(offered(), workers=1, time_limit_s=0.0)
    assert answer.status == "unknown"
    assert answer.closed.undecided == len(offered().specs)
    assert answer.front == ()
