"""The tests of nccl-tests, and which of them can have printed a table of rows.

Bus bandwidth is algorithm bandwidth times a factor that depends on the test and the
number of ranks (nccl-tests, doc/PERFORMANCE.md). Both are printed to two decimals, so
that their ratio gives the ranks of an all_reduce unless there are hundreds. Tests that
split their buffer print the elements of one part, which gives their ranks exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.imports.nccl.tests_rows import LogRow

OPS = (
    "all_reduce", "all_gather", "reduce_scatter", "alltoall", "gather", "scatter",
    "broadcast", "reduce", "sendrecv",
)  # fmt: skip
SPLIT = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
ROOTED = ("gather", "scatter", "broadcast", "reduce")

MOST_RANKS = 1_000_000
ROUNDING = 0.0051
"""Largest rounding error of bandwidths that are printed with two decimals."""


def bus_factor(op: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in SPLIT else 1.0


def canonical(name: str) -> str | None:
    """Return the test that a name such as 'AllReduce' or 'all_reduce_perf' means."""
    folded = name.lower().partition("_perf")[0]
    folded = "".join(c for c in folded if c.isalpha())
    return next((op for op in OPS if op.replace("_", "") == folded), None)


def named_in(title: str) -> str | None:
    """Return the test in the name of a file, if it has exactly one."""
    folded = "".join(c for c in title.lower() if c.isalpha())
    found = [op for op in OPS if op.replace("_", "") in folded]
    longest = [a for a in found if not any(_is_within(a, b) for b in found)]
    return longest[0] if len(longest) == 1 else None


def _is_within(short: str, long: str) -> bool:
    return short != long and short.replace("_", "") in long.replace("_", "")


@dataclass(frozen=True)
class Interval:
    """The ratios of bus to algorithm bandwidth that all rows allow."""

    low: float
    high: float

    def holds(self, ratio: float) -> bool:
        """Return whether a ratio is allowed."""
        return self.low <= ratio <= self.high

    def ranks(self, op: str) -> range:
        """Return the numbers of ranks that the ratio allows, two or more."""
        whole = 2.0 if op == "all_reduce" else 1.0
        least = 2 if self.low <= 0 else _inverse(whole, self.low)
        most = MOST_RANKS if self.high >= whole else _inverse(whole, self.high)
        slack = 1e-9
        first = math.ceil(min(least, MOST_RANKS + 1) - slack)
        return range(max(2, first), min(MOST_RANKS, int(most + slack)) + 1)


def _inverse(whole: float, ratio: float) -> float:
    """Return the ranks n whose factor, whole x (n - 1) / n, is this ratio."""
    return whole / (whole - ratio) if ratio < whole else math.inf


def ratio_of(rows: Sequence[LogRow]) -> Interval:
    """Return the ratios that agree with the two printed decimals of all rows."""
    low, high = 0.0, math.inf
    for alg, bus in (pair for row in rows for pair in row.bandwidths):
        if alg > 2 * ROUNDING:
            low = max(low, (bus - ROUNDING) / (alg + ROUNDING))
            high = min(high, (bus + ROUNDING) / (alg - ROUNDING))
    return Interval(low, high)


def possible_ops(rows: Sequence[LogRow]) -> list[str]:
    """Return the tests that can have printed these rows."""
    ratio = ratio_of(rows)
    return [op for op in OPS if all(_fits(op, r) for r in rows) and _pays(op, ratio)]


def _fits(op: str, row: LogRow) -> bool:
    if row.parts is not None and (row.parts > 1) != (op in SPLIT):
        return False
    if row.root is not None and (row.root >= 0) != (op in ROOTED):
        return False
    is_free = row.redop is None or op == "sendrecv"
    return is_free or bool(row.redop) == (op in REDUCING)


def _pays(op: str, ratio: Interval) -> bool:
    if op == "all_reduce" or op in SPLIT:
        return ratio.low >= ratio.high or len(ratio.ranks(op)) > 0
    return ratio.holds(1.0)
