"""What the user looks at: how wide it is, and whether it shows colours."""

from __future__ import annotations

import os
import re
from typing import NamedTuple, TextIO

LEAST = 40
"""Columns below which nothing can be laid out."""

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Screen(NamedTuple):
    """Columns, None for files and pipes; and whether there are colours."""

    width: int | None
    is_coloured: bool


def screen(stream: TextIO) -> Screen:
    """Return what a stream is shown on.

    `COLUMNS` goes before the size of the terminal. `NO_COLOR` (no-color.org) and
    `TERM=dumb` turn colours off.
    """
    is_terminal = stream.isatty()
    asked = os.environ.get("COLUMNS", "")
    width = int(asked) if asked.isdecimal() and int(asked) > 0 else None
    if width is None and is_terminal:
        width = _columns(stream)
    from meshwright.report.render import WIDTH

    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if width is not None:
        width = min(max(width, LEAST), WIDTH)
    return Screen(width, is_terminal and not plain)


def _columns(stream: TextIO) -> int | None:
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def without_colour(text: str) -> str:
    """Return text without the codes that colour it: files have none."""
    return COLOUR.sub("", text)
