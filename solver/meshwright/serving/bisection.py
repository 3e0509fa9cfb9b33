"""Bisection over whole numbers."""

from __future__ import annotations

from collections.abc import Callable


def last_true(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number below `high` for which a condition holds.

    It is taken to hold at `low`, to fail at `high`, and to turn once in between.
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
