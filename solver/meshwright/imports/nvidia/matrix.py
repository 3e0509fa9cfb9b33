"""Reads the matrix of `nvidia-smi topo -m`, also from reformatted copies of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from meshwright.imports.machine_facts import MAX_DEVICES
from meshwright.imports.text import Line, fail, known, shown

KNOWN = ("X", "NV<k>", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "MX<k>", "ICN<k>")
"""Old drivers print SOC for SYS; MX and ICN are links of MetaX and of Alibaba."""

P2P = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})
"""Cells of `nvidia-smi topo -p2p`, which prints permissions, not links."""

_CELL = re.compile(r"X|NV\d{1,3}|MX\d{0,3}|ICN\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")
_GPU = re.compile(r"[GP]PU(\d{1,4})")
_TITLES = re.compile(r"(CPU|NUMA|Node)\s{1,8}Affinity|GPU\s{1,8}NUMA\s{1,8}ID")
_LEGEND = re.compile(r"\s*(?:#\s*)?(NIC\d{1,4}):\s{1,8}([A-Za-z0-9_.:-]{1,60})\s*")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
_WORD = re.compile(r"\S+")
_GAPS = ("...", "\N{HORIZONTAL ELLIPSIS}")
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


def read_matrix(lines: Sequence[Line], name: str) -> dict[str, Any]:
    """Return devices, cells, tails, the legend of the NICs and what is missing.

    Raises:
        SpecError: there is no header or no row, or a cell is of no known kind.
    """
    lines = [piece for line in lines for piece in _unquoted(line)]
    header = _find_header(lines, name)
    devices = tuple(d for d in header.devices if d not in _GAPS)
    rows = _read_rows(header, lines, name)
    gpus = sorted(filter(_GPU.fullmatch, devices), key=lambda gpu: int(gpu[3:]))
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
    }


def _unquoted(line: Line) -> Iterator[Line]:
    """Yield the lines that a Python literal of the text spells with backslashes."""
    if "\\t" not in line.text and "\\n" not in line.text:
        yield line
        return
    for piece in line.text.replace("\\t", "\t").replace("\\n", "\n").split("\n"):
        yield Line(line.number, piece.strip(" ,'\"[]"))


def _legend(lines: Sequence[Line]) -> Iterator[tuple[str, str]]:
    for line in lines:
        match = _LEGEND.fullmatch(line.text) if len(line.text) < 200 else None
        if match:
            yield match[1], match[2]


def _find_header(lines: Sequence[Line], name: str) -> MatrixHeader:
    headers = (_as_table(line) or _as_header(line) for line in lines)
    found = ((place, header) for place, header in enumerate(headers) if header)
    place, header = next(found, (0, None))
    if header is None:
        fail(name, 0, "no header with GPU0; expected the output of nvidia-smi topo -m")
    _check_header(header, name)
    return header._replace(place=place)


def _check_header(header: MatrixHeader, name: str) -> None:
    if len({*header.devices} - {*_GAPS}) < sum(d not in _GAPS for d in header.devices):
        fail(name, header.line, "a column stands twice in the header")
    if len(header.devices) > MAX_DEVICES:
        fail(name, header.line, f"expected at most {MAX_DEVICES} columns")


def _as_table(line: Line) -> MatrixHeader | None:
    fields = _fields(line.text)
    devices = tuple(f for f in fields if f in _GAPS or _is_device(f))
    if not any(map(_GPU.fullmatch, devices)) or any(map(_CELL.fullmatch, fields)):
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
    start = next((i for i, (w, _) in enumerate(words) if _GPU.fullmatch(w)), None)
    if start is None:
        return None
    stop = start
    while stop < len(words) and (words[stop][0] in _GAPS or _is_device(words[stop][0])):
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
    is_name = _NAME.fullmatch(word) is not None and not _CELL.fullmatch(word)
    return is_name and any(char.isdigit() for char in word)


def _read_rows(
    header: MatrixHeader, lines: Sequence[Line], name: str
) -> dict[str, MatrixRow]:
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
    label = next((f for f in fields if f in header.devices and f not in _GAPS), None)
    if label is None or not any(map(_CELL.fullmatch, fields)):
        return None
    named = dict(zip(header.columns, fields, strict=False))
    cells = {
        column: _checked(cell, line, name)
        for column, cell in named.items()
        if column in header.devices and column not in _GAPS and cell
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
    return bool(words) and ("X" in words or _CELL.fullmatch(words[0]) is not None)


def _cells(
    header: MatrixHeader, words: list[re.Match[str]], line: Line, name: str
) -> tuple[dict[str, str], int]:
    """Return the cells by column, up to where the row is cut, and where they end."""
    cells, end = {}, len(line.text)
    for column, word in zip(header.devices, words, strict=False):
        if word[0] in _GAPS and column in _GAPS:
            continue
        if word[0] in _GAPS or word[0][0].isdigit() or word[0] == "N/A":
            break
        cells[column] = _checked(word[0].strip(_WRAPPERS), line, name)
        end = word.end()
    return cells, end


def _checked(cell: str, line: Line, name: str) -> str:
    if not _CELL.fullmatch(cell):
        hint = " (of topo -p2p; use topo -m)" if cell in P2P else ""
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
