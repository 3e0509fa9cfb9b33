"""Reads the heading and the rows of a matrix of `nvidia-smi topo -m`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from meshwright.imports.machine_facts import MAX_DEVICES
from meshwright.imports.nvidia.copies import CELL
from meshwright.imports.nvidia.peer_access import CODES
from meshwright.imports.text import Line, fail, known, shown

KNOWN = ("X", "NV<k>", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "MX<k>", "ICN<k>")
"""Old drivers print SOC for SYS; MX and ICN are links of MetaX and of Alibaba."""

GPU = re.compile(r"[GP]PU(\d{1,4})")
_TITLES = re.compile(r"(CPU|NUMA|Node)\s{1,8}Affinity|GPU\s{1,8}NUMA\s{1,8}ID")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
_WORD = re.compile(r"\S+")
GAPS = ("...", "\N{HORIZONTAL ELLIPSIS}")
_WRAPPERS = "#*`>|'\"[],"
"""Characters that comments, Markdown and Python put around a word."""


class MatrixHeader(NamedTuple):
    """The columns of a matrix."""

    line: int
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
    _check_header(header, name)
    return header._replace(place=place)


def as_heading(line: Line) -> MatrixHeader | None:
    """Return the columns that a line names, of a table or of blanks; None if none."""
    return _as_table(line) or _as_header(line)


def _check_header(header: MatrixHeader, name: str) -> None:
    if len({*header.devices} - {*GAPS}) < sum(d not in GAPS for d in header.devices):
        fail(name, header.line, "a column stands twice in the header")
    if len(header.devices) > MAX_DEVICES:
        fail(name, header.line, f"expected at most {MAX_DEVICES} columns")


def _as_table(line: Line) -> MatrixHeader | None:
    fields = _fields(line.text)
    devices = tuple(f for f in fields if f in GAPS or _is_device(f))
    if not any(map(GPU.fullmatch, devices)) or any(map(CELL.fullmatch, fields)):
        return None
    fields = [_title(f) if _TITLES.fullmatch(f) else f for f in fields]
    titles = tuple(f for f in fields if _TITLES.fullmatch(f))
    return MatrixHeader(line.number, devices, titles, tuple(fields))


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
    return MatrixHeader(line.number, tuple(w for w, _ in words[start:stop]), titles)


def _title(text: str) -> str:
    """Return a title with single blanks; MetaX calls the NUMA node a node."""
    return " ".join(text.replace("Node", "NUMA").split())


def _bare(word: str) -> str:
    """Return a word without a prefix such as `path:` and without quotes."""
    return word.rpartition(":")[2].strip(_WRAPPERS)


def _is_device(word: str) -> bool:
    is_name = _NAME.fullmatch(word) is not None and not CELL.fullmatch(word)
    return is_name and any(char.isdigit() for char in word)


def read_rows(
    header: MatrixHeader, lines: Sequence[Line], name: str
) -> dict[str, MatrixRow]:
    """Return the rows below a heading, by their device.

    Raises:
        SpecError: there is none, or a cell is of no known kind.
    """
    rows: dict[str, MatrixRow] = {}
    for line in lines[header.place + 1 :]:
        if _as_header(line) and rows:
            break  # another machine, or another matrix of this one
        row = _table_row(header, line, name) or _plain_row(header, line, name)
        if row:
            rows.setdefault(row.label, row)
    if not rows:
        fail(name, header.line, "a header without rows; expected one per GPU")
    return rows


def _table_row(header: MatrixHeader, line: Line, name: str) -> MatrixRow | None:
    fields = _fields(line.text) if header.columns else []
    label = next((f for f in fields if f in header.devices and f not in GAPS), None)
    if label is None or not any(map(CELL.fullmatch, fields)):
        return None
    named = dict(zip(header.columns, fields, strict=False))
    cells = {
        column: _checked(cell, line, name)
        for column, cell in named.items()
        if column in header.devices and column not in GAPS and cell
    }
    return MatrixRow(label, cells, {t: named.get(t, "") for t in header.titles})


def _plain_row(header: MatrixHeader, line: Line, name: str) -> MatrixRow | None:
    if header.columns:
        return None
    words = list(_WORD.finditer(line.text))
    start = next(
        (i for i, w in enumerate(words[:4]) if _bare(w[0]) in header.devices), None
    )
    if start is None:
        return None
    label, words = _bare(words[start][0]), words[start + 1 :]
    width = len(header.devices)
    if not _looks_like_cells([word[0] for word in words[:width]]):
        return None
    cells, end = _cells(header, words[:width], line, name)
    return MatrixRow(label, cells, _tail(header.titles, line.text[end:]))


def _looks_like_cells(words: list[str]) -> bool:
    return bool(words) and ("X" in words or CELL.fullmatch(words[0]) is not None)


def _cells(
    header: MatrixHeader, words: list[re.Match[str]], line: Line, name: str
) -> tuple[dict[str, str], int]:
    """Return the cells by column, up to where the row is cut, and where they end."""
    cells, end = {}, len(line.text)
    for column, word in zip(header.devices, words, strict=False):
        if column in GAPS:
            continue
        if word[0] in GAPS or word[0][0].isdigit() or word[0] == "N/A":
            break
        cells[column] = _checked(word[0].strip(_WRAPPERS), line, name)
        end = word.end()
    return cells, end


def _checked(cell: str, line: Line, name: str) -> str:
    if not CELL.fullmatch(cell):
        hint = " (of topo -p2p; use topo -m)" if cell in CODES else ""
        sentence = f"{shown(cell)}: unknown link class{hint}; {known(KNOWN)}"
        fail(name, line.number, sentence)
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
