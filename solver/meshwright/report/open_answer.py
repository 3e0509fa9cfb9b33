"""What was chosen of the machines and sequences that a spec leaves open, as a table."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.open_answer import Choice, OpenAnswer

MOST_SHOWN = 8
"""Choices in the table, the best ones."""


def open_sections(answer: OpenAnswer | None) -> Iterator[Section]:
    """Yield the choice that was made, with the ones that come next."""
    if answer is None:
        return
    chosen = answer.chosen
    lines = [f"Best by {answer.level}: {_name(chosen)}"] if chosen else []
    if answer.impossible:
        lines.append(f"{answer.impossible:,} more cannot be: {answer.why_impossible}")
    if lines:
        yield Lines(f"Left open: {' and '.join(answer.fields)}", tuple(lines))
    if chosen:
        yield _table(answer)


def _name(choice: Choice) -> str:
    return (
        f"{choice.count:,} x {choice.machine} ({choice.gpus:,} GPUs), "
        f"batch {choice.global_batch:,}"
    )


def _table(answer: OpenAnswer) -> Table:
    """Return the best of the choices that were solved."""
    known = [own for own in answer.choices if own.step_s is not None]
    known.sort(key=lambda own: (own != answer.chosen, own.loss))
    shown = known[:MOST_SHOWN]
    rows = tuple(
        (
            own.machine,
            f"{own.count:,}",
            f"{own.gpus:,}",
            f"{own.global_batch:,}",
            seconds_text(own.step_s or 0.0),
            _loss(own, own == answer.chosen),
        )
        for own in shown
    )
    title = f"Choices that were solved, of {len(answer.choices):,}"
    return Table(title, ("machine", "count", "GPUs", "batch", "step", "loses"), rows)


def _loss(choice: Choice, is_chosen: bool) -> str:
    return "wins" if is_chosen else f"{choice.loss or 0.0:+.2%}"
