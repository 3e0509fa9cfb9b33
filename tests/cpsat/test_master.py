"""The master of named decisions, alone and with its cuts, against plain loops."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cpsat.cuts import SplitProofs, prove_fastest
from meshwright.cpsat.decisions import DecisionTable
from meshwright.cpsat.master import Master
from meshwright.cpsat.problem import Proof
from meshwright.deadline import NEVER, Deadline
from tests.helpers.proof_in_turn import prove_in_turn

NAMES = ("tp", "pp", "zero")


def table(seed: int, count: int) -> DecisionTable:
    random = Random(seed)
    values = [[random.choice((1, 2, 4, 8)) for _ in NAMES] for _ in range(count)]
    least = [random.randint(10, 14) for _ in range(count)]
    return DecisionTable(NAMES, np.array(values), np.array(least))


def proofs(rows: DecisionTable, seed: int) -> list[Proof]:
    """Return what a split of each row takes: a little more than its bound, or none."""
    random, result = Random(seed), []
    for least in rows.least_ticks.tolist():
        ticks = least + random.choice((0, 0, 1, 3))
        is_open = random.random() < 0.1
        proof = Proof("optimal", 0, ((1, 0),), ticks, ticks)
        if random.random() < 0.2:
            proof = Proof("infeasible", -1, (), 0, np.inf)
        elif is_open:
            proof = Proof("feasible", 0, ((1, 0),), ticks, least)
        result.append(proof)
    return result


def test_a_choice_follows_a_constraint_on_decisions() -> None:
    rows = table(3, 60)
    master = Master(rows)
    master.model.add(master["tp"] * 2 <= master["pp"])
    master.model.add(master["zero"] != 1)
    row = master.fastest()
    values = dict(zip(NAMES, rows.values.T, strict=True))
    allowed = (values["tp"] * 2 <= values["pp"]) & (values["zero"] != 1)
    assert allowed.any()
    expected = np.flatnonzero(allowed)[rows.least_ticks[allowed].argmin()]
    assert row == expected


def test_no_row_is_chosen_where_all_are_left_out() -> None:
    master = Master(table(1, 4))
    master.leave_out(range(4))
    assert master.fastest() is None


def test_columns_decide_in_their_order_and_then_the_table() -> None:
    rows = table(5, 40)
    first, second = rows.column("tp"), rows.least_ticks
    expected = min(range(40), key=lambda row: (first[row], second[row], row))
    assert Master(rows).first_by(first, second) == expected


@given(st.integers(0, 2**32), st.integers(1, 12), st.booleans())
def test_cuts_prove_what_the_proof_in_turn_proves(
    seed: int, count: int, is_late: bool
) -> None:
    rows = table(seed, count)
    known = proofs(rows, seed + 1)
    upper = rows.least_ticks + 3
    deadline = Deadline(0.0) if is_late else NEVER
    asked: list[int] = []

    def prove_row(row: int) -> Proof:
        asked.append(row)
        return known[row]

    splits = SplitProofs(Master(rows), prove_row)
    own = prove_fastest(splits, upper, deadline)
    in_turn = prove_in_turn(
        rows.least_ticks.astype(float),
        upper.astype(float),
        lambda row: known[row],
        lambda proof: proof,
        deadline,
    )
    assert (own.status, own.skeleton, own.ticks) == (
        in_turn.status,
        in_turn.skeleton,
        in_turn.ticks,
    )
    assert own.bound == pytest.approx(in_turn.bound)
    assert len(set(asked)) == len(asked)
