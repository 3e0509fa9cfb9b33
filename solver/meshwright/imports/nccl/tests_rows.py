"""One row of the table of nccl-tests: size, count, type, redop, root, two timings."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from meshwright.errors import SpecError

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
    """What the heading of a table says of the words of its rows."""

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
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 <= value <= LARGEST:
        accepted = f"expected a number from 0 to {LARGEST:g}"
        raise SpecError(f"{where}: {name}: {word!r:.40}: {accepted}")
    return value
