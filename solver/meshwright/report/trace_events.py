"""A timeline as a trace in the Trace Event format, which Perfetto and Chrome open.

A process is a pipeline stage: its GPUs all do the same. Its threads are the tasks of
the schedule, and the streams on which the parts of every task follow one another. Only
what the model exposes is there: traffic behind compute takes no time of the step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.results.timeline import Fold, StageTimeline, Timeline

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
    for stage, own in enumerate(timeline.stages):
        yield from _names(stage, own, len(timeline.stages))
        yield from _task_slices(stage, own)
        if timeline.fold:
            yield from _folded(stage, own, timeline.fold)
        yield from _in_turn(stage, own.sync, timeline.pipeline_s, {})
        yield from _counters(stage, own, timeline.schedule_s)


def _names(stage: int, own: StageTimeline, stages: int) -> Iterator[Event]:
    """Yield the names of a stage and of those of its streams that have a slice."""
    on = f" on {own.gpu}" if own.gpu else ""
    title = f"stage {stage} of {stages}: {own.layers} layers{on}"
    yield _meta(stage, 0, "process_name", {"name": title})
    yield _meta(stage, 0, "process_sort_index", {"sort_index": stage})
    used = {STREAM_OF[part] for part in own.busy_s} | {TASKS}
    for thread, stream in enumerate(STREAMS):
        if stream in used:
            yield _meta(stage, thread, "thread_name", {"name": stream})
            yield _meta(stage, thread, "thread_sort_index", {"sort_index": thread})


def _meta(stage: int, thread: int, name: str, args: Mapping[str, Any]) -> Event:
    return {"name": name, "ph": "M", "pid": stage, "tid": thread, "args": args}


def _task_slices(stage: int, own: StageTimeline) -> Iterator[Event]:
    for kind, microbatch, chunk, start_s, end_s in own.tasks:
        about: Event = {"micro-batch": microbatch, "chunk": chunk}
        name = f"{WORDS[kind]} {microbatch}"
        yield _slice(stage, TASKS, name, kind, start_s, end_s - start_s, about)
        about = {"pass": WORDS[kind], **about}
        yield from _in_turn(stage, own.parts[kind, chunk], start_s, about)


def _folded(stage: int, own: StageTimeline, fold: Fold) -> Iterator[Event]:
    """Yield one slice for each part of the micro-batches that are not shown."""
    about = {"micro-batches folded": fold.microbatches}
    start_s = max(
        (task.end_s for task in own.tasks if task.start_s < fold.start_s),
        default=fold.start_s,
    )
    busy_s = math.fsum(own.folded.values())
    name = f"{fold.microbatches:,} micro-batches"
    yield _slice(stage, TASKS, name, "folded", start_s, busy_s, about)
    yield from _in_turn(stage, own.folded, start_s, about)


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


def _counters(stage: int, own: StageTimeline, end_s: float) -> Iterator[Event]:
    """Yield the memory of a GPU of a stage whenever it changes, GiB by part."""
    fixed = {name: round(gib, 6) for name, gib in own.fixed_gib.items() if gib}
    for at_s, activations_gib, logits_gib in (*own.held, (end_s, 0.0, 0.0)):
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
