"""What limits of a framework cost: each lifted alone, solved, and told."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

import meshwright as mw
from meshwright.check.check import broken_rules
from meshwright.cost.job import make_job
from meshwright.cost.profile import load_profile
from meshwright.deadline import Interrupt
from meshwright.explanations import framework_rules
from meshwright.explanations.framework_rules import _by_cost, solve_with_limits
from meshwright.frameworks.base.registry import limits_of
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.results.outcome_parts import FrameworkLimits, LiftedLimit
from meshwright.spec.spec import Spec
from tests.helpers.command import run
from tests.helpers.margin import with_margin
from tests.helpers.texts import whole_text

COSTLY = "llama2-13b-8xa100"
"""DeepSpeed, some of whose limits cost something."""

FREE = "gpt2-xl-2xa100-pcie"
"""DeepSpeed, with a plan that no limit makes slower."""

NONE_FITS = "llama3-70b-16xa100"

FITS_WITHOUT = "llama3-8b-2x4090-pcie"
"""Megatron-LM, under which no plan fits; without its limit on offload one does."""

FITTED = load_profile("measured")


def loaded(name: str) -> Spec:
    """Return a bundled spec whose plans leave 3 % of memory free."""
    return with_margin(mw.load(name, Spec))


def costs_of(name: str, **how: Any) -> FrameworkLimits:
    options = Options(profile=FITTED, **how)
    found = solve_with_limits(loaded(name), options).framework_limits
    assert found is not None
    return found


@cache
def all_costs_of(name: str) -> FrameworkLimits:
    """Return what the limits of a bundled spec cost, with all the time it takes."""
    return costs_of(name)


def names_of(found: FrameworkLimits) -> set[str]:
    return {limit.limit for limit in found.limits}


def step_s(spec: Spec) -> float:
    best = solve(spec, Options(profile=FITTED, is_brief=True)).best
    return best.step_s if best else math.inf


@pytest.mark.parametrize("name", [COSTLY, FREE, NONE_FITS, FITS_WITHOUT])
def test_every_limit_is_priced_as_a_solve_without_it(name: str) -> None:
    spec = loaded(name)
    found, within_s = all_costs_of(name), step_s(spec)
    assert names_of(found) == {limit.name for limit in limits_of(spec)}
    for one in found.limits:
        _is_told(one, within_s, step_s(spec.without_limits([one.limit])))
    every = spec.without_limits(names_of(found))
    _is_told(found.all_lifted, within_s, step_s(every))


def _is_told(lifted_limit: LiftedLimit, within_s: float, without_s: float) -> None:
    if math.isinf(without_s):
        assert (lifted_limit.step_s, lifted_limit.costs, lifted_limit.status) == (
            None,
            None,
            "infeasible",
        )
        return
    assert lifted_limit.step_s == pytest.approx(without_s, rel=1e-9)
    if math.isinf(within_s):
        assert lifted_limit.costs is None
    else:
        assert lifted_limit.costs == pytest.approx(within_s / without_s - 1, abs=1e-9)
    assert lifted_limit.status == "optimal"
    assert (
        lifted_limit.gains
        == (within_s > without_s * (1 + 1e-9))
        != lifted_limit.gains_nothing
    )


def test_the_costliest_comes_first_with_a_plan_that_breaks_it() -> None:
    spec, found = loaded(COSTLY), all_costs_of(COSTLY)
    costs = [limit.costs or 0.0 for limit in found.limits]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > 0
    for limit in found.limits:
        if limit.plan is not None:
            broken = broken_rules(make_job(spec), limit.plan)
            assert {rule.rule for rule in broken} == {limit.limit}


def test_all_is_told_of_each_where_nothing_gains() -> None:
    """One solve without any limit suffices, and one under `ideal`."""
    told: list[str] = []
    found = costs_of(FREE, on_progress=told.append)
    assert all(limit.gains_nothing for limit in found.limits)
    assert told[-2:] == ["without any of the framework's limits", "framework: ideal"]


def test_without_time_nothing_is_known() -> None:
    found = costs_of(COSTLY, time_limit_s=0.0)
    assert {limit.status for limit in found.limits} == {"unknown"}
    assert not any(limit.gains or limit.gains_nothing for limit in found.limits)
    assert found.ideal_step_s is None


@pytest.mark.parametrize("left_s", [0.0, 0.25])
def test_any_time_that_is_left_is_used(
    left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each solve gets what is left, and none is begun once nothing is."""
    given, outcome = list[float](), solve(loaded(FREE), Options(is_brief=True))

    def limited(_spec: Spec, options: Options) -> mw.Outcome:
        given.append(options.time_limit_s)
        return outcome

    left = SimpleNamespace(left_s=left_s)
    monkeypatch.setattr(framework_rules, "solve", limited)
    monkeypatch.setattr(framework_rules, "Deadline", lambda *_: left)
    found = costs_of(FREE, time_limit_s=7.0)
    statuses = {limit.status for limit in found.limits}
    assert [*given] == [7.0, *[left_s] * (2 if left_s else 0)]
    assert statuses == {outcome.status if left_s else "unknown"}


def test_an_interrupt_leaves_the_rest_open() -> None:
    interrupt = Interrupt()

    def stop_at_the_third(text: str) -> None:
        interrupt.is_asked |= text.startswith("3 of ")

    found = costs_of(COSTLY, on_progress=stop_at_the_third, interrupt=interrupt)
    open_ones = [limit for limit in found.limits if limit.status == "unknown"]
    limits = limits_of(loaded(COSTLY))
    assert [open_one.limit for open_one in open_ones] == [
        limit.name for limit in limits[2:]
    ]


def test_slower_plans_than_a_known_one_are_left_out() -> None:
    spec = loaded(COSTLY)
    best = solve(spec).best
    assert best is not None
    for share, status in ((0.999, "infeasible"), (1.001, "optimal")):
        found = solve(spec, Options(known_s=best.step_s * share, is_brief=True))
        assert found.status == status
        assert found.best is None or found.best.plan == best.plan
        assert found.near_miss is None


def test_a_known_plan_of_unlike_parts_is_kept_in_mind() -> None:
    spec = mw.load("gpt2-xl-2x3090-2x4090", Spec)
    best = solve(spec).best
    assert best is not None
    options = Options(is_brief=True, known_s=best.step_s * 0.999)
    assert solve(spec, options).status == "infeasible"
    found = solve(spec, replace(options, known_s=best.step_s * 1.001)).best
    assert found is not None
    assert found.plan == best.plan


def test_the_command_tells_what_limits_cost() -> None:
    done = run("solve", COSTLY, "--ideal", "--no-by-kind")
    assert done.code == 0
    assert "What the limits of DeepSpeed cost, each lifted alone" in done.stdout
    assert "Under `framework: ideal` the fastest plan takes" in done.stdout
    printed = run("solve", COSTLY, "--ideal", "--format", "json", "--no-by-kind")
    data = json.loads(printed.stdout)["framework_limits"]
    assert data["all_lifted"]["costs"] >= data["limits"][0]["costs"] > 0
    plain = run("solve", COSTLY, "--format", "json", "--no-by-kind")
    assert "framework_limits" not in json.loads(plain.stdout)


def test_where_no_plan_fits_the_exit_code_stays() -> None:
    done = run("solve", NONE_FITS, "--ideal")
    assert done.code == 1
    assert "What the limits of Megatron-LM cost" not in done.stdout
    assert "Without any of its limits no plan fits." in done.stdout
    without = run("solve", FITS_WITHOUT, "--ideal")
    assert without.code == 1
    assert "offload_supported" in without.stdout


def test_serving_has_no_such_limits() -> None:
    done = run("solve", "serve-llama3-8b-1xa100", "--ideal")
    assert done.code == 2
    assert "--ideal: for specs with training" in done.stderr


def test_a_framework_without_limits_says_so() -> None:
    spec = mw.load(FREE, Spec).model_copy(update={"framework": "ideal"})
    outcome = mw.solve(spec, framework_limits=True)
    assert outcome.framework_limits is not None
    assert outcome.framework_limits.limits == ()
    assert "It has no limits." in whole_text(outcome)
    assert mw.Outcome.from_json(outcome.to_json()).framework_limits is not None


def test_what_alone_leaves_a_plan_comes_before_what_costs_most() -> None:
    """Then by what each costs, and what nothing gains without in the order of rules."""
    limits: list[Any] = [
        SimpleNamespace(name=name, gains=gains, costs=costs)
        for name, gains, costs in (
            ("idle", False, None),
            ("cheap", True, 0.01),
            ("dear", True, 0.5),
            ("only", True, None),
            ("idle too", False, 0.0),
        )
    ]
    told = [limit.name for limit in sorted(limits, key=_by_cost)]
    assert told == ["only", "dear", "cheap", "idle", "idle too"]
