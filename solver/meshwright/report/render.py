"""Renders sections as aligned text or markdown."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from meshwright.escape import in_markdown, printable
from meshwright.report.alternatives import framework_limit_sections
from meshwright.report.explain import model_sections
from meshwright.report.runs import run_sections
from meshwright.report.solve import solve_sections
from meshwright.report.tables import (
    Lines,
    Section,
    Table,
    fits,
    gauge,
    least_widths,
    records,
    turned,
    wrapped,
)
from meshwright.results.outcome import Outcome

WIDTH = 120
"""Columns of tables in files and pipes: what a wide terminal shows."""


def as_text(outcome: Outcome) -> str:
    """Return an outcome as aligned tables."""
    return sections_as_text(outcome_sections(outcome))


def outcome_sections(outcome: Outcome) -> list[Section]:
    """Return what there is to say about an outcome, and about the run around it."""
    step_s = outcome.optimum.step_s if outcome.optimum else None
    return [
        *solve_sections(outcome),
        *framework_limit_sections(outcome.framework_limits, step_s),
        *model_sections(outcome.solved_model),
        *run_sections(outcome.run),
    ]


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
    least = least_widths(section) if width else [None] * len(section.heading)
    for index, name in enumerate(section.heading):
        is_text = index == 0 or _is_text(section, index)
        table.add_column(
            _plain(name),
            justify="left" if is_text else "right",
            overflow="fold",
            min_width=least[index],
        )
    for row in section.rows:
        table.add_row(*map(_plain, row))
    return table


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
