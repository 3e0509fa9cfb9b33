"""Tables and lines, which every report is made of, as aligned text and as markdown."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.escape import in_markdown, printable
from meshwright.plans.rule import BrokenRule
from meshwright.results.claims import seconds_text as seconds_text


@dataclass(frozen=True)
class Table:
    """A title, a heading and rows of text."""

    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...] = ()
    """By row, the share of its memory that is used; terminals draw it as a bar."""


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

WIDTH = 120
"""Columns of tables in files and pipes: what a wide terminal shows."""

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


def sections_as_text(
    parts: list[Section], width: int | None = None, is_coloured: bool = False
) -> str:
    """Return sections as aligned tables.

    Args:
        parts: The sections.
        width: Columns that nothing is wider than: tables that do not fit are folded.
            Without, tables have at most `WIDTH` columns, and lines are not broken.
        is_coloured: Whether titles stand out by the codes of terminals.
    """
    from rich.console import Console

    console = Console(
        file=io.StringIO(),
        width=width or WIDTH,
        color_system="standard" if is_coloured else None,
        force_terminal=is_coloured,
        no_color=False,
    )
    for section in parts:
        _print(console, section, width)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"


def _print(console: Any, section: Section, width: int | None) -> None:
    _print_lines(console, [section.title], width, "bold")
    if isinstance(section, Lines):
        _print_lines(console, ["  " + line for line in section.lines], width)
    elif width is None or fits(section, width):
        console.print(_rich_table(section, width))
    elif fits(turned(section), width):
        console.print(_rich_table(turned(section), width))
    else:
        _print_lines(console, list(records(section, width)), width)
    if isinstance(section, Table) and section.shares and width is not None:
        _print_lines(console, list(_bars(section, width)), width)
    console.print()


def _print_lines(
    console: Any, lines: list[str], width: int | None, style: str = ""
) -> None:
    for line in lines:
        for piece in [line] if width is None else wrapped(printable(line), width):
            console.print(_plain(piece, style), soft_wrap=True)


def _bars(table: Table, width: int) -> Iterator[str]:
    """Yield a bar for each row of a table that has shares: how full it is."""
    names = [row[0] for row in table.rows]
    yield ""
    room, longest = min(width - 20, 50), max(map(len, names))
    for name, share in zip(names, table.shares, strict=True):
        yield f"{name:>{longest}}  {gauge(share, room)} {share:.0%}"


def _rich_table(section: Table, width: int | None) -> Any:
    from rich import box
    from rich.table import Table as RichTable

    table = RichTable(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True
    )
    widths = _widths(section, width) if width else [None] * len(section.heading)
    for index, name in enumerate(section.heading):
        is_text = index == 0 or _is_text(section, index)
        table.add_column(
            _plain(name),
            justify="left" if is_text else "right",
            overflow="fold",
            width=widths[index],
        )
    for row in section.rows:
        table.add_row(*map(_plain, row))
    return table


def _widths(table: Table, width: int) -> list[int]:
    """Return the widths of the columns of a table that fits.

    The widest columns are wrapped first, and no word is cut.
    """
    from rich.cells import cell_len

    widths = [
        max(cell_len(line) for cell in column for line in cell.split("\n"))
        for column in zip(table.heading, *table.rows, strict=True)
    ]
    least = least_widths(table)
    while sum(widths) + GAP * (len(widths) - 1) > width:
        spare = [index for index, most in enumerate(widths) if most > least[index]]
        widths[max(spare, key=widths.__getitem__)] -= 1
    return widths


def _plain(text: str, style: str = "") -> Any:
    """Return text in which rich looks for neither markup nor emoji names."""
    from rich.text import Text

    return Text(printable(text), style=style)


def _is_text(table: Table, column: int) -> bool:
    """Return whether a column holds words; columns of numbers are right-aligned."""
    cells = [row[column] for row in table.rows if row[column] != "-"]
    return any(len(cell.split()) > 2 for cell in cells)


def sections_as_markdown(parts: list[Section]) -> str:
    """Return sections as markdown."""
    blocks = []
    for section in parts:
        blocks.append(f"### {in_markdown(section.title)}\n")
        if isinstance(section, Lines):
            blocks += [f"- {in_markdown(line.strip())}" for line in section.lines]
        else:
            rule = "|" + " --- |" * len(section.heading)
            blocks += [_row(section.heading), rule, *map(_row, section.rows)]
        blocks.append("")
    return "\n".join(blocks)


def _row(cells: tuple[str, ...]) -> str:
    """Return a row of a table in markdown."""
    return "| " + " | ".join(map(in_markdown, cells)) + " |"
