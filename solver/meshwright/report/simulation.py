"""A simulation as titled tables and lines: the distribution, and what causes it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import groupby, pairwise

from meshwright.report.plan_text import plan_lines
from meshwright.report.tables import Lines, Section, Table, bar, curve, seconds_text
from meshwright.results.simulation import FailedRuns, SimulatedStage, Simulation

WIDTH = 44
"""Columns of the longest bar of a histogram."""

COLUMNS = 36
"""Columns of a curve of memory over time."""


def simulation_sections(told: Simulation) -> list[Section]:
    """Return a simulation as sections: verdict, histogram, causes, stages, runs."""
    parts: list[Section] = [
        Lines(told.title, (*_verdict(told), *plan_lines(told.plan))),
        Lines(f"Steps of {told.samples:,} samples", tuple(_histogram(told))),
        _loss_table(told),
        _stage_table(told),
    ]
    if told.runs:
        parts.append(_run_table(told.runs))
    parts.append(Lines("What was simulated", tuple(_assumptions(told))))
    return parts


def _verdict(told: Simulation) -> Iterator[str]:
    step = told.step_s
    more = step.median / told.schedule_s - 1
    yield (
        f"step {seconds_text(step.median)} median · {seconds_text(step.p90)} p90 · "
        f"{seconds_text(step.p99)} p99"
    )
    yield (
        f"undisturbed {seconds_text(told.schedule_s)}, so that the median step takes "
        f"{more:+.1%}"
    )


def _histogram(told: Simulation) -> Iterator[str]:
    edges, counts = told.histogram.edges, told.histogram.counts
    if len(counts) == 1:
        yield f"all take {seconds_text(edges[0])}"
        return
    left_out = False
    for (low, high), count in zip(pairwise(edges), counts, strict=True):
        if not count:
            if not left_out:
                yield f"{'...':>19}"
            left_out = True
            continue
        left_out = False
        span = f"{_short(low)} - {_short(high)}"
        yield f"{span:>19}  {bar(count / max(counts), WIDTH)} {count:,}".rstrip()


def _short(seconds: float) -> str:
    return f"{seconds:,.3f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _loss_table(told: Simulation) -> Table:
    losses, mean_s = told.losses, told.step_s.mean
    rows = [
        ("the schedule, undisturbed", losses.undisturbed_s),
        (f"{told.lockstep_gpus:,} GPUs of a stage in lockstep", losses.pipeline_s),
        ("mean step", mean_s),
    ]
    if told.replicas > 1:
        slowest = f"the slowest of {told.replicas:,} pipelines"
        rows.insert(2, (slowest, losses.replicas_s))
    cells = tuple((name, _or_none(s, mean_s), f"{s / mean_s:.1%}") for name, s in rows)
    return Table("Where the time goes", ("cause", "time", "of the step"), cells)


def _or_none(seconds: float, whole_s: float) -> str:
    return seconds_text(seconds) if seconds > 1e-9 * whole_s else "-"


def _stage_table(told: Simulation) -> Table:
    """Return memory over time and idle shares; equal neighbours share a row."""
    end_s = told.schedule_s
    cells = [_cells(stage, end_s) for stage in told.stages]
    rows = []
    for same, group in groupby(range(len(cells)), key=lambda e: cells[e]):
        members = list(group)
        first, last = members[0], members[-1]
        rows.append((f"{first}" if first == last else f"{first}-{last}", *same))
    heading = ("stage", "idle", "peak GiB", "usable", "memory over the step")
    return Table("Stages", heading, tuple(rows))


def _cells(stage: SimulatedStage, end_s: float) -> tuple[str, ...]:
    times = [at_s for at_s, _ in stage.memory]
    held = [
        stage.memory[max(bisect_right(times, end_s * i / COLUMNS) - 1, 0)][1]
        for i in range(COLUMNS)
    ]
    return (
        f"{stage.idle:.1%}",
        f"{stage.peak_gib:.2f}",
        f"{stage.usable_gib:.2f}",
        curve(held, max(stage.usable_gib, stage.peak_gib)),
    )


def _run_table(runs: FailedRuns) -> Table:
    rows = (
        ("failures", *(f"{x:,.0f}" for x in _of(runs, "failures"))),
        ("useful share", *(f"{x:.2%}" for x in _of(runs, "goodput"))),
        (
            "days in all",
            *(f"{days:,.2f}" for days in sorted(_days(runs))),
        ),
    )
    title = (
        f"Runs of {runs.days:,.0f} useful days, a failure every {runs.mtbf_hours:,.1f} "
        f"h, a checkpoint every {runs.interval_s:,.0f} s"
    )
    return Table(title, ("", "least", "median", "mean", "most"), rows)


def _of(runs: FailedRuns, name: str) -> tuple[float, ...]:
    spread = getattr(runs, name)
    return spread.least, spread.median, spread.mean, spread.most


def _days(runs: FailedRuns) -> list[float]:
    return [runs.days / share for share in _of(runs, "goodput")]


def _assumptions(told: Simulation) -> Iterator[str]:
    noise = told.disturbance
    yield (
        f"Compute of a GPU's task varies by {noise.jitter:.1%} (standard deviation); "
        f"{noise.slow_gpus:.2%} of GPUs are {noise.slowdown:.0%} slower."
    )
    yield f"Messages take what the model says. Seed {told.seed}."
    if told.runs:
        expected = told.runs.expected_goodput
        yield f"Daly's formula expects a useful share of {expected:.2%}."
    gap = told.schedule_s / told.closed_form_s - 1
    if abs(gap) > 5e-5:
        yield (
            f"The closed form that plans are chosen by says "
            f"{seconds_text(told.closed_form_s)}: the task graph takes {gap:+.1%}."
        )
