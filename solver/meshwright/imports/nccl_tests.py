"""Logs of nccl-tests and rccl-tests: the tables that they print, and their JSON.

nccl-tests (`-J FILE`) writes one object: `args`, `config.devices`, `results` with both
timings of a size. rccl-tests writes a list of rows, one for each size and placement.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from meshwright.errors import SpecError
from meshwright.imports.registry import LogImporter
from meshwright.imports.text import listed, mapping, mappings, number_in

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
    return ratio.low <= 1.0 <= ratio.high


SIGN = (
    r"\"args\"\s{0,9}:\s{0,9}\[\s{0,9}\"[^\"]{0,400}_perf|\"(?:alg_bw|algBw)\"\s{0,9}:"
)
"""A pattern that the start of either form has."""

HEADING = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong"

_SPLIT = ("gather", "scatter", "alltoall")
"""Words in the names of tests whose buffer has a part for each rank."""


def parse(text: str, name: str, op: str = "", ranks: int = 0) -> NcclLog:
    """Return the content of a log; `op` and `ranks` override what it says.

    Raises:
        SpecError: names file and line of what is no number, or what is missing.
    """
    wanted = _wanted(name, op)
    found = _Found()
    for number, line in enumerate(as_table(text, name).splitlines(), 1):
        _read_line(found, line, f"{name}:{number}")
    test, rows, notes = _choose(found, name, wanted)
    count, more = _ranks(found, name, test, rows, ranks)
    hosts = found.hosts
    return NcclLog(
        name=name,
        op=test,
        ranks=count,
        nodes=len(set(hosts.values())) if len(hosts) == count else None,
        devices=tuple(found.devices),
        rows=tuple(rows),
        average_gb_s=found.average_gb_s,
        notes=(*notes, *more),
    )


def as_table(text: str, name: str) -> str:
    """Return the text itself, or the table of rows that its JSON describes.

    Raises:
        SpecError: the JSON has no results of nccl-tests or rccl-tests.
    """
    if not text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return text
    try:
        data = json.loads(text.lstrip("\ufeff"), parse_int=_size)
    except (ValueError, RecursionError):
        return text  # a log may start with a bracket too
    if isinstance(data, dict) and isinstance(data.get("results"), list):
        return "\n".join(_of_nccl_tests(data))
    rows = data if isinstance(data, list) else [data]
    if rows and all(isinstance(row, dict) and "algBw" in row for row in rows):
        return "\n".join(_of_rccl_tests(rows))
    raise SpecError(f"{name}: JSON without results; expected that of nccl-tests -J")


def _size(digits: str) -> int:
    """Return a whole number; one of absurd length is no size."""
    return int(digits) if len(digits) <= 20 else -1


def _of_nccl_tests(data: Mapping[str, Any]) -> Iterator[str]:
    program = next(iter(listed(data.get("args"))), "")
    yield f"# Collective test starting: {str(program).rpartition('/')[2]}"
    config = data.get("config")
    yield from map(_device, mappings(mapping(config).get("devices")))
    yield HEADING
    for row in mappings(data.get("results")):
        yield _row(row)
    average = mapping(data.get("average_bus_bandwidth")).get("bandwidth")
    if isinstance(average, int | float):
        yield f"# Avg bus bandwidth : {average}"


def _device(device: Mapping[str, Any]) -> str:
    rank, group, pid, host, number = (
        _word(device.get(key)) for key in ("rank", "group", "pid", "hostname", "device")
    )
    info = " ".join(str(device.get("device_info") or "").split())[:200]
    return f"# Rank {rank} Group {group} Pid {pid} on {host} device {number} [0] {info}"


def _row(row: Mapping[str, Any]) -> str:
    size, count, dtype, redop, root = (
        _word(row.get(key)) for key in ("size", "count", "type", "redop", "root")
    )
    head = f"{size} {count} {dtype} {redop or 'none'} {root or '-1'}"
    timings = (_timing_words(row.get(key)) for key in ("out_of_place", "in_place"))
    return " ".join([head, *timings])


def _timing_words(timing: Any) -> str:
    """Return time, algorithm and bus bandwidth and errors, N/A where there are none."""
    if not isinstance(timing, dict):
        return "N/A N/A N/A N/A"
    keys = ("time" if "time" in timing else "cpu_time", "alg_bw", "bus_bw")
    return " ".join(_word(timing.get(key)) or "N/A" for key in keys) + " N/A"


def _of_rccl_tests(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield one line for each size: rows of both placements belong to it."""
    title = None
    sizes: dict[tuple[str, ...], dict[bool, str]] = {}
    for row in rows:
        ranks = next((row[key] for key in ("ranks", "gpus") if row.get(key)), 1)
        test = _word(row.get("name"))
        timing = " ".join(_word(row.get(key)) for key in ("time", "algBw", "busBw"))
        key = (test, _word(row.get("size")), _count(row, test, ranks), *(
            _word(row.get(field)) for field in ("type", "redop")
        ))  # fmt: skip
        sizes.setdefault(key, {})[str(row.get("inPlace")) == "1"] = f"{timing} N/A"
    for (test, size, count, dtype, redop), timings in sizes.items():
        if test != title:
            yield f"# Collective test starting: {test}"
            yield HEADING
            title = test
        first = timings.get(False) or timings[True]
        rest = timings.get(True, "N/A N/A N/A N/A") if False in timings else ""
        yield f"{size} {count} {dtype} {redop or 'none'} -1 {first} {rest}"


def _count(row: Mapping[str, Any], test: str, ranks: Any) -> str:
    """Return the elements that a rank gives or gets: rccl-tests has the bytes alone."""
    size, width = row.get("size"), TYPE_BYTES.get(str(row.get("type")), 1)
    if not str(size).isdigit() or not str(ranks).isdigit():
        return _word(size)
    parts = int(ranks) if any(part in test.lower() for part in _SPLIT) else 1
    return str(int(size or 0) // width // max(parts, 1))


def _word(value: Any) -> str:
    """Return a value as one word of a table."""
    if isinstance(value, dict | list) or value is None:
        return ""
    return "_".join(str(value).split())[:200]


MOST_CHARACTERS = 50_000_000

LEAST_RATIO = 0.49
"""Smallest ratio of bus to algorithm bandwidth: with two ranks it is one half."""

_TITLE = re.compile(r"Collective test starting\s*:\s*(\w{1,40})")
_PROGRAM = re.compile(r"\b(\w{1,40}?_perf)(?:_mpi)?\b")
_RANK = re.compile(
    r"Rank\s{1,9}(\d{1,9})\s{1,9}(?:Group\s{1,9}(\d{1,9})\s{1,9})?"
    r"(?:Pid\s{1,12}\d{1,12}\s{1,9})?on\s{1,99}(\S{1,200})\s{1,9}device\s{1,9}\d{1,9}"
    r"(?:\s{1,9}\[[^\]]{0,99}\]\s{0,9}(.{0,200}))?"
)
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(\S+)")


@dataclass(frozen=True)
class NcclLog:
    """The log of one run of one test."""

    name: str
    op: str
    """all_reduce, all_gather, ...: the test without its _perf."""
    ranks: int
    nodes: int | None
    """Hosts of the listed ranks; None where not all are listed."""
    devices: tuple[str, ...]
    rows: tuple[LogRow, ...]
    """The rows in the order of the log, those of 0 bytes included."""
    average_gb_s: float | None
    notes: tuple[str, ...] = ()

    @property
    def timed(self) -> tuple[LogRow, ...]:
        """Return the rows of sizes above 0."""
        return tuple(row for row in self.rows if row.size_bytes)


@dataclass
class _Found:
    """The content of the lines of a log that were read so far."""

    rows: list[tuple[str | None, str, LogRow]] = field(default_factory=list)
    """Rows, each with the test in the last title, and where its table starts."""
    programs: set[str] = field(default_factory=set)
    hosts: dict[int, str] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    devices: dict[str, None] = field(default_factory=dict)
    average_gb_s: float | None = None
    title: str | None = None
    table: str = ""
    columns: Columns = field(default_factory=Columns)


def _wanted(name: str, op: str) -> str | None:
    known = canonical(op)
    if op and known is None:
        raise SpecError(f"{name}: op: {op!r:.60}: expected {', '.join(OPS)}")
    return known


def _read_line(found: _Found, line: str, where: str) -> None:
    row = read_row(line, where, found.columns)
    if row is not None:
        found.rows.append((found.title, found.table, row))
    elif "algbw" in line and "busbw" in line:
        found.table = where
        found.columns = Columns.of(line)
    else:
        _read_words(found, line, where)


def _read_words(found: _Found, line: str, where: str) -> None:
    if match := _TITLE.search(line):
        found.title = canonical(match[1])
    if match := _RANK.search(line):
        found.hosts[int(match[1])] = match[3]
        found.groups.add(match[2] or "0")
        if device := (match[4] or "").strip():
            found.devices[device] = None
    if match := _AVERAGE.search(line):
        found.average_gb_s = _average(match[1], where)
    found.programs |= {
        known for match in _PROGRAM.finditer(line) if (known := canonical(match[1]))
    }


def _average(word: str, where: str) -> float:
    value = number_in(word)
    if not abs(value) <= LARGEST:
        raise SpecError(f"{where}: average: {word!r:.40}: expected a number, in GB/s")
    return value


def _choose(
    found: _Found, name: str, wanted: str | None
) -> tuple[str, list[LogRow], tuple[str, ...]]:
    """Return the test, its rows, and notes on what was assumed."""
    if not found.rows:
        columns = "size, count, type, ..., time, algbw, busbw"
        raise SpecError(f"{name}: no row of nccl-tests; expected {columns}")
    titles = list(dict.fromkeys(title for title, *_ in found.rows if title))
    if wanted is None and len(titles) > 1:
        raise SpecError(f"{name}: op: several tests; say which: {', '.join(titles)}")
    test = wanted or (titles[0] if titles else None)
    chosen = [one for one in found.rows if one[0] in (None, test) or not test]
    tables = list(dict.fromkeys(where for _, where, _ in chosen))
    if len(tables) > 1:
        raise SpecError(f"{tables[1]}: a second table; expected the log of one run")
    rows = [row for _, _, row in chosen]
    moving = [row for row in rows if row.size_bytes]
    if not moving:
        told = (
            f"the log has {', '.join(titles)}" if titles else "all rows are of size 0"
        )
        raise SpecError(f"{name}: op: {test}: no row moves a byte; {told}")
    if ratio_of(moving).high < LEAST_RATIO:
        raise SpecError(f"{name}: busbw is 0: one rank passes nothing on")
    able = possible_ops(moving)
    if test is None:
        return _infer(found, name, able, rows)
    if wanted and wanted not in able:
        accepted = ", ".join(able) or "no test"
        raise SpecError(f"{name}: op: {test}: the columns are those of {accepted}")
    return test, rows, ()


def _infer(
    found: _Found, name: str, able: list[str], rows: list[LogRow]
) -> tuple[str, list[LogRow], tuple[str, ...]]:
    """Return the test: by the program, by the name of the file, or by the columns."""
    program = next(iter(found.programs)) if len(found.programs) == 1 else None
    for hint in (program, named_in(PurePath(name).name)):
        if hint in able:
            return str(hint), rows, ()
    if len(able) == 1:
        return able[0], rows, ()
    if "all_reduce" in able:
        others = ", ".join(op for op in able if op != "all_reduce")
        note = f"Taken for all_reduce; {others} would print the same columns."
        return "all_reduce", rows, (note,)
    accepted = ", ".join(able or OPS)
    raise SpecError(f"{name}: op: the log does not say; expected one of {accepted}")


def _ranks(
    found: _Found, name: str, op: str, rows: list[LogRow], given: int
) -> tuple[int, tuple[str, ...]]:
    """Return the number of ranks, and notes on what was assumed.

    The list of ranks decides, unless it is cut short or lists several groups that ran
    side by side; then the columns decide.
    """
    able = _able_ranks(op, rows)
    if given:
        return given, _contradicted(given, "given", able)
    last = max(found.hosts, default=-1) + 1
    if last >= 2 and (able is None or last in able):
        return last, ()
    if able and last > able[-1] and len(found.groups) == 1:
        return last, _contradicted(last, "listed", able)
    if able and len(able) == 1:
        return able[0], ()
    told = f"; the columns allow {_spelled(able)}" if able else ""
    raise SpecError(f"{name}: ranks: the log does not say; expected their number{told}")


def _contradicted(ranks: int, how: str, able: range | None) -> tuple[str, ...]:
    if able is None or ranks in able:
        return ()
    told = f"the columns are those of {_spelled(able)}"
    return (f"{ranks} ranks are {how}, but {told}.",)


def _able_ranks(op: str, rows: list[LogRow]) -> range | None:
    """Return the numbers of ranks that the columns allow; None if any number is."""
    parts = {row.parts for row in rows if row.size_bytes and row.parts}
    if op in SPLIT and len(parts) == 1:
        (exact,) = parts
        return range(exact, exact + 1)
    if op in ("broadcast", "reduce", "sendrecv"):
        return None
    return ratio_of([row for row in rows if row.size_bytes]).ranks(op) or None


def _spelled(able: range) -> str:
    return f"{able[0]}" if len(able) == 1 else f"{able[0]} to {able[-1]}"


IMPORTERS = {
    "nccl_tests": LogImporter(
        sign=r"\balgbw\s.{0,80}\bbusbw\b|\bnThread \d|Collective test starting"
        rf"|{SIGN}",
        parse=parse,
        most_characters=MOST_CHARACTERS,
    ),
}
