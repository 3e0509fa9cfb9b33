"""Reads `nvidia-smi topo -p2p r`: whether GPUs may copy to each other directly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from meshwright.imports.machine_facts import Pair
from meshwright.imports.text import Line

CODES = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})
"""Cells of the matrix: OK, and why not: chipset, GPU, topology, disabled, unknown."""

DENIED = frozenset({"CNS", "GNS", "TNS"})
"""Cells that deny peer access whatever was asked for; NS may be of NVLink alone."""

MOST_COLUMNS = 256

_GPU = re.compile(r"GPU\d{1,4}")


def peer_access(lines: Sequence[Line]) -> dict[Pair, str]:
    """Return the cell of each pair of GPUs, of the first matrix of permissions."""
    columns: list[str] = []
    cells: dict[Pair, str] = {}
    for words in _words(lines):
        if len(words) > 1 and all(map(_GPU.fullmatch, words)):
            if cells:
                break
            columns = words if len(set(words)) == len(words) <= MOST_COLUMNS else []
        elif columns and _GPU.fullmatch(words[0]) and {*words[1:]} <= CODES | {"X"}:
            for column, cell in zip(columns, words[1:], strict=False):
                if column != words[0]:
                    cells[frozenset((words[0], column))] = cell
    return cells


def _words(lines: Sequence[Line]) -> Iterator[list[str]]:
    for line in lines:
        words = line.text[:8_000].replace("|", " ").split()
        if words and len(words) <= MOST_COLUMNS + 1:
            yield words


def without_permissions(lines: Sequence[Line]) -> list[Line]:
    """Return the lines without the rows of permissions and the headings above them."""
    kept: list[Line] = []
    for line in lines:
        words = line.text[:8_000].split()
        if len(words) > 1 and _GPU.fullmatch(words[0]) and _are_permissions(words[1:]):
            while kept and not kept[-1].text.strip():
                kept.pop()
            if kept and all(map(_GPU.fullmatch, kept[-1].text.split())):
                kept.pop()
        else:
            kept.append(line)
    return kept


def _are_permissions(cells: Sequence[str]) -> bool:
    return {*cells} <= CODES | {"X"} and not {*cells} <= {"X"}
