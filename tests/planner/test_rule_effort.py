"""Rules on splits are tested on so many splits; what that leaves open is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import meshwright as mw
from meshwright.deadline import NEVER, Deadline
from meshwright.planner import rule_cuts
from meshwright.planner.options import Options
from meshwright.planner.pipeline import Pipeline, Proof
from meshwright.planner.prove import NO_PLAN
from meshwright.planner.rule_cuts import (
    RuleEffort,
    first_plan_prices,
    prove_within_rules,
)
from meshwright.planner.solve import solve
from meshwright.report.explain import explain_sections
from meshwright.results.outcome import Outcome
from tests.helpers.command import run
from tests.helpers.texts import whole_text

SPEC = """\
model: gpt2-xl
cluster: h100-nvlink-2
framework: megatron
training: {seq_len: 1024, global_batch: 16, precision: bf16, optimizer: adamw}
pins: {pp: 2}
rules:
  - {name: uneven, that: "layers[0] < layers[-1]", because: the head is small}
"""
"""Only splits of the layers tell what the rule asks."""


def ruled() -> mw.Spec:
    return mw.load(SPEC, mw.Spec)


def test_effort_that_is_spent_proves_nothing() -> None:
    """Each split found breaks the rule, and is a tick slower than the one before."""
    pipeline = mock.create_autospec(Pipeline)
    pipeline.without.return_value = pipeline
    found = [Proof("optimal", ((1, 0),), 7 + i, 7.0 + i) for i in range(9)]
    prove = mock.Mock(side_effect=found)
    effort = RuleEffort(left=3)
    proof = prove_within_rules(pipeline, prove, lambda _split: False, effort)
    assert prove.call_count == 3
    assert (proof.status, proof.split, proof.bound) == ("unknown", (), 9.0)
    assert effort.is_spent


def test_effort_that_is_just_enough_is_not_spent() -> None:
    pipeline = mock.create_autospec(Pipeline)
    best = Proof("optimal", ((1, 0),), 7, 7.0)
    effort = RuleEffort(left=1)
    assert (
        prove_within_rules(pipeline, lambda _: best, lambda _split: True, effort)
        == best
    )
    assert not effort.is_spent


def test_the_first_plan_is_looked_for_by_bounds_and_told_by_its_price() -> None:
    """Rows 1 and 2 have less bounds than row 0; the least of all has no plan."""
    found = mock.Mock(
        lower=np.array([3.0, 1.0, 2.0, np.inf]),
        scale=[7, 5, 4, 1],
        unplaced=[30, 31, 32, 33],
    )
    found.take = lambda row: int(row[0])
    asked: list[int] = []

    def prove(row: Any) -> Proof:
        asked.append(row)
        return NO_PLAN if row == 1 else Proof("optimal", ((1, 0),), 10 + row, 0.0)

    assert first_plan_prices(found, 1, prove, NEVER) == {32: 12 * 4}
    assert asked == [1, 2]
    assert first_plan_prices(found, 2, prove, NEVER) == {32: 12 * 4, 30: 10 * 7}
    assert first_plan_prices(found, 1, lambda _: NO_PLAN, NEVER) == {}
    assert first_plan_prices(found, 1, prove, Deadline(0.0)) == {}


def test_effort_is_endless_without_rules_on_splits() -> None:
    spec = mw.load("llama3-8b-2xh100-nvlink", mw.Spec)
    assert RuleEffort.of(spec, is_brief=False) == RuleEffort()


def test_rules_that_are_not_tested_to_the_end_leave_it_undecided() -> None:
    """It was said that no plan fits, although none was looked at."""
    spec = ruled()
    assert solve(spec, Options(is_safety=False)).status == "optimal"
    with mock.patch.object(rule_cuts, "MOST_PROOFS", 0):
        outcome = solve(spec, Options(is_safety=False))
    assert outcome.status == "unknown"
    assert outcome.near_miss is None
    assert "'uneven'" in outcome.left_open
    assert outcome.left_open in whole_text(outcome)
    assert outcome.to_dict()["left_open"] == outcome.left_open
    assert Outcome.from_json(outcome.to_json()).left_open == outcome.left_open


def test_a_conflict_is_not_told_where_it_is_undecided() -> None:
    """Without the rule on tp splits must be tested, for which no effort is left."""
    wide = "  - {name: wide, that: tp == 2, because: it clashes with two stages}\n"
    spec = mw.load(SPEC + wide, mw.Spec)
    with mock.patch.object(rule_cuts, "MOST_BRIEF_PROOFS", 0):
        told = mw.explain(spec)
    assert (told.status, told.is_stopped, told.conflict) == ("infeasible", True, None)
    assert "'uneven'" in told.left_open
    assert told.left_open in str(explain_sections(told))
    assert told.to_dict()["left_open"] == told.left_open


@pytest.mark.parametrize("command", ["solve", "explain"])
def test_commands_that_leave_it_undecided_leave_with_3(
    command: str, tmp_path: Path
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC, encoding="utf-8")
    with mock.patch.object(rule_cuts, "MOST_PROOFS", 0):
        told = run(command, str(path))
    assert told.code == 3, told
    assert "'uneven'" in told.stdout
