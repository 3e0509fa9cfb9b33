"""Tables and lines, which every report is made of and every renderer knows."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.plans.rule import BrokenRule
from meshwright.results.claims import seconds_text as seconds_text


@dataclass(frozen=True)
class Table:
    """A title, a heading and rows of text."""

    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...] = ()
    """How full what each row is about is; terminals draw bars of it."""


@dataclass(frozen=True)
class Lines:
    """Plain lines under a title."""

    title: str
    lines: tuple[str, ...]


Section = Table | Lines


def short_rule_text(rule: BrokenRule) -> str:
    """Return a broken rule by its numbers, or its sentence where it has none."""
    return f"{rule.rule}{rule.numbers}" if rule.need is not None else rule.sentence


GAP = 2
"""Columns between two columns of a table."""

LEAST_TEXT = 14
"""Columns that a column of sentences must have to be read."""


def wrapped(line: str, width: int) -> list[str]:
    """Return a line in pieces of at most `width` columns; those after it are indented.

    Lines break at blanks; what is longer than a line breaks after commas, slashes and
    equals signs, and where there are none, anywhere.
    """
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    wrapper = textwrap.TextWrapper(
        width=width,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    words = [
        piece
        for word in line.split()
        for piece in (_pieces(word) if len(word) > width - len(indent) - 2 else [word])
    ]
    return wrapper.wrap(" ".join(words))


def _pieces(word: str) -> list[str]:
    """Return the parts of a long word, each with the mark that it ends on."""
    return [piece for piece in re.split(r"(?<=[,/;|])", word) if piece]


def least_widths(table: Table) -> list[int]:
    """Return the columns that the longest word of every column of a table takes."""
    return [
        max(_longest_word(cell) for cell in column)
        for column in zip(table.heading, *table.rows, strict=True)
    ]


def _longest_word(cell: str) -> int:
    longest = max((len(word) for word in cell.split()), default=0)
    return max(longest, min(len(cell), LEAST_TEXT))


def fits(table: Table, width: int) -> bool:
    """Return whether a table fits if its sentences are wrapped."""
    widths = least_widths(table)
    return sum(widths) + GAP * (len(widths) - 1) <= width


def turned(table: Table) -> Table:
    """Return a table with its rows as columns, under their first cells."""
    columns = list(zip(table.heading, *table.rows, strict=True))
    return Table(table.title, columns[0], tuple(columns[1:]))


def records(table: Table, width: int) -> Iterator[str]:
    """Yield a table row by row: the first cell, and the others under it by name.

    A first cell that is a number has the name of its column before it.
    """
    name_width = min(max(map(len, table.heading[1:]), default=0), width // 3)
    for first, *others in table.rows:
        is_number = first.strip("+-")[:1].isdigit()
        title = f"{table.heading[0]} {first}" if is_number else first
        yield from wrapped(title or "-", width)
        for name, cell in zip(table.heading[1:], others, strict=True):
            if cell and cell != "-":
                yield from _record(name, cell, name_width, width)


def _record(name: str, cell: str, name_width: int, width: int) -> Iterator[str]:
    """Yield a cell beside the name of its column."""
    room = width - name_width - 4
    pieces = [piece for line in cell.split("\n") for piece in wrapped(line, room)]
    labels = [*textwrap.wrap(name, name_width), *[""] * len(pieces)]
    labels = labels[: max(len(pieces), len(textwrap.wrap(name, name_width)))]
    pieces += [""] * (len(labels) - len(pieces))
    for label, piece in zip(labels, pieces, strict=True):
        yield f"  {label:<{name_width}}  {piece.strip()}".rstrip()


EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"


def bar(share: float, width: int) -> str:
    """Return a bar of so many columns at most, to the eighth of a column."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (EIGHTHS[rest] if rest else "")


def gauge(share: float, width: int) -> str:
    """Return a bar in a frame of so many columns, its rest dotted."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + "·" * (width - filled)


def curve(values: Sequence[float], most: float) -> str:
    """Return a curve, a column for each value, from zero to `most`."""
    top = len(LEVELS) - 1
    return "".join(
        LEVELS[min(max(round(value / most * top), 0), top)] for value in values
    )
