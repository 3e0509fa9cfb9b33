"""Renders sections as aligned text or markdown."""

from __future__ import annotations

import io
from typing import Any

from meshwright.escape import in_markdown, printable
from meshwright.report.framework_limits import framework_limit_sections
from meshwright.report.solve import solve_sections
from meshwright.report.tables import Lines, Section, Table
from meshwright.report.training_run import run_sections
from meshwright.results.outcome import Outcome

WIDTH = 120
"""Columns of text: what a wide terminal shows, the same everywhere."""


def as_text(outcome: Outcome) -> str:
    """Return an outcome as aligned tables."""
    return sections_as_text(outcome_sections(outcome))


def outcome_sections(outcome: Outcome) -> list[Section]:
    """Return what there is to say about an outcome, and about the run around it."""
    step_s = outcome.best.step_s if outcome.best else None
    return [
        *solve_sections(outcome),
        *framework_limit_sections(outcome.framework_limits, step_s),
        *run_sections(outcome.run),
    ]


def sections_as_text(parts: list[Section]) -> str:
    """Return sections as aligned tables."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    for section in parts:
        _print(console, section)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"


def _print(console: Any, section: Section) -> None:
    from rich import box
    from rich.table import Table as RichTable

    console.print(_plain(section.title))
    if isinstance(section, Lines):
        for line in section.lines:
            console.print(_plain("  " + line), soft_wrap=True)
        console.print()
        return
    table = RichTable(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True
    )
    for index, name in enumerate(section.heading):
        is_text = index == 0 or _is_text(section, index)
        table.add_column(
            _plain(name), justify="left" if is_text else "right", overflow="fold"
        )
    for row in section.rows:
        table.add_row(*map(_plain, row))
    console.print(table)
    console.print()


def _plain(text: str) -> Any:
    """Return text in which rich looks for neither markup nor emoji names."""
    from rich.text import Text

    return Text(printable(text))


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
