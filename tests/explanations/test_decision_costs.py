"""What the decisions of a plan cost, by the plans near the fastest."""

from __future__ import annotations

from functools import cache

import pytest

import meshwright as mw
from meshwright.explanations.decisions import with_pins
from meshwright.plans.plan import Plan
from meshwright.results.explanation import Explanation
from meshwright.results.outcome_parts import DecisionCost
from meshwright.spec.plan_fields import Pins

SPEC = "llama2-13b-8xa100"

UNFITTED = "unfitted"
"""A profile that knows of no runs: the recommended plan is the fastest one."""


def costs(told: Explanation) -> dict[str, DecisionCost]:
    return {decision.name: decision for decision in told.decisions}


@cache
def explained(plan: str = "") -> Explanation:
    told = mw.explain(mw.load(SPEC), plan=plan or None, profile=UNFITTED)
    assert isinstance(told, Explanation)
    return told


@pytest.fixture
def judged() -> Explanation:
    return explained("tp=8")


def test_a_decision_that_no_near_plan_has_costs_more(judged: Explanation) -> None:
    found = costs(judged)["tp"]
    assert (found.value, found.loss) == (8, None)
    assert found.otherwise == 0
    assert judged.near is not None
    assert all("tp=8" not in plan.plan for plan in judged.near.plans)


def test_decisions_of_the_best_plan_cost_nothing() -> None:
    told = explained()
    assert {decision.loss for decision in told.decisions} == {0}


@pytest.mark.parametrize("name", ["tp", "pp", "zero"])
def test_otherwise_is_the_best_plan_without_that_value(name: str) -> None:
    """Every other value is pinned in turn, and the fastest of those plans taken."""
    spec = mw.load(SPEC, mw.Spec)
    told = explained()
    result = costs(told)[name]
    assert told.near is not None
    assert isinstance(told.plan and told.plan.plan, Plan)
    best_s = told.plan.step_s if told.plan else 0.0
    others = {"tp": (2, 4, 8), "pp": (2, 4, 8), "zero": (0, 1, 2)}[name]
    found = []
    for value in others:
        pinned = with_pins(spec, Pins.model_validate({name: value}))
        other = mw.solve(pinned, fastest=True, profile=UNFITTED).best
        found += [other.step_s / best_s - 1] if other else []
    least = min(found)
    if result.otherwise is None:
        assert least > told.near.within
    else:
        assert result.otherwise == pytest.approx(least, abs=1e-6)


def test_the_near_set_comes_back_from_json(judged: Explanation) -> None:
    again = mw.Explanation.from_json(judged.to_json())
    assert (again.near, again.decisions) == (judged.near, judged.decisions)
