"""Reads pastes of `nvidia-smi topo -m`: matrices, also reformatted, and permissions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from meshwright.errors import SpecError
from meshwright.imports.machines.facts import MAX_DEVICES, Pair
from meshwright.imports.text import Line, fail, known, shown

CELL = re.compile(r"X|NV\d{1,3}|MX\d{0,3}|ICN\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")
"""A cell: the link of two devices; X stands on the diagonal."""

WIDTH = 80
"""Columns of most terminals that cut longer lines."""

MOST_JOINED = 5_000
"""Characters of a joined line; a row of 256 cells has 2,000."""

_GPU0 = re.compile(r"(?:^|[\s'\"|])GPU0(?:[\s'\"|,]|$)")
_DEVICE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}\d[A-Za-z0-9_.-]{0,39}")
_REST = re.compile(r"[0-9][0-9,\-]{0,400}|N/A|\.\.\.")
_HEAD = re.compile(r"CPU|NUMA|Affinity|GPU|ID|Node")


def read_paste(lines: Sequence[Line], name: str) -> dict[str, Any]:
    """Return devices, cells, tails, the legend of the NICs and what is missing.

    Raises:
        SpecError: there is no header or no row, or a cell is of no known kind.
    """
    links = without_permissions(lines)
    links = links if any(map(as_heading, links)) else [*lines]
    header, rows = _whole_matrix(links, name)
    devices = tuple(d for d in header.devices if d not in GAPS)
    gpus = sorted(filter(GPU.fullmatch, devices), key=lambda gpu: int(gpu[3:]))
    return {
        "gpus": tuple(gpus),
        "nics": tuple(d for d in devices if d not in gpus),
        "cells": {
            (label, column): cell
            for label, row in rows.items()
            for column, cell in row.cells.items()
            if column != label
        },
        "tails": {gpu: rows[gpu].tail for gpu in gpus if gpu in rows},
        "nic_legend": dict(_legend(lines)),
        "rows_missing": tuple(d for d in devices if d not in rows),
        "is_elided": devices != header.devices,
        "are_gpus_elided": not GPU.fullmatch(_before_gap(header)),
        "peer_access": peer_access(lines),
        "others": _others(header, rows, links),
    }


def _whole_matrix(
    lines: Sequence[Line], name: str
) -> tuple[MatrixHeader, dict[str, MatrixRow]]:
    """Return the first matrix; wrapped lines are joined where that gives more cells.

    Raises:
        SpecError: there is none, neither as it stands nor with lines joined.
    """
    best: tuple[MatrixHeader, dict[str, MatrixRow]] | None = None
    for width in widths(lines) if len(lines) <= MOST_WRAPPED else ():
        joined = unwrapped(lines, width)
        again = _matrix(joined, name) if len(joined) < len(lines) else None
        if again and _is_filled(*again) and _count_cells(again) > _count_cells(best):
            best = again
    if best is None or _count_cells(_matrix(lines, name)) >= _count_cells(best):
        header = find_header(lines, name)
        return header, read_rows(header, lines)
    return best


def _matrix(
    lines: Sequence[Line], name: str
) -> tuple[MatrixHeader, dict[str, MatrixRow]] | None:
    """Return the first matrix of lines; None where it is broken."""
    try:
        header = find_header(lines, name)
        return header, read_rows(header, lines)
    except SpecError:
        return None


def _count_cells(matrix: tuple[MatrixHeader, Mapping[str, MatrixRow]] | None) -> int:
    return sum(len(row.cells) for row in matrix[1].values()) if matrix else 0


def _is_filled(header: MatrixHeader, rows: Mapping[str, MatrixRow]) -> bool:
    """Return whether the row of each GPU has a cell for every column."""
    wanted = {d for d in header.devices if d not in GAPS}
    return all(
        label in rows and wanted <= {*rows[label].cells, label}
        for label in wanted
        if GPU.fullmatch(label)
    )


def _before_gap(header: MatrixHeader) -> str:
    """Return the GPU before the first gap if no GPU is behind it, else nothing."""
    gap = next((i for i, d in enumerate(header.devices) if d in GAPS), 0)
    behind = header.devices[gap + 1 :]
    known = [d for d in header.devices[:gap] if GPU.fullmatch(d)]
    is_clear = known and not any(map(GPU.fullmatch, behind))
    return known[-1] if is_clear else ""


def _others(
    header: MatrixHeader, rows: Mapping[str, MatrixRow], lines: Sequence[Line]
) -> tuple[bool, ...]:
    """Return, for each further matrix, whether its links are those of the first."""
    alike: list[bool] = []
    first = {label: row.cells for label, row in rows.items()}
    places = [
        i for i, line in enumerate(lines) if i > header.place and as_heading(line)
    ]
    for place, end in zip(places, [*places[1:], len(lines)], strict=False):
        matrix = _matrix(lines[place:end], "")
        found = {label: row.cells for label, row in matrix[1].items()} if matrix else {}
        if any(found.values()) and len(alike) < MOST_OTHERS:
            alike.append(found == first)
    return tuple(alike)


def _legend(lines: Sequence[Line]) -> Iterator[tuple[str, str]]:
    for line in lines:
        match = _LEGEND.fullmatch(line.text) if len(line.text) < 200 else None
        if match:
            yield match[1], match[2]


def widths(lines: Sequence[Line]) -> tuple[int, ...]:
    """Return the columns at which a terminal may have cut the lines."""
    return (WIDTH, max((len(line.text) for line in lines), default=WIDTH))


def unwrapped(lines: Sequence[Line], width: int) -> list[Line]:
    """Return the lines with those that a narrow terminal cut in two made one again.

    A line that fills the width may be cut inside a word; any other ends with one.
    """
    joined: list[Line] = []
    is_heading = is_row = False
    for line in lines:
        words = line.text.split()
        starts_row = len(words) > 1 and _is_row(words)
        if starts_row or _GPU0.search(line.text):
            is_heading, is_row = not starts_row, starts_row
            joined.append(line)
        elif words and _goes_on(words, is_heading, is_row) and _has_room(joined):
            last = joined[-1]
            is_cut = len(last.text) == width and not last.text.endswith((" ", "\t"))
            joined[-1] = last._replace(text=last.text + " " * (not is_cut) + line.text)
        else:
            is_heading = is_row = False
            joined.append(line)
    return joined


def _has_room(joined: Sequence[Line]) -> bool:
    return bool(joined) and len(joined[-1].text) < MOST_JOINED


def _is_row(words: Sequence[str]) -> bool:
    return _DEVICE.fullmatch(words[0]) is not None and (
        CELL.fullmatch(words[1]) is not None and not CELL.fullmatch(words[0])
    )


def _goes_on(words: Sequence[str], is_heading: bool, is_row: bool) -> bool:
    """Return whether words can be the rest of the heading, or of a row."""
    if is_row:
        return CELL.fullmatch(words[0]) is not None or all(map(_REST.fullmatch, words))
    known = (_DEVICE.fullmatch(w) or _HEAD.search(w) or len(w) < 9 for w in words)
    return is_heading and all(known)


CODES = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})
"""Cells of the matrix: OK, and why not: chipset, GPU, topology, disabled, unknown."""

DENIED = frozenset({"CNS", "GNS", "TNS"})
"""Cells that deny peer access whatever was asked for; NS may be of NVLink alone."""

MOST_COLUMNS = 256

_GPU_NAME = re.compile(r"GPU\d{1,4}")


def peer_access(lines: Sequence[Line]) -> dict[Pair, str]:
    """Return the cell of each pair of GPUs, of the first matrix of permissions."""
    columns: list[str] = []
    cells: dict[Pair, str] = {}
    for words in _permission_words(lines):
        if len(words) > 1 and all(map(_GPU_NAME.fullmatch, words)):
            if cells:
                break
            columns = words if len(set(words)) == len(words) <= MOST_COLUMNS else []
        elif (
            columns and _GPU_NAME.fullmatch(words[0]) and {*words[1:]} <= CODES | {"X"}
        ):
            for column, cell in zip(columns, words[1:], strict=False):
                if column != words[0]:
                    cells[frozenset((words[0], column))] = cell
    return cells


def _permission_words(lines: Sequence[Line]) -> Iterator[list[str]]:
    for line in lines:
        words = line.text[:8_000].replace("|", " ").split()
        if words and len(words) <= MOST_COLUMNS + 1:
            yield words


def without_permissions(lines: Sequence[Line]) -> list[Line]:
    """Return the lines without the rows of permissions and the headings above them."""
    kept: list[Line] = []
    for line in lines:
        words = line.text[:8_000].split()
        codes = {*words[1:]} - {"X"}
        if codes and codes <= CODES and _GPU_NAME.fullmatch(words[0]):
            while kept and not kept[-1].text.strip():
                kept.pop()
            if kept and all(map(_GPU_NAME.fullmatch, kept[-1].text.split())):
                kept.pop()
        else:
            kept.append(line)
    return kept


KNOWN = ("X", "NV<k>", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "MX<k>", "ICN<k>")
"""Old drivers print SOC for SYS; MX and ICN are links of MetaX and of Alibaba."""

GPU = re.compile(r"[GP]PU(\d{1,4})")
_TITLES = re.compile(r"(CPU|NUMA|Node)\s{1,8}Affinity|GPU\s{1,8}NUMA\s{1,8}ID")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
_WORD = re.compile(r"\S+")
GAPS = ("...", "\u2026")
_WRAPPERS = "#*`>|'\"[],"
"""Characters that comments, Markdown and Python put around a word."""


class MatrixHeader(NamedTuple):
    """The columns of a matrix."""

    line: Line
    devices: tuple[str, ...]
    """The columns of devices, with "..." where a copy leaves some out."""
    titles: tuple[str, ...]
    """Titles of the columns behind the cells."""
    columns: tuple[str, ...] = ()
    """Every field of the heading, for a table with pipes."""
    place: int = 0
    """Its index among the lines of the file."""


class MatrixRow(NamedTuple):
    """One row: by column, its cells and the words behind them."""

    label: str
    cells: dict[str, str]
    tail: dict[str, str]


def find_header(lines: Sequence[Line], name: str) -> MatrixHeader:
    """Return the heading of the first matrix.

    Raises:
        SpecError: there is none, or it names a column twice, or too many.
    """
    headers = map(as_heading, lines)
    found = ((place, header) for place, header in enumerate(headers) if header)
    place, header = next(found, (0, None))
    if header is None:
        fail(name, 0, "no header with GPU0; expected the output of nvidia-smi topo -m")
    _check_header(header)
    return header._replace(place=place)


def as_heading(line: Line) -> MatrixHeader | None:
    """Return the columns that a line names, of a table or of blanks; None if none."""
    return _as_table(line) or _as_header(line)


def _check_header(header: MatrixHeader) -> None:
    if len({*header.devices} - {*GAPS}) < sum(d not in GAPS for d in header.devices):
        header.line.fail("a column stands twice in the header")
    if len(header.devices) > MAX_DEVICES:
        header.line.fail(f"expected at most {MAX_DEVICES} columns")


def _as_table(line: Line) -> MatrixHeader | None:
    fields = _fields(line.text)
    devices = tuple(f for f in fields if f in GAPS or _is_device(f))
    if not any(map(GPU.fullmatch, devices)) or any(map(CELL.fullmatch, fields)):
        return None
    fields = [_title(f) if _TITLES.fullmatch(f) else f for f in fields]
    titles = tuple(f for f in fields if _TITLES.fullmatch(f))
    return MatrixHeader(line, devices, titles, tuple(fields))


def _fields(text: str) -> list[str]:
    """Return the fields of a row of a Markdown table; none for other lines."""
    text = text.strip(" \t#")
    if text.count("|") < 3 or len(text) > 20_000:
        return []
    text = text.removeprefix("|").removesuffix("|")
    return [field.strip(" \t*`") for field in text.split("|")]


def _as_header(line: Line) -> MatrixHeader | None:
    words = [(_bare(m[0]), m.end()) for m in _WORD.finditer(line.text)]
    start = next((i for i, (w, _) in enumerate(words) if GPU.fullmatch(w)), None)
    if start is None:
        return None
    stop = start
    while stop < len(words) and (words[stop][0] in GAPS or _is_device(words[stop][0])):
        stop += 1
    rest = line.text[words[stop - 1][1] :]
    titles = tuple(_title(match[0]) for match in _TITLES.finditer(rest))
    if stop < len(words) and not titles:
        return None
    return MatrixHeader(line, tuple(w for w, _ in words[start:stop]), titles)


def _title(text: str) -> str:
    """Return a title with single blanks; MetaX calls the NUMA node a node."""
    return " ".join(text.replace("Node", "NUMA").split())


def _bare(word: str) -> str:
    """Return a word without a prefix such as `path:` and without quotes."""
    return word.rpartition(":")[2].strip(_WRAPPERS)


def _is_device(word: str) -> bool:
    is_name = _NAME.fullmatch(word) is not None and not CELL.fullmatch(word)
    return is_name and any(char.isdigit() for char in word)


def read_rows(header: MatrixHeader, lines: Sequence[Line]) -> dict[str, MatrixRow]:
    """Return the rows below a heading, by their device.

    Raises:
        SpecError: there is none, or a cell is of no known kind.
    """
    rows: dict[str, MatrixRow] = {}
    for line in lines[header.place + 1 :]:
        if _as_header(line) and rows:
            break  # another machine, or another matrix of this one
        row = _table_row(header, line) or _plain_row(header, line)
        if row and row.cells.get(row.label, "X") != "X":
            line.fail(f"{row.label}: expected X in its own column")
        if row:
            rows.setdefault(row.label, row)
    if not rows:
        header.line.fail("a header without rows; expected one per GPU")
    return rows


def _table_row(header: MatrixHeader, line: Line) -> MatrixRow | None:
    fields = _fields(line.text) if header.columns else []
    label = next((f for f in fields if f in header.devices and f not in GAPS), None)
    if label is None or not any(map(CELL.fullmatch, fields)):
        return None
    named = dict(zip(header.columns, fields, strict=False))
    cells = {
        column: _checked(cell, line)
        for column, cell in named.items()
        if column in header.devices and column not in GAPS and cell
    }
    return MatrixRow(label, cells, {t: named.get(t, "") for t in header.titles})


def _plain_row(header: MatrixHeader, line: Line) -> MatrixRow | None:
    if header.columns:
        return None
    words = list(_WORD.finditer(line.text))
    labels = {*header.devices} - {*GAPS}
    start = next((i for i, w in enumerate(words[:4]) if _bare(w[0]) in labels), None)
    if start is None:
        return None
    label, words = _bare(words[start][0]), words[start + 1 :]
    width = len(header.devices)
    if not _looks_like_cells([word[0] for word in words[:width]]):
        return None
    cells, end = _cells(header, words[:width], line)
    return MatrixRow(label, cells, _tail(header.titles, line.text[end:]))


def _looks_like_cells(words: list[str]) -> bool:
    return bool(words) and ("X" in words or CELL.fullmatch(words[0]) is not None)


def _cells(
    header: MatrixHeader, words: list[re.Match[str]], line: Line
) -> tuple[dict[str, str], int]:
    """Return the cells by column, up to where the row is cut, and where they end."""
    cells, end = {}, len(line.text)
    for column, word in zip(header.devices, words, strict=False):
        if column in GAPS:
            continue
        if word[0] in GAPS or word[0][0].isdigit() or word[0] == "N/A":
            break
        cells[column] = _checked(word[0].strip(_WRAPPERS), line)
        end = word.end()
    return cells, end


def _checked(cell: str, line: Line) -> str:
    if not CELL.fullmatch(cell):
        hint = " (of topo -p2p; use topo -m)" if cell in CODES else ""
        line.fail(f"{shown(cell)}: unknown link class{hint}; {known(KNOWN)}")
    return cell


def _tail(titles: tuple[str, ...], text: str) -> dict[str, str]:
    """Return the words behind the cells by title: split at tabs, else at blanks.

    The tool puts one tab too many before the last column, GPU NUMA ID.
    """
    if "\t" in text:
        values = [value.strip() for value in text.split("\t")[1:]]
        if len(values) > len(titles) and titles[-1:] == ("GPU NUMA ID",):
            values = [*values[: len(titles) - 1], values[-1]]
    else:
        values = re.sub(r", {1,4}", ",", text).split()
        if values[:1] == ["N/A"]:  # no CPUs: what is there stands at the end
            values = [""] * (len(titles) - len(values)) + values
    values += [""] * len(titles)
    return dict(zip(titles, values, strict=False))


MOST_WRAPPED = 10_000
"""Lines of a paste whose wrapped ones are joined; 256 rows cut in 30 are 7,680."""

MOST_OTHERS = 64
"""Further matrices of a paste that are looked at."""

_LEGEND = re.compile(r"\s*(?:#\s*)?(NIC\d{1,4}):\s{1,8}([A-Za-z0-9_.:-]{1,60})\s*")
