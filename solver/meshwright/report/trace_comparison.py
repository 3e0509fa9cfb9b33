"""A modelled step beside a measured one, as titled tables and lines."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.trace_comparison import PhaseTimes, TraceComparison

LONGEST_NAME = 34
"""Most characters of a kernel's name; templates take hundreds."""

LEAST = 1e-6
"""Share of the step below which a time counts as none: traces round."""

CLOSE = 0.02
"""Share of the step below which nothing is said to be off."""

ADVICE = {
    "compute": "`meshwright calibrate` fits the efficiency of kernels to runs",
    "optimizer": "its bytes and the memory bandwidth set it",
    "collectives": "check the links' bandwidth and `training.overlap` in the spec",
    "all-to-all": "check the links' bandwidth and `training.overlap` in the spec",
    "send-recv": "a receive also waits for the stage before it: see idle",
    "copies": "check `host.pcie_gb_s` of the topology",
    "idle": "bubbles, waits for other ranks, and for the host",
}


def trace_sections(told: TraceComparison) -> list[Section]:
    """Return the verdict, the phases, and what was measured by kind."""
    parts: list[Section] = [
        Lines(told.title, tuple(_verdict(told))),
        _phase_table(told),
        _kernel_table(told),
    ]
    if told.notes:
        parts.append(Lines("Notes", told.notes))
    return parts


def _verdict(told: TraceComparison) -> Iterator[str]:
    off = told.measured_s / told.modelled_s
    mean = f", mean of {told.steps} steps" if told.steps > 1 else ""
    yield (
        f"measured step {seconds_text(told.measured_s)}{mean} · "
        f"modelled {seconds_text(told.modelled_s)} · {off:.2f} times the model"
    )
    worst = told.worst
    gap_s = worst.measured_s - worst.modelled_s
    if abs(gap_s) < CLOSE * told.measured_s:
        yield "No phase is further off than 2% of the step."
        return
    word = "more" if gap_s > 0 else "less"
    yield (
        f"Most is off in {worst.phase}: {seconds_text(abs(gap_s))} {word} than modelled"
    )
    yield f"({ADVICE[worst.phase]})."


def _phase_table(told: TraceComparison) -> Table:
    rows = [_row(own, told.measured_s) for own in told.phases if _is_there(own)]
    step = PhaseTimes(
        phase="step",
        modelled_s=told.modelled_s,
        measured_s=told.measured_s,
        busy_s=told.measured_s,
    )
    rows.append((*_row(step, told.measured_s)[:-1], ""))
    heading = ("phase", "modelled", "measured", "off by", "of the step", "hidden")
    title = f"Phases of stage {told.stage} of {told.stages}, in a step"
    return Table(title, heading, tuple(rows))


def _is_there(own: PhaseTimes) -> bool:
    return own.modelled_s > 0 or own.measured_s > 0


def _row(own: PhaseTimes, step_s: float) -> tuple[str, ...]:
    gap_s, least_s = own.measured_s - own.modelled_s, LEAST * step_s
    is_off = abs(gap_s) > least_s
    sign = "+" if gap_s > 0 else "-"
    return (
        own.phase,
        _seconds(own.modelled_s, least_s),
        _seconds(own.measured_s, least_s),
        sign + seconds_text(abs(gap_s)) if is_off else "-",
        f"{gap_s / step_s:+.1%}" if is_off else "-",
        _seconds(own.busy_s - own.measured_s, least_s),
    )


def _seconds(seconds: float, least_s: float) -> str:
    return seconds_text(seconds) if seconds > least_s else "-"


def _kernel_table(told: TraceComparison) -> Table:
    rows = tuple(
        (
            own.kind,
            own.phase,
            f"{own.count:,.0f}",
            seconds_text(own.seconds),
            "; ".join(_short(name) for name in own.names[:1]),
        )
        for own in told.kernels
    )
    what = "Kernels" if told.is_gpu else "Operators"
    heading = ("kind", "phase", "count", "time", "longest")
    return Table(f"{what} of the measured step by kind", heading, rows)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."
