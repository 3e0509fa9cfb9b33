"""Groups of micro-batches under interleaving, by hand and by the frameworks' rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.plans.schedules import group_sizes
from meshwright.spec.plan_fields import group_size


@pytest.mark.parametrize(
    ("microbatches", "stages", "size"),
    [
        (8, 4, 4), (6, 4, 6), (10, 4, 5), (11, 4, 6), (13, 4, 7), (7, 2, 4), (3, 4, 3),
        (61, 2, 7),
    ],
)  # fmt: skip
def test_sizes_by_hand(microbatches: int, stages: int, size: int) -> None:
    """13 in 4s leaves 1, in 5s 3, in 6s 1; in 7s 6."""
    assert group_size(microbatches, stages) == size


@given(st.integers(1, 300), st.integers(1, 40))
def test_no_group_has_fewer_than_stages_unless_all_have(m: int, p: int) -> None:
    size = group_size(m, p)
    groups = [min(size, m - first) for first in range(0, m, size)]
    assert min(groups) >= min(m, p)
    rounds = max(1, m // p)
    if m % rounds == 0:
        # torch schedules.py: ScheduleInterleaved1F1B
        assert size == m // rounds


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 12)), min_size=1))
def test_columns_have_the_size_of_each_row(pairs: list[tuple[int, int]]) -> None:
    counts, stages = np.array(pairs).T
    told = group_sizes(counts[:, None], stages[:, None])
    assert told[:, 0].tolist() == [group_size(m, p) for m, p in pairs]
