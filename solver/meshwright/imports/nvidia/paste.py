"""Reads a paste of `nvidia-smi topo -m`: one matrix or several, also reformatted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshwright.errors import SpecError
from meshwright.imports.nvidia.copies import literal_rows, unwrapped, widths
from meshwright.imports.nvidia.matrix import (
    GAPS,
    GPU,
    MatrixHeader,
    MatrixRow,
    as_heading,
    find_header,
    read_rows,
)
from meshwright.imports.nvidia.peer_access import peer_access, without_permissions
from meshwright.imports.text import Line

MOST_WRAPPED = 10_000
"""Lines of a paste whose wrapped ones are joined; 256 rows cut in 30 are 7,680."""

MOST_OTHERS = 64
"""Further matrices of a paste that are looked at."""

_LEGEND = re.compile(r"\s*(?:#\s*)?(NIC\d{1,4}):\s{1,8}([A-Za-z0-9_.:-]{1,60})\s*")


def read_paste(lines: Sequence[Line], name: str) -> dict[str, Any]:
    """Return devices, cells, tails, the legend of the NICs and what is missing.

    Raises:
        SpecError: there is no header or no row, or a cell is of no known kind.
    """
    lines = [piece for line in literal_rows(lines) for piece in _unquoted(line)]
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
        if again and _is_filled(*again) and _cells(again) > _cells(best):
            best = again
    if best is None or _cells(_matrix(lines, name)) >= _cells(best):
        header = find_header(lines, name)
        return header, read_rows(header, lines, name)
    return best


def _matrix(
    lines: Sequence[Line], name: str
) -> tuple[MatrixHeader, dict[str, MatrixRow]] | None:
    """Return the first matrix of lines; None where it is broken."""
    try:
        header = find_header(lines, name)
        return header, read_rows(header, lines, name)
    except SpecError:
        return None


def _cells(matrix: tuple[MatrixHeader, Mapping[str, MatrixRow]] | None) -> int:
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
