"""The data of the drawn timeline: every task, but those in a fold where it is long."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.plans.schedules import schedule_named
from meshwright.report.answer_page.numbers import rounded
from meshwright.results.timeline import StageTimeline, TaskSpan, Timeline

MAIN_WORK = {"F": "forward", "B": "backward", "W": "weights"}
"""By kind of task, what its compute is called."""

TRAFFIC = ("tp", "cp", "ep", "zero", "dp", "pp", "offload")
"""Parts of the step in which a stage waits for traffic that nothing hides."""


@dataclass(frozen=True)
class _Fold:
    """The span of the step whose tasks are left out of the drawing."""

    from_s: float
    to_s: float


def timeline_data(timeline: Timeline, most_spans: int) -> dict[str, Any]:
    """Return the timeline with at most so many tasks, the middle left out."""
    fold = _fold(timeline, most_spans)
    stages = [_stage(timeline, e, fold) for e in range(len(timeline.stages))]
    drawn = sum(len(stage["spans"]) for stage in stages)
    return {
        "told": _told(timeline),
        "vpp": timeline.plan.vpp,
        "pipelineS": rounded(timeline.pipeline_s),
        "stepS": rounded(timeline.schedule_s),
        "stages": stages,
        "fold": fold
        and {
            "fromS": rounded(fold.from_s),
            "toS": rounded(fold.to_s),
            "tasks": _tasks(timeline) - drawn,
        },
    }


def _told(timeline: Timeline) -> str:
    plan = timeline.plan
    title = schedule_named(plan.schedule).title if plan.pp > 1 else "No pipeline"
    chunks = f", {plan.vpp} chunks a stage" if plan.vpp > 1 else ""
    count = f"{plan.microbatches:,} micro-batch{'es' * (plan.microbatches > 1)}"
    return f"{title}{chunks}, {count}, by the schedule's task graph."


def _tasks(timeline: Timeline) -> int:
    """Return the number of tasks of the whole step."""
    plan = timeline.plan
    kinds = {task.kind for task in timeline.stages[0].tasks}
    return plan.pp * plan.vpp * plan.microbatches * len(kinds)


def _fold(timeline: Timeline, most_spans: int) -> _Fold | None:
    """Return what to leave out: the fold of the timeline, and tasks beside it."""
    every = [task for stage in timeline.stages for task in stage.tasks]
    own = timeline.fold
    if len(every) <= most_spans and own is None:
        return None
    each = min(most_spans, len(every)) // 2
    starts = sorted(task.start_s for task in every)
    ends = sorted(task.end_s for task in every)
    from_s, to_s = starts[each], ends[-each]
    if own is not None:
        from_s = min(from_s, own.start_s)
        to_s = max(to_s, own.start_s + own.seconds)
    return _Fold(from_s, max(to_s, from_s))


def _stage(timeline: Timeline, index: int, fold: _Fold | None) -> dict[str, Any]:
    stage = timeline.stages[index]
    return {
        "label": f"stage {index}",
        "parts": {
            f"{kind}{chunk}": list(_segments(parts, MAIN_WORK[kind]))
            for (kind, chunk), parts in stage.parts.items()
        },
        "ends": list(_segments(stage.sync, "step end")),
        "busy": _busy(timeline, stage),
        "spans": [
            (kind, microbatch, chunk, rounded(start_s), rounded(end_s))
            for kind, microbatch, chunk, start_s, end_s in _unfolded(stage, fold)
        ],
        "held": list(_held(stage, fold)),
        "usable": rounded(stage.usable_gib),
    }


def _held(stage: StageTimeline, fold: _Fold | None) -> Iterator[tuple[float, float]]:
    """Yield what a GPU holds from a time on, at every change that is drawn."""
    fixed_gib, last_gib = math.fsum(stage.fixed_gib.values()), -1.0
    for at_s, activations_gib, logits_gib in stage.held:
        gib = rounded(fixed_gib + activations_gib + logits_gib)
        is_shown = fold is None or not fold.from_s < at_s < fold.to_s
        if is_shown and gib != last_gib:
            yield rounded(at_s), gib
            last_gib = gib


def _unfolded(stage: StageTimeline, fold: _Fold | None) -> Iterator[TaskSpan]:
    """Yield the tasks that are not wholly in the fold."""
    for task in stage.tasks:
        if fold is None or task.start_s < fold.from_s or task.end_s > fold.to_s:
            yield task


def _segments(
    parts: Mapping[str, float], compute: str
) -> Iterator[tuple[str, str, float]]:
    """Yield the parts of a task with the kind of work that each is."""
    for name, seconds in parts.items():
        yield _work(name, compute), name, rounded(seconds)


def _work(part: str, compute: str) -> str:
    if part in TRAFFIC:
        return "communication"
    return "recompute" if part == "recompute" else compute


def _busy(timeline: Timeline, stage: StageTimeline) -> dict[str, float]:
    """Return the seconds of a stage in the whole step by kind of work."""
    repeats = timeline.plan.microbatches
    busy: dict[str, float] = {}
    for (kind, _), parts in stage.parts.items():
        for name, seconds in parts.items():
            work = _work(name, MAIN_WORK[kind])
            busy[work] = busy.get(work, 0.0) + repeats * seconds
    for name, seconds in stage.sync.items():
        work = _work(name, "step end")
        busy[work] = busy.get(work, 0.0) + seconds
    return {work: rounded(seconds) for work, seconds in busy.items()}
