"""What other risks would change is what solving again at them finds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.check.check import broken_rules
from meshwright.cost.job import make_job
from meshwright.deadline import Interrupt
from meshwright.explanations.marginal_values import bolder_plans
from meshwright.loading.load import load_spec
from meshwright.planner.families import prepare
from meshwright.planner.options import Options
from meshwright.planner.solve import roomiest_gib, solve
from meshwright.spec.spec import Spec, with_risk

SAFELY = Options(is_brief=True, is_safety=True)
TIGHT = ["llama3-70b-16xh100", "gpt2-xl-2x4090-pcie", "llama2-7b-64xh200-ddp"]


def training(name: str) -> Spec:
    spec = load_spec(name)
    assert isinstance(spec, Spec)
    return spec


@pytest.mark.parametrize("name", TIGHT)
def test_other_risks_are_as_if_asked_for(name: str) -> None:
    spec = training(name)
    outcome = solve(spec, SAFELY)
    assert [choice.oom_risk for choice in outcome.safety] == [0.01, 0.2]
    for choice in outcome.safety:
        again = solve(
            with_risk(spec, choice.oom_risk), replace(SAFELY, is_safety=False)
        )
        assert choice.is_proven
        assert choice.step_s == (again.best.step_s if again.best else None)
        assert (choice.plan is None) == (again.best is None)
        assert choice.plan is None or not broken_rules(
            make_job(with_risk(spec, choice.oom_risk)), choice.plan
        )


def test_the_risk_asked_for_is_not_told_again() -> None:
    told = solve(with_risk(training(TIGHT[1]), 0.2), SAFELY).safety
    assert [choice.oom_risk for choice in told] == [0.01, 0.05]


def test_a_limit_as_such_has_no_risk_to_choose() -> None:
    spec = training(TIGHT[1])
    limits = spec.limits.model_copy(update={"memory_margin": 0.03})
    outcome = solve(spec.model_copy(update={"limits": limits}), SAFELY)
    assert outcome.best is not None
    assert outcome.safety == ()
    assert outcome.best.fit_probability < 1


def test_what_is_prepared_serves_other_risks() -> None:
    spec = training(TIGHT[0])
    prepared = prepare(make_job(spec))
    for risk in (0.001, 0.3):
        other = with_risk(spec, risk)
        shared = solve(other, Options(is_brief=True), prepared.at_risk(risk))
        afresh = solve(other, Options(is_brief=True))
        assert shared.best == afresh.best


def test_bolder_plans_are_those_at_more_risk_and_say_whether_they_are_proven() -> None:
    spec = training(TIGHT[1])
    outcome = solve(spec, SAFELY)
    safer, bolder = outcome.safety
    assert bolder.step_s is not None
    (change,) = bolder_plans(spec, outcome)
    assert change.change == "oom_risk 0.2"
    assert change.step_s == bolder.step_s
    tokens = spec.training.global_batch * spec.training.seq_len
    assert change.tokens_per_s_per_gpu == pytest.approx(tokens / bolder.step_s / 2)
    assert change.is_proven
    unproven = bolder.model_copy(update={"is_proven": False})
    none_fits = bolder.model_copy(update={"oom_risk": 0.3, "step_s": None})
    choices = (safer, unproven, none_fits)
    other = outcome.model_copy(update={"safety": choices})
    (change,) = bolder_plans(spec, other)
    assert not change.is_proven


@pytest.mark.parametrize("risk", [0.01, 0.05, 0.2, 0.4])
def test_what_is_prepared_has_room_for_the_boldest_risk(risk: float) -> None:
    spec = with_risk(training(TIGHT[0]), risk)
    boldest = max(risk, 0.2)
    assert roomiest_gib(spec) == with_risk(spec, boldest).usable_gib
    limited = spec.having("limits", memory_gib=7.0)
    assert roomiest_gib(limited) == 7.0


def test_an_interrupt_that_comes_after_a_solve_is_heeded() -> None:
    """Whoever asked for it has the outcome that was found so far."""
    options = replace(SAFELY, is_safety=False, interrupt=Interrupt())
    assert not options.interrupt.is_heeded
    solve(training(TIGHT[1]), options)
    assert options.interrupt.is_heeded
