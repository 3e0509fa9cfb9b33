"""Logs of nccl-tests and rccl-tests: the tables that they print, and their JSON.

nccl-tests (`-J FILE`) writes one object: `args`, `config.devices`, `results` with both
timings of a size. rccl-tests writes a list of rows, one for each size and placement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from meshwright.errors import SpecError
from meshwright.imports.nccl_rows import (
    LARGEST,
    OPS,
    SPLIT,
    TYPE_BYTES,
    Columns,
    LogRow,
    canonical,
    named_in,
    possible_ops,
    ratio_of,
    read_row,
)
from meshwright.imports.registry import LogImporter
from meshwright.imports.text import listed, mapping, mappings, number_in

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
        data = json.loads(text.lstrip("\ufeff"), parse_int=_number)
    except (ValueError, RecursionError):
        return text  # a log may start with a bracket too
    if isinstance(data, dict) and isinstance(data.get("results"), list):
        return "\n".join(_of_nccl_tests(data))
    rows = data if isinstance(data, list) else [data]
    if rows and all(isinstance(row, dict) and "algBw" in row for row in rows):
        return "\n".join(_of_rccl_tests(rows))
    raise SpecError(f"{name}: JSON without results; expected that of nccl-tests -J")


def _number(digits: str) -> int:
    """Return a whole number; one of absurd length is no size."""
    return int(digits) if len(digits) <= 20 else -1


def _of_nccl_tests(data: Mapping[str, Any]) -> Iterator[str]:
    program = next(iter(listed(data.get("args"))), "")
    yield f"# Collective test starting: {str(program).rpartition('/')[2]}"
    config = data.get("config")
    yield from map(_device, mappings(mapping(config).get("devices")))
    yield HEADING
    for row in mappings(data.get("results")):
        yield _row(row, _timing(row.get("out_of_place")), _timing(row.get("in_place")))
    average = mapping(data.get("average_bus_bandwidth")).get("bandwidth")
    if isinstance(average, int | float):
        yield f"# Avg bus bandwidth : {average}"


def _device(device: Mapping[str, Any]) -> str:
    rank, group, pid, host, number = (
        _word(device.get(key)) for key in ("rank", "group", "pid", "hostname", "device")
    )
    info = " ".join(str(device.get("device_info") or "").split())[:200]
    return f"# Rank {rank} Group {group} Pid {pid} on {host} device {number} [0] {info}"


def _row(row: Mapping[str, Any], out_of_place: str, in_place: str) -> str:
    size, count, dtype, redop, root = (
        _word(row.get(key)) for key in ("size", "count", "type", "redop", "root")
    )
    head = f"{size} {count} {dtype} {redop or 'none'} {root or '-1'}"
    return f"{head} {out_of_place} {in_place}"


def _timing(timing: Any) -> str:
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
