"""The table of nccl-tests: its rows, and which tests can have printed them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.errors import SpecError
from meshwright.imports.text import number_in

TYPE_BYTES = {
    "int8": 1, "uint8": 1, "char": 1, "int32": 4, "uint32": 4, "int": 4, "int64": 8,
    "uint64": 8, "half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4,
    "double": 8, "float64": 8, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip

REDUCTIONS = ("sum", "prod", "max", "min", "avg", "mulsum", "all", "none")

_START = re.compile(
    r"(?:^|[\s:>|#\]])(\d{1,16})\s{1,99}(\d{1,16})\s{1,99}"
    rf"({'|'.join(sorted(TYPE_BYTES, key=len, reverse=True))})(?=\s)"
)
_COLOURS = re.compile(r"\x1b\[[\d;]{0,20}[A-Za-z]")
_ROOT = re.compile(r"-1|\d{1,6}")

LARGEST = 1e12
"""Largest time in microseconds (eleven days), and largest bandwidth in GB/s."""

LEAST_US = 1e-3
"""Smallest time above 0: no collective is faster than a nanosecond."""

TIMING = ("time", "algbw", "busbw")
WHOLE = 8
"""Numbers after the root: twice time, algbw, busbw and number of errors."""


@dataclass(frozen=True)
class Timing:
    """Time and bandwidths of one size, out of place or in place."""

    time_us: float
    alg_gb_s: float
    bus_gb_s: float


@dataclass(frozen=True)
class LogRow:
    """One size of a test."""

    size_bytes: int
    """Size of the whole buffer: n times what a rank gives to an all_gather."""
    count: int
    """Elements that one rank gives or gets."""
    dtype: str
    redop: str | None
    """'' where the column is blank or `none`; None where there is no column."""
    root: int | None
    """-1 for no root; None where there is no column."""
    out_of_place: Timing
    in_place: Timing | None

    @property
    def time_s(self) -> float:
        """Return the out-of-place time."""
        return self.out_of_place.time_us * 1e-6

    @property
    def parts(self) -> int | None:
        """Return into how many parts the buffer is split; None where that is open."""
        part = self.count * TYPE_BYTES[self.dtype]
        return self.size_bytes // part if part and self.size_bytes % part == 0 else None

    @property
    def bandwidths(self) -> list[tuple[float, float]]:
        """Return pairs of algorithm and bus bandwidth, GB/s."""
        timings = [t for t in (self.out_of_place, self.in_place) if t is not None]
        return [(timing.alg_gb_s, timing.bus_gb_s) for timing in timings]


@dataclass(frozen=True)
class Columns:
    """The columns of a table, by its heading."""

    has_redop: bool = True
    has_root: bool | None = None
    """None where there is no heading."""
    between: int = 4
    """Words from one timing to the next: its three, the errors, and what versions from
    2.17 on add on single iterations."""

    @classmethod
    def of(cls, heading: str) -> Columns:
        """Return the columns of a heading."""
        words = heading.split()
        places = [i for i, word in enumerate(words) if word == "algbw"]
        between = places[1] - places[0] if len(places) > 1 else cls.between
        return cls("redop" in words, "root" in words, between)


def read_row(line: str, where: str, columns: Columns) -> LogRow | None:
    """Return the row in a line, whatever stands before it; None where there is none.

    Raises:
        SpecError: a column of the row is no number.
    """
    line = _COLOURS.sub("", line).replace("|", " ")
    start = _START.search(line)
    if start is None:
        return None
    words = line[start.end() :].split()
    redop: str | None = "" if columns.has_redop else None
    if words and words[0].lower() in REDUCTIONS:
        redop = words.pop(0).lower().replace("none", "")
    root = _pop_root(words, columns.has_root)
    return LogRow(
        size_bytes=int(start[1]),
        count=int(start[2]),
        dtype=start[3],
        redop=redop,
        root=root,
        out_of_place=_timing(words, where, int(start[1])),
        in_place=_in_place(words[columns.between :], where, int(start[1])),
    )


def _pop_root(words: list[str], has_root: bool | None) -> int | None:
    """Take the root off the words; without a heading, if there is a word too many."""
    is_there = len(words) > WHOLE if has_root is None else has_root
    first = words[0] if words else ""
    if first != "-1" and not (is_there and _ROOT.fullmatch(first)):
        return None
    return int(words.pop(0))


def _in_place(words: list[str], where: str, size_bytes: int) -> Timing | None:
    if len(words) < len(TIMING) or words[0] == "N/A":
        return None
    return _timing(words, where, size_bytes)


def _timing(words: list[str], where: str, size_bytes: int) -> Timing:
    if len(words) < len(TIMING):
        raise SpecError(
            f"{where}: cut off; expected {', '.join(TIMING)} after the type"
        )
    values = [
        _number(name, word, where) for name, word in zip(TIMING, words, strict=False)
    ]
    if size_bytes and values[0] < LEAST_US:
        least = f"expected a number above 0, from {LEAST_US:g} us"
        raise SpecError(f"{where}: time: {words[0]!r:.40}: {least}")
    return Timing(*values)


def _number(name: str, word: str, where: str) -> float:
    value = number_in(word)
    if not 0 <= value <= LARGEST:
        accepted = f"expected a number from 0 to {LARGEST:g}"
        raise SpecError(f"{where}: {name}: {word!r:.40}: {accepted}")
    return value


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
