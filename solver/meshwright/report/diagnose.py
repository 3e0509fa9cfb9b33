"""A diagnosis as text: what was read, why a run is as it is, and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwright.report.tables import Lines, Section, Table, seconds_text

if TYPE_CHECKING:
    from meshwright.results.diagnosis import Diagnosis, MemoryCause

FEW_FAULTS, FEW_CHANGES, FEW_REPAIRS = 4, 5, 4
"""Rows on a screen; `--verbose` has all."""

AS_FAST = 0.97
"""Share of its limit from which on a run is as fast as it gets."""

LEAST_TOLD = 0.005
"""Least probability that is told on a screen."""

LEAST_PART = 0.002
"""Least share of the step that a part must take to be told."""


def diagnosis_sections(
    told: Diagnosis, is_short: bool = False, rows: int = FEW_CHANGES
) -> list[Section]:
    """Return the sections of a diagnosis, the answer first.

    Args:
        told: The diagnosis.
        is_short: Whether they are for one screen.
        rows: Most rows of a table on a screen.
    """
    sections: list[Section] = [Lines(told.spec, tuple(_read(told)))]
    if told.out_of_memory is not None:
        sections += _memory_sections(told.out_of_memory, is_short, rows)
    if told.log.step_s is not None:
        sections += _step_sections(told, is_short, rows)
    return sections


def _read(told: Diagnosis) -> Iterator[str]:
    """Yield what was read, and what is missing."""
    log = told.log
    if log.step_s is not None and log.low_s is not None and log.high_s is not None:
        between = f"{seconds_text(log.low_s)} to {seconds_text(log.high_s)}"
        yield (
            f"{log.title}: {seconds_text(log.step_s)} a step, median of {log.steps} "
            f"steady ones ({between})"
        )
    else:
        yield f"{log.title}: no steady step is timed"
    if log.died:
        yield f"Died: {log.died}"
    yield f"ran {told.plan.brief or told.plan}"
    if log.allocated_gib is not None:
        yield f"peak of {log.allocated_gib:.1f} GiB in tensors"
    yield from log.missing


def _step_sections(told: Diagnosis, is_short: bool, rows: int) -> Iterator[Section]:
    yield Lines("Measured against modelled", tuple(_against(told)))
    yield fault_table(told, is_short, rows)
    if told.changes:
        yield change_table(told, is_short, rows)
    if told.parts and not is_short:
        yield part_table(told)


def _against(told: Diagnosis) -> Iterator[str]:
    """Yield how far the step is off, and how far it is from its limit."""
    measured_s = told.log.step_s or 0.0
    off = measured_s / told.modelled_s - 1
    yield (
        f"{seconds_text(measured_s)} measured, {seconds_text(told.modelled_s)} "
        f"modelled: {off:+.0%}; one run in three is off by more than {told.noise:.0%}"
    )
    if parts := list(_parts(told)):
        yield f"by part, and as modelled: {', '.join(parts)}"
    share = told.limit_share
    if share is None:
        return
    kernels = ""
    if told.compute_share is not None:
        kernels = f"; its kernels alone take {told.compute_share:.0%} of the step"
    if share >= AS_FAST:
        yield (
            f"As fast as it gets on this hardware: {share:.0%} of the best that a "
            f"change is modelled to reach{kernels}"
        )
    else:
        yield f"It goes at {share:.0%} of the best that a change reaches{kernels}"


def _parts(told: Diagnosis) -> Iterator[str]:
    """Yield each part of the step that matters, measured and in brackets modelled."""
    for part in told.parts:
        if max(part.measured_s, part.modelled_s) > LEAST_PART * told.modelled_s:
            modelled = seconds_text(part.modelled_s)
            yield f"{part.name} {seconds_text(part.measured_s)} ({modelled})"


def part_table(told: Diagnosis) -> Table:
    """Return the parts of the step, measured and modelled."""
    rows = tuple(
        (
            part.name,
            seconds_text(part.measured_s),
            seconds_text(part.modelled_s),
            _more(part.measured_s - part.modelled_s),
        )
        for part in told.parts
    )
    return Table("By part", ("part", "measured", "modelled", "more"), rows)


def _more(seconds: float) -> str:
    return ("+" if seconds >= 0 else "-") + seconds_text(abs(seconds))


def fault_table(told: Diagnosis, is_short: bool, few: int) -> Table:
    """Return the hypotheses with their probabilities."""
    faults = told.faults
    if is_short:
        shown = [one for one in faults if one.probability >= LEAST_TOLD]
        faults = tuple(shown[: min(few, FEW_FAULTS)])
    rows = tuple(
        (
            f"{one.probability:.2f}",
            one.name,
            one.size,
            seconds_text(one.step_s) if one.kind != "none" else "",
            *(() if is_short else (f"{one.prior:.2f}", one.source)),
        )
        for one in faults
    )
    heading = ("probability", "why", "size", "step then")
    more = () if is_short else ("prior", "from")
    return Table("Why", (*heading, *more), rows)


def change_table(told: Diagnosis, is_short: bool, few: int) -> Table:
    """Return the changes with what they save, calibrated on this run.

    On a screen stand those that are expected to save most.
    """
    changes = told.changes
    if is_short:
        most = sorted(changes, key=lambda one: -one.saves_s * one.probability)[:few]
        changes = tuple(one for one in changes if one in most)
    rows = tuple(
        (seconds_text(one.saves_s), one.kind, one.change, one.option or one.note)
        for one in changes
    )
    return Table("What to change", ("saves", "kind", "change", "option, or note"), rows)


def _memory_sections(cause: MemoryCause, is_short: bool, few: int) -> Iterator[Section]:
    yield Lines("Out of memory", tuple(_memory_lines(cause)))
    if not is_short:
        yield suspect_table(cause)
        yield held_table(cause)
    few = min(few, FEW_REPAIRS)
    repairs = cause.repairs[:few] if is_short else cause.repairs
    rows = tuple(
        (seconds_text(one.step_s), one.changes, ", ".join(one.edits), one.note)
        for one in repairs
    )
    if rows:
        yield Table("What fits", ("a step", "kind", "change", "note"), rows)
    else:
        yield Lines("What fits", ("Nothing that Meshwright knows to change fits.",))


def _memory_lines(cause: MemoryCause) -> Iterator[str]:
    """Yield which part did not fit, when, and whether fragments are to blame."""
    when = f"the {cause.phase} of step {cause.step + 1}" if cause.phase else ""
    if cause.phase == "loading" and not cause.step:
        when = "loading, before the first step"
    tried = f"{cause.tried_gib:.4g} GiB"
    first = cause.suspects[0] if cause.suspects else None
    if first is not None and first.gib and first.probability >= 0.5:
        told = f"{tried} is the size of {first.name} ({first.probability:.2f})"
    elif first is not None and first.gib:
        told = f"{tried} is probably {first.part}, perhaps {first.name}"
    elif first is not None and first.part == cause.part:
        told = f"{tried} is {first.part}, of a size that the plan does not give"
    else:
        told = f"{tried} is no tensor that we know"
    yield told + (f"; it failed in {when}" if when else "")
    rank = "The rank"
    if cause.stage is not None:
        rank = f"Rank {cause.rank}, of stage {cause.stage},"
    largest_gib = cause.memory.parts.get(cause.filled_by, 0.0)
    modelled_gib = cause.memory.total_gib
    largest = f"{modelled_gib:.1f}, {largest_gib:.1f} of them {cause.filled_by}"
    beyond_gib = cause.needed_gib - modelled_gib
    is_known = first is not None and bool(first.gib or first.part == cause.part)
    if is_known or modelled_gib > cause.memory.usable_gib:
        yield f"Part that does not fit: {cause.part}"
        yield (
            f"{rank} needs {cause.needed_gib:.1f} GiB or more. Modelled are {largest}"
        )
    else:
        yield "Part that does not fit: none that is modelled"
        yield (
            f"{rank} needs {cause.needed_gib:.1f} GiB or more: {beyond_gib:.1f} "
            f"beyond what is modelled, {largest}"
        )
    if cause.others_gib:
        yield (
            f"Other processes held {cause.others_gib:.1f} GiB of this GPU: does every "
            "rank have one of its own, and does nothing else run there?"
        )
    if cause.is_fragmented and cause.unused_gib is not None:
        yield (
            f"Fragments: PyTorch held {cause.unused_gib:.2f} GiB unused, enough with "
            "what was free. First set PYTORCH_ALLOC_CONF=expandable_segments:True "
            "(PYTORCH_CUDA_ALLOC_CONF before PyTorch 2.9)"
        )


def suspect_table(cause: MemoryCause) -> Table:
    """Return the tensors that have the size of the allocation."""
    rows = tuple(
        (f"{one.probability:.2f}", one.part, one.name, f"{one.gib:.3f}")
        for one in cause.suspects
    )
    return Table("Which tensor", ("probability", "part", "tensor", "GiB"), rows)


def held_table(cause: MemoryCause) -> Table:
    """Return the modelled memory of the rank's stage, or the fullest one, by part."""
    parts = sorted(cause.memory.parts.items(), key=lambda one: -one[1])
    rows = tuple((name, f"{gib:.2f}") for name, gib in parts if gib)
    which = "the fullest stage" if cause.stage is None else f"stage {cause.stage}"
    return Table(f"Modelled memory of {which}", ("part", "GiB"), rows)
