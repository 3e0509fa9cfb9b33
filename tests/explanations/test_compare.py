"""Plans side by side, and the values at which their order turns."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.cost.profile import Profile
from meshwright.economics.ledger import ledger
from meshwright.explanations.compare import (
    SolvedPlans,
    compare,
    compare_kinds,
    find_crossovers,
    in_full,
    with_ledger,
)
from meshwright.loading.plan_text import read_plan
from meshwright.loading.vary import vary
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.report.compare import MOST_COLUMNS
from meshwright.results.comparison import Comparison, Ledger
from meshwright.results.explanation import Explanation
from meshwright.spec.spec import Spec
from tests.helpers.command import run

SPEC = "gpt-1.3b-2xa100-pcie"

PLANS = [(text, read_plan(text)) for text in ("tp=2", "pp=2")]


def order(spec: Spec) -> list[str]:
    found = compare(spec, PLANS, solve).plans
    return [one.name for one in found if one.plan]


def test_plans_come_fastest_first_with_their_own_times() -> None:
    spec = mw.load(SPEC, mw.Spec)
    found = compare(spec, PLANS, solve)
    for plan in found.plans:
        assert plan.plan is not None
        alone = solve(mw.load(SPEC, mw.Spec, pins=[plan.name])).best
        assert alone is not None
        assert plan.plan.step_s == alone.step_s
    steps = [plan.plan.step_s for plan in found.plans if plan.plan]
    assert steps == sorted(steps)


def test_a_plan_that_does_not_fit_comes_last() -> None:
    found = compare(mw.load("llama3-8b-2x4090-pcie", mw.Spec), PLANS, solve)
    assert [plan.plan for plan in found.plans] == [None, None]


def test_a_plan_that_does_not_fit_tells_why_below_those_that_do() -> None:
    """Without recomputation 64 sequences at once save more than a GPU has."""
    spec = mw.load(SPEC, mw.Spec)
    words = (
        "tp=2,micro_batch=64,recompute=none",
        "pp=2,micro_batch=1",
        "tp=2,micro_batch=1",
    )
    found = compare(spec, [(text, read_plan(text)) for text in words], solve).plans
    *fitting, last = found
    assert (last.name, last.plan) == (words[0], None)
    assert [rule.rule for rule in last.broken_rules] == ["memory"]
    steps = [one.plan.step_s for one in fitting if one.plan]
    assert len(steps) == 2
    assert steps == sorted(steps)
    for one in fitting:
        assert (one.broken_rules, one.cluster) == ((), spec.cluster)
    whole = in_full(spec, Comparison(title="all", plans=found), Profile())
    assert whole.plans[-1] == last
    assert all(one.holdings and one.collectives for one in whole.plans[:-1])


def test_where_no_kind_fits_the_nearest_plan_of_any_kind_stands_for_all() -> None:
    spec = mw.load(SPEC, mw.Spec).having("limits", memory_gib=1.0)
    outcome = solve(spec, Options(is_by_kind=True))
    (found,) = compare_kinds(spec, outcome).plans
    assert (found.name, found.plan) == ("any plan", None)
    assert outcome.near_miss is not None
    assert found.broken_rules == outcome.near_miss.broken_rules
    assert "memory" in {rule.rule for rule in found.broken_rules}


def test_collectives_are_those_of_the_plan_or_else_of_the_one_that_comes_closest() -> (
    None
):
    spec = mw.load(SPEC, mw.Spec)
    best = solve(spec, Options(is_brief=True)).best
    assert best is not None
    fields = {"title": spec.title, "status": "optimal", "fits": True}
    bare = Explanation.model_validate(fields | {"cluster": spec.cluster})
    expected = ledger(Profile().job(spec), best.plan)
    assert expected.stages
    for update, told in (
        ({"plan": best}, expected),
        ({"nearest": best.plan}, expected),
        ({}, Ledger(stages=())),
        ({"plan": best, "cluster": None}, Ledger(stages=())),
    ):
        changed = bare.model_copy(update=update)
        assert with_ledger(spec, changed, Profile()).collectives == told


def test_tensor_parallelism_wins_on_wide_links_alone() -> None:
    """Where the turn is told, the order is another one a percent to either side."""
    varied = vary(SPEC, "cluster.topology.levels[0].gb_s=5:2000")
    found = find_crossovers(
        SolvedPlans(varied.at, PLANS, solve), varied.low, varied.high
    )
    for flip in found:
        assert order(varied.at(flip.at * 1.0001)) == list(flip.after)
        assert order(varied.at(flip.at / 1.02)) == list(flip.before)
    assert order(varied.at(5.0)) == ["pp=2", "tp=2"]
    is_turned = order(varied.at(2000.0)) != ["pp=2", "tp=2"]
    assert len(found) % 2 == is_turned


def test_kinds_are_compared_where_no_plan_is_given() -> None:
    spec = mw.load(SPEC, mw.Spec)
    outcome = solve(spec, Options(is_by_kind=True))
    names = [plan.name for plan in compare_kinds(spec, outcome).plans]
    assert set(names) == {"TP", "PP", "DP/ZeRO", "CP"}


def test_compare_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    plans = ["--plan", "tp=2", "--plan", "pp=2"]
    varied = ["--vary", "training.global_batch=8:64"]
    arguments = [*plans, *varied, "--format", "json", "-o", str(path)]
    result = run("compare", SPEC, *arguments)
    assert result.code == 0
    data: dict[str, Any] = json.loads(path.read_text())
    assert {one["name"] for one in data["plans"]} == {"tp=2", "pp=2"}
    assert data["vary"] == "training.global_batch"
    table = run("compare", SPEC, *plans).stdout
    assert "Side by side, the fastest first" in table


def test_one_plan_is_called_the_only_one() -> None:
    alone = run("compare", SPEC, "--plan", "tp=2").stdout.splitlines()[1]
    assert re.fullmatch(r"  tp=2 takes [\d.]+ s a step; it is the only plan\.", alone)


def test_many_plans_have_a_row_each() -> None:
    asked = ["--model", "llama3-8b", "--cluster", "8xH100", "--batch", "64"]
    table = run("compare", *asked).stdout.split("Side by side, the fastest first\n")[1]
    heading, _, *rows = table.splitlines()
    assert heading.split()[:6] == ["plan", "step", "loses", "MFU", "GiB", "fits"]
    assert len(rows) > MOST_COLUMNS
    assert " wins " in rows[0]
    assert any(re.search(r" \+[\d.]+% .* bubble ", row) for row in rows)


def test_whole_numbers_stay_whole_and_units_are_replaced() -> None:
    assert vary(SPEC, "training.seq_len=512:1024").at(700.4).training.seq_len == 700
    assert vary(SPEC, "training.seq_len=2k:32k")[1:3] == (2048, 32768)
    pod = vary("llama3-70b-128xa100", "topology.scale_out.gb_s=1:100").at(12.5)
    assert pod.cluster.levels[-1].gb_s == 12.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training.seq_len", "expected PATH=LOW:HIGH with 0 < LOW < HIGH"),
        ("training.seq_len=8:2", "expected PATH=LOW:HIGH with 0 < LOW < HIGH"),
        ("training.seq_len=a:b", "expected PATH=LOW:HIGH with 0 < LOW < HIGH"),
        ("training.nothing=1:2", "no number of the spec is at 'training.nothing'"),
        ("topology.levels[9].gb_s=1:2", "no number of the spec is at 'topology.le"),
        ("training.optimizer=1:2", "no number of the spec is at 'training.optimizer'"),
        ("a b=1:2", "expected a path such as training.seq_len"),
    ],
)
def test_wrong_ranges_are_named(text: str, expected: str) -> None:
    result = run("compare", SPEC, "--plan", "tp=2", "--vary", text)
    assert result.code == 2
    assert result.stderr.startswith(f"error: --vary {text}: {expected}")
