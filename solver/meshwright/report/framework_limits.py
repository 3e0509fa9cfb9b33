"""What the limits of a framework cost, as a table and lines."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.outcome_parts import FrameworkLimits, LiftedLimit

LEAST_SHOWN = 0.001
"""Cost below which it is not told how much."""


def framework_limit_sections(
    costs: FrameworkLimits | None, step_s: float | None
) -> Iterator[Section]:
    """Yield the limits that cost something, then those that cost nothing.

    `step_s` is the step time of the fastest plan, where one is known.
    """
    if costs is None:
        return
    shown = [own for own in costs.limits if not own.gains_nothing]
    if shown:
        rows = tuple(map(_row, (*shown, costs.all_lifted)))
        heading = ("limit", "which says", "step without", "costs", "plan without it")
        title = f"What the limits of {costs.framework} cost, each lifted alone"
        yield Table(title, heading, rows)
    lines = tuple(_lines(costs, step_s is not None))
    yield Lines(f"At the kernels and memory of {costs.framework}", lines)
    if costs.ideal_step_s is not None:
        line = _ideal_line(costs.ideal_step_s, step_s)
        yield Lines("At other kernels, memory and efficiency", (line,))


def _row(own: LiftedLimit) -> tuple[str, ...]:
    step = "-" if own.step_s is None else seconds_text(own.step_s)
    plan = own.plan.brief if own.plan else ""
    return own.limit, own.sentence, step, _cost_text(own), plan


def _cost_text(own: LiftedLimit) -> str:
    if own.status == "unknown" or (own.status == "feasible" and not own.gains):
        return "open"
    if own.costs is None:
        return "the plan" if own.gains else "no plan"
    if own.gains and own.costs < LEAST_SHOWN:
        return f"< {LEAST_SHOWN:.1%}"
    least = ">= " if own.status == "feasible" else ""
    return f"{least}{own.costs:.1%}"


def _lines(costs: FrameworkLimits, has_plan: bool) -> Iterator[str]:
    """Yield what is known of the limits that are not in the table."""
    if not costs.limits:
        yield "It has no limits."
    elif costs.all_lifted.gains_nothing:
        way = "no plan fits" if costs.all_lifted.step_s is None else "no plan is faster"
        yield f"Without any of its limits {way}."
    names = [own.limit for own in costs.limits if own.gains_nothing]
    if names:
        told = "Costs nothing here" if has_plan else "Still no plan fits without"
        yield f"{told}: {', '.join(names)}."


def _ideal_line(ideal_s: float, step_s: float | None) -> str:
    told = f"Under `framework: ideal` the fastest plan takes {seconds_text(ideal_s)}"
    return f"{told}." if step_s is None else f"{told} ({ideal_s / step_s - 1:+.1%})."
