"""Simulations and traces: a step drawn over time, and beside what was measured."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import groupby, pairwise
from typing import Any

from meshwright.report.tables import Lines, Section, Table, bar, curve, seconds_text
from meshwright.results.claims import plan_lines
from meshwright.results.simulation import (
    FailedRuns,
    Fold,
    PhaseTimes,
    SimulatedStage,
    Simulation,
    StageTimeline,
    Timeline,
    TraceComparison,
)

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
    rows = [_row(phase, told.measured_s) for phase in told.phases if _is_there(phase)]
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


def _is_there(phase: PhaseTimes) -> bool:
    return phase.modelled_s > 0 or phase.measured_s > 0


def _row(times: PhaseTimes, step_s: float) -> tuple[str, ...]:
    gap_s, least_s = times.measured_s - times.modelled_s, LEAST * step_s
    is_off = abs(gap_s) > least_s
    sign = "+" if gap_s > 0 else "-"
    return (
        times.phase,
        _seconds(times.modelled_s, least_s),
        _seconds(times.measured_s, least_s),
        sign + seconds_text(abs(gap_s)) if is_off else "-",
        f"{gap_s / step_s:+.1%}" if is_off else "-",
        _seconds(times.busy_s - times.measured_s, least_s),
    )


def _seconds(seconds: float, least_s: float) -> str:
    return seconds_text(seconds) if seconds > least_s else "-"


def _kernel_table(told: TraceComparison) -> Table:
    rows = tuple(
        (
            kernel.kind,
            kernel.phase,
            f"{kernel.count:,.0f}",
            seconds_text(kernel.seconds),
            "; ".join(_short(name) for name in kernel.names[:1]),
        )
        for kernel in told.kernels
    )
    what = "Kernels" if told.is_gpu else "Operators"
    heading = ("kind", "phase", "count", "time", "longest")
    return Table(f"{what} of the measured step by kind", heading, rows)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."


TASKS = "schedule"
"""The thread that has the tasks of a stage, one after another."""

STREAM_OF = {
    "compute": "compute",
    "recompute": "compute",
    "optimizer": "compute",
    "tp": "tp",
    "cp": "cp",
    "ep": "ep",
    "zero": "dp",
    "dp": "dp",
    "pp": "pp",
    "offload": "copies",
    "host": "host",
}
"""The stream that shows a part of the step."""

STREAMS = (TASKS, *dict.fromkeys(STREAM_OF.values()))

WORDS = {"F": "forward", "B": "backward", "W": "weight gradients"}
"""By kind of task, what its compute is called."""

Event = dict[str, Any]


def trace_text(timeline: Timeline) -> str:
    """Return a timeline as the text of a trace, an event a line."""
    events = ",\n".join(map(json.dumps, trace_events(timeline)))
    about = json.dumps(_about(timeline), indent=1)
    return (
        f'{{"displayTimeUnit": "ms",\n"otherData": {about},\n'
        f'"traceEvents": [\n{events}\n]}}\n'
    )


def _about(timeline: Timeline) -> dict[str, Any]:
    return {
        "producer": "meshwright",
        "title": timeline.title,
        "plan": str(timeline.plan),
        "context_exchange": timeline.context_exchange,
        "step_s": timeline.step_s,
        "schedule_s": timeline.schedule_s,
        "microbatches_folded": timeline.fold.microbatches if timeline.fold else 0,
    }


def trace_events(timeline: Timeline) -> Iterator[Event]:
    """Yield the events of a trace: names, slices and counters of every stage."""
    for stage, lane in enumerate(timeline.stages):
        yield from _names(stage, lane, len(timeline.stages))
        yield from _task_slices(stage, lane)
        if timeline.fold:
            yield from _folded(stage, lane, timeline.fold)
        yield from _in_turn(stage, lane.sync, timeline.pipeline_s, {})
        yield from _counters(stage, lane, timeline.schedule_s)


def _names(stage: int, lane: StageTimeline, stages: int) -> Iterator[Event]:
    """Yield the names of a stage and of those of its streams that have a slice."""
    on = f" on {lane.gpu}" if lane.gpu else ""
    title = f"stage {stage} of {stages}: {lane.layers} layers{on}"
    yield _meta(stage, 0, "process_name", {"name": title})
    yield _meta(stage, 0, "process_sort_index", {"sort_index": stage})
    used = {STREAM_OF[part] for part in lane.busy_s} | {TASKS}
    for thread, stream in enumerate(STREAMS):
        if stream in used:
            yield _meta(stage, thread, "thread_name", {"name": stream})
            yield _meta(stage, thread, "thread_sort_index", {"sort_index": thread})


def _meta(stage: int, thread: int, name: str, args: Mapping[str, Any]) -> Event:
    return {"name": name, "ph": "M", "pid": stage, "tid": thread, "args": args}


def _task_slices(stage: int, lane: StageTimeline) -> Iterator[Event]:
    for kind, microbatch, chunk, start_s, end_s in lane.tasks:
        about: Event = {"micro-batch": microbatch, "chunk": chunk}
        name = f"{WORDS[kind]} {microbatch}"
        yield _slice(stage, TASKS, name, kind, start_s, end_s - start_s, about)
        about = {"pass": WORDS[kind], **about}
        yield from _in_turn(stage, lane.parts[kind, chunk], start_s, about)


def _folded(stage: int, lane: StageTimeline, fold: Fold) -> Iterator[Event]:
    """Yield one slice for each part of the micro-batches that are not shown."""
    about = {"micro-batches folded": fold.microbatches}
    start_s = max(
        (task.end_s for task in lane.tasks if task.start_s < fold.start_s),
        default=fold.start_s,
    )
    busy_s = math.fsum(lane.folded.values())
    name = f"{fold.microbatches:,} micro-batches"
    yield _slice(stage, TASKS, name, "folded", start_s, busy_s, about)
    yield from _in_turn(stage, lane.folded, start_s, about)


def _in_turn(
    stage: int, parts: Mapping[str, float], start_s: float, about: Mapping[str, Any]
) -> Iterator[Event]:
    """Yield a slice for each part, one after another, on their streams."""
    for name, seconds in parts.items():
        yield _slice(stage, STREAM_OF[name], name, name, start_s, seconds, about)
        start_s += seconds


def _slice(
    stage: int,
    stream: str,
    name: str,
    category: str,
    start_s: float,
    seconds: float,
    about: Mapping[str, Any],
) -> Event:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": stage,
        "tid": STREAMS.index(stream),
        "ts": _microseconds(start_s),
        "dur": _microseconds(seconds),
        "args": about,
    }


def _counters(stage: int, lane: StageTimeline, end_s: float) -> Iterator[Event]:
    """Yield the memory of a GPU of a stage whenever it changes, GiB by part."""
    fixed = {name: round(gib, 6) for name, gib in lane.fixed_gib.items() if gib}
    for at_s, activations_gib, logits_gib in (*lane.held, (end_s, 0.0, 0.0)):
        moving = {"activations": activations_gib, "logits": logits_gib}
        has = {name: round(gib, 6) for name, gib in moving.items()}
        yield {
            "name": "memory GiB",
            "ph": "C",
            "pid": stage,
            "tid": 0,
            "ts": _microseconds(at_s),
            "args": {**fixed, **has},
        }


def _microseconds(seconds: float) -> float:
    """Return microseconds, to the picosecond."""
    return round(seconds * 1e6, 6)


WIDTH = 44
"""Columns of the longest bar of a histogram."""

COLUMNS = 36
"""Columns of a curve of memory over time."""


def simulation_sections(told: Simulation) -> list[Section]:
    """Return a simulation as sections: verdict, histogram, causes, stages, runs."""
    parts: list[Section] = [
        Lines(told.title, (*_simulated_verdict(told), *plan_lines(told.plan))),
        Lines(f"Steps of {told.samples:,} samples", tuple(_histogram(told))),
        _loss_table(told),
        _stage_table(told),
    ]
    if told.runs:
        parts.append(_run_table(told.runs))
    parts.append(Lines("What was simulated", tuple(_assumptions(told))))
    return parts


def _simulated_verdict(told: Simulation) -> Iterator[str]:
    step = told.step_s
    more = step.median / told.schedule_s - 1
    yield (
        f"step {seconds_text(step.median)} median · {seconds_text(step.p90)} p90 · "
        f"{seconds_text(step.p99)} p99"
    )
    yield (
        f"{seconds_text(told.schedule_s)} undisturbed; the median step takes "
        f"{more:.1%} more"
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
        span = f"{_span_text(low)} - {_span_text(high)}"
        yield f"{span:>19}  {bar(count / max(counts), WIDTH)} {count:,}".rstrip()


def _span_text(seconds: float) -> str:
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
        ("days in all", *(f"{days:,.2f}" for days in sorted(_days(runs)))),
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
    slow = f"{noise.slow_gpus:.2%} of GPUs are {noise.slowdown:.0%} slower"
    yield (
        f"The compute of each task varies by {noise.jitter:.1%} (standard deviation); "
        f"{slow if noise.slow_gpus else 'no GPU is slow'}."
    )
    yield f"Messages take as long as modelled. Seed {told.seed}."
    if told.runs:
        expected = told.runs.expected_goodput
        yield f"Daly's formula expects a useful share of {expected:.2%}."
    gap = told.schedule_s / told.closed_form_s - 1
    if abs(gap) > 5e-5:
        yield (
            f"The closed form that plans are chosen by says "
            f"{seconds_text(told.closed_form_s)}: the task graph takes {gap:+.1%}."
        )
