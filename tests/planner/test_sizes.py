"""Amounts that stand for no end, and how much is tried, are as large as is said."""

from __future__ import annotations

import pytest

from meshwright.planner import best_split, nearest_miss, rule_cuts, stages
from meshwright.planner.integer_costs import (
    CHUNK_BYTES,
    MOST_CHUNKS,
    MOST_TICKS,
    TICK_S,
)
from meshwright.planner.model import ENDLESS_TICKS
from meshwright.planner.pipeline import LARGEST_HORIZON, LARGEST_OBJECTIVE

DAY_S = 86_400

INT_64 = 2**63 - 1


@pytest.mark.parametrize(
    ("ticks", "days"),
    [(LARGEST_HORIZON, 3.26), (ENDLESS_TICKS, 13.03), (MOST_TICKS, 13.03)],
)
def test_no_step_takes_days(ticks: float, days: float) -> None:
    assert ticks * TICK_S / DAY_S == pytest.approx(days, abs=0.01)


def test_no_gpu_has_64_tib_and_no_host_an_endless_number_of_chunks() -> None:
    assert MOST_CHUNKS * CHUNK_BYTES == 64 * 2**40
    assert stages.ENDLESS_CHUNKS == 2**14 * MOST_CHUNKS


def test_sums_of_what_has_no_end_fit_into_64_bits() -> None:
    """Two of them do, and one with any number of steps that are known."""
    assert best_split.ENDLESS == LARGEST_OBJECTIVE
    assert 4 * best_split.ENDLESS < INT_64 < 8 * best_split.ENDLESS
    assert best_split.ENDLESS == 2**12 * LARGEST_HORIZON


def test_capacities_are_halved_in_whole_rounds_up_to_all_that_gpus_may_have() -> None:
    bits = nearest_miss.CAPACITY_BITS
    assert nearest_miss.BISECTIONS % bits == 0
    assert bits > 1
    assert 2**nearest_miss.BISECTIONS == 2**12 * MOST_CHUNKS
    # Of few rows all capacities of a round, 63 of each, are looked at as one.
    assert nearest_miss.FEW_ROWS * (2**bits - 1) == 1_008


def test_answers_test_rules_on_eight_times_the_splits_of_brief_ones() -> None:
    assert rule_cuts.MOST_PROOFS == 8 * rule_cuts.MOST_BRIEF_PROOFS == 256
