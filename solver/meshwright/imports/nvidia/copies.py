"""Brings copies of a matrix back to lines: Python literals, wrapped lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from meshwright.imports.text import Line

CELL = re.compile(r"X|NV\d{1,3}|MX\d{0,3}|ICN\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")
"""What joins two devices; X stands on the diagonal."""

MOST_LITERAL = 200_000
"""Characters of a Python literal that is read."""

WIDTH = 80
"""Columns of most terminals that cut longer lines."""

MOST_JOINED = 5_000
"""Characters of a joined line; a row of 256 cells has 2,000."""

_GPU0 = re.compile(r"(?:^|[\s'\"|])GPU0(?:[\s'\"|,]|$)")
_DEVICE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}\d[A-Za-z0-9_.-]{0,39}")
_REST = re.compile(r"[0-9][0-9,\-]{0,400}|N/A|\.\.\.")
_HEAD = re.compile(r"CPU|NUMA|Affinity|GPU|ID|Node")


def literal_rows(lines: Sequence[Line]) -> Sequence[Line]:
    """Return the rows of a Python list of rows; the lines themselves if there is none.

    A row is a text, or a list of its fields.
    """
    text = "\n".join(line.text for line in lines).strip()
    start = (
        text.find("[")
        if text.startswith("[") or re.match(r"\w+\s?=\s?\[", text)
        else -1
    )
    if start < 0 or len(text) > MOST_LITERAL or not text.endswith("]"):
        return lines
    try:
        value = ast.literal_eval(text[start:])
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return lines
    return [Line(1, row) for row in _rows(value)] or lines


def _rows(value: object) -> Iterator[str]:
    for row in value if isinstance(value, list) else []:
        if isinstance(row, list | tuple):
            yield "\t".join(str(field).strip() for field in row)
        else:
            yield from str(row).splitlines()


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
            joined[-1] = Line(last.number, last.text + " " * (not is_cut) + line.text)
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
