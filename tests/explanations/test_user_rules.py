"""Rules of the user in conflicts, repairs, slack and prices."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.check.check import broken_rules
from meshwright.cost.job import make_job
from meshwright.explanations.decisions import user_rule, without_decisions
from meshwright.results.explanation import Explanation
from meshwright.spec.spec import Spec

SPEC = "llama3-8b-2xh100-nvlink"
CONVERTER = {"name": "converter", "that": "tp == 2", "because": "our converter"}


def spec(*rules: object) -> Spec:
    return mw.load(SPEC, mw.Spec, rules=rules)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def bound() -> Explanation:
    return mw.explain(spec(CONVERTER, "max(memory_gib) <= 75 or zero >= 1"))


def test_the_price_of_a_rule_is_a_marginal_value(bound: Explanation) -> None:
    free = mw.solve(mw.load(SPEC, mw.Spec), by_kind=False)
    assert free.best is not None
    assert bound.plan is not None
    prices = {change.change: change.step_s for change in bound.marginal_values}
    assert prices["without rules.converter"] == pytest.approx(free.best.step_s)
    assert bound.plan.step_s > free.best.step_s
    assert [one.change for one in bound.binding] == [
        "rules.converter (tp == 2; our converter)"
    ]


def test_slack_has_the_two_sides_of_a_rule() -> None:
    told = mw.explain(spec("max(memory_gib) <= 75"))
    (found,) = [one for one in told.slack if one.rule == "rules.rule_1"]
    assert told.plan is not None
    assert (found.have, found.unit) == (75, "GiB")
    assert found.need == pytest.approx(told.plan.peak_gib)


@pytest.mark.parametrize(
    ("rules", "conflict"),
    [
        (["tp == 2", "cp == 2"], {"rules.rule_1", "rules.rule_2"}),
        (["tp > 64"], {"rules.rule_1"}),
        (["max(memory_gib) <= 3"], {"rules.rule_1"}),
        (["step_s < 0.001", "tp == 1"], {"rules.rule_1"}),
    ],
)
def test_conflicts_and_repairs_name_rules(rules: list[str], conflict: set[str]) -> None:
    asked = spec(*rules)
    told = mw.explain(asked, profile="unfitted")
    assert told.status == "infeasible"
    assert told.conflict is not None
    assert {rule.rule for rule in told.conflict.rules} == conflict
    dropped = [one for one in told.repairs if one.edits[0].startswith("rules.")]
    assert {one.edits[0].partition(":")[0] for one in dropped} == conflict
    for repair in dropped:
        assert repair.edits[0].endswith(" -> null")
        name = repair.edits[0].partition(":")[0]
        freed = without_decisions(asked, [name])
        names = {
            broken_rule.rule
            for broken_rule in broken_rules(make_job(freed), repair.plan)
        }
        # The profile has another spread of memory than a bare job.
        assert names <= {"memory"}
        best = mw.solve(freed, profile="unfitted", fastest=True).best
        assert best is not None
        assert repair.step_s == best.step_s


def test_a_plan_that_breaks_a_rule_is_told_by_name() -> None:
    told = mw.explain(spec(CONVERTER), "tp=1")
    (broken,) = [
        broken_rule
        for broken_rule in told.broken_rules
        if broken_rule.rule == "rules.converter"
    ]
    assert broken.sentence == "tp == 2; our converter"
    assert broken.arithmetic == "tp 1"
    assert broken.compared == ("tp",)


def test_a_decision_is_the_rule_of_its_name() -> None:
    found = spec(CONVERTER, {"name": "few", "that": "pp == 1"})
    names = "few", "converter"
    rules = [user_rule(found, f"rules.{name}").that for name in names]
    assert rules == ["pp == 1", "tp == 2"]
