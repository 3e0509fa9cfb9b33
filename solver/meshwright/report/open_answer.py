"""What was chosen of the machines and sequences that a spec leaves open, as a table."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.outcome_parts import Choice, NextValue, OpenAnswer

MOST_SHOWN = 8
"""Choices in the table, the best ones."""


def open_sections(answer: OpenAnswer | None) -> Iterator[Section]:
    """Yield the choice that was made, with the ones that come next."""
    if answer is None:
        return
    chosen = answer.chosen
    lines = [f"Best by {_levels(answer)}: {_name(chosen)}"] if chosen else []
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
            _loss(own, answer),
        )
        for own in shown
    )
    title = f"Choices that were solved, of {len(answer.choices):,}"
    return Table(title, ("machine", "count", "GPUs", "batch", "step", "loses"), rows)


def _loss(choice: Choice, answer: OpenAnswer) -> str:
    if choice == answer.chosen:
        return "wins"
    return f"{choice.loss or 0.0:+.2%} {choice.level}"


def next_value_sections(values: tuple[NextValue, ...]) -> Iterator[Section]:
    """Yield what other values of open fields would give, and which range binds."""
    rows = tuple(
        (
            own.field,
            f"{own.value:,}",
            "none fits" if own.step_s is None else seconds_text(own.step_s),
            _change(own),
        )
        for own in values
    )
    if rows:
        heading = ("field", "instead", "step", "loses")
        yield Table("What is left open: the next values", heading, rows)


def _change(own: NextValue) -> str:
    allowed = "" if own.is_allowed else ", not allowed"
    if own.loss is None:
        return f"-{allowed}"
    binds = ": the spec's range binds" if own.binds else ""
    return f"{own.loss:+.2%} {own.level}{allowed}{binds}"


def choice_lines(answer: OpenAnswer | None) -> Iterator[str]:
    """Yield how the choices of an open spec were closed, as a sentence."""
    if answer is None:
        return
    closed = answer.closed
    told = [
        f"{closed.solved:,} were solved",
        f"{closed.bounded:,} no better by a bound",
    ]
    told += [f"{closed.none_fits:,} without a plan"] * bool(closed.none_fits)
    told += [f"{closed.undecided:,} left open"] * bool(closed.undecided)
    among = f"{len(answer.choices):,} choices"
    yield f"Of {among}, by {_levels(answer)}: {', '.join(told)}."


def _levels(answer: OpenAnswer) -> str:
    """Return what choices are compared by; batches, by the time of a sequence."""
    names = list(answer.levels)
    if "training.global_batch" in answer.fields and "step_s" in names:
        names[names.index("step_s")] = "step_s of a sequence"
    return ", then ".join(names)
