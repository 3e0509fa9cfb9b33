"""The timeline of a plan: the task graph of its schedule with the parts of every task.

It holds what the checker computes, on a clock: the end is `schedule_s` of the plan, the
parts of a stage add up to its seconds, and its memory peaks at `total_gib`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from meshwright.check.check import Scored, score, stage_memory
from meshwright.cost.job import Job
from meshwright.cost.schedule import Span
from meshwright.frameworks.base.registry import context_exchange_of
from meshwright.plans.columns import Parts
from meshwright.plans.plan import Plan
from meshwright.plans.schedules import schedule_named
from meshwright.results.priced_plan import StageMemory
from meshwright.results.simulation import Fold, Held, StageTimeline, TaskSpan, Timeline

IN_ORDER = ("zero", "recompute", "compute", "cp", "ep", "tp", "offload", "host", "pp")
"""The parts of a task in the order in which a timeline shows them; a task does each
once per layer, and sends at its end."""

MOVING = ("activations", "logits")
"""Parts of memory that come and go with micro-batches."""

Kinds = Mapping[tuple[str, int], Mapping[str, float]]


def timeline(job: Job, plan: Plan) -> Timeline:
    """Return when every stage does what in the step of a plan, and what it holds."""
    scored = score(job, plan)
    return timeline_at(scored, scored.graph.ends_s)


def timeline_at(scored: Scored, ends_s: Sequence[float]) -> Timeline:
    """Return the timeline of a plan whose tasks end at given times.

    `ends_s` is by number of a task, as `TaskGraph.ends_s`. The micro-batches that the
    graph leaves out are slower by as much as the others together are.
    """
    job, plan, graph = scored.job, scored.plan, scored.graph
    spans = graph.spans(ends_s)
    pipeline_s = max(span.end_s for span in spans)
    fold = None
    if scored.left_out:
        left_out_s = scored.left_out_s * (pipeline_s / graph.longest_path_s)
        fold = Fold(pipeline_s / 2, left_out_s, scored.left_out)
        spans = [_after_fold(span, fold) for span in spans]
        pipeline_s += fold.seconds
    return Timeline(
        title=job.spec.title,
        plan=plan,
        step_s=math.fsum(scored.step_parts.values()),
        schedule_s=pipeline_s + scored.sync_s,
        pipeline_s=pipeline_s,
        context_exchange=context_exchange_of(job.spec),
        stages=tuple(_stages(scored, spans)),
        fold=fold,
    )


def _after_fold(span: Span, fold: Fold) -> Span:
    """Return a span, later by the fold if it starts behind it.

    What starts before a time waits for nothing that starts later, so that all tasks
    still follow their sources.
    """
    if span.start_s < fold.start_s:
        return span
    later = (span.start_s + fold.seconds, span.end_s + fold.seconds)
    return span._replace(start_s=later[0], end_s=later[1])


def _stages(scored: Scored, spans: list[Span]) -> Iterator[StageTimeline]:
    plan, times, more = scored.plan, scored.times, scored.left_out
    memory = stage_memory(scored)
    for e, stage in enumerate(plan.stages):
        of_stage = [span for span in spans if span.stage == e]
        whole = _of_stage(times.seconds, e)
        yield StageTimeline(
            layers=stage.layers,
            gpu=stage.gpu,
            tasks=tuple(TaskSpan(*s.task, s.start_s, s.end_s) for s in of_stage),
            parts=_task_parts(scored, e),
            folded={name: more * s for name, s in whole.items()} if more else {},
            sync=_of_stage(times.sync, e),
            fixed_gib={n: x for n, x in memory[e].parts.items() if n not in MOVING},
            held=tuple(_held(scored, of_stage, memory[e])),
            usable_gib=memory[e].usable_gib,
        )


def _splits(scored: Scored) -> bool:
    return schedule_named(scored.plan.schedule).splits_backward


def _of_stage(parts: Parts, stage: int) -> dict[str, float]:
    return {name: float(part[stage]) for name, part in parts.items() if part[stage]}


def _task_parts(scored: Scored, stage: int) -> Kinds:
    """Return the seconds of every kind of task of a stage by part and chunk."""
    times, splits = scored.times, _splits(scored)
    whole = _of_stage(times.seconds, stage)
    forward = _of_stage(times.forward, stage)
    backward = {n: s - forward.get(n, 0.0) for n, s in whole.items()}
    kinds = {"F": forward, "B": backward}
    if splits:
        weight = _weight_parts(backward, float(times.weight_s[stage]))
        kinds["B"] = {n: s - weight.get(n, 0.0) for n, s in backward.items()}
        kinds["W"] = weight
    return {
        (kind, chunk): {n: s / share for n, s in _in_order(parts).items()}
        for kind, parts in kinds.items()
        for chunk, share in enumerate(scored.chunk_parts[stage])
    }


def _weight_parts(backward: Mapping[str, float], weight_s: float) -> dict[str, float]:
    """Return the parts of deferred gradients of weights: kernels, and their waits."""
    compute_s = min(weight_s, backward.get("compute", 0.0))
    return {"compute": compute_s, "host": weight_s - compute_s}


def _in_order(parts: Mapping[str, float]) -> dict[str, float]:
    """Return parts as they follow each other, none below zero.

    A stage that has hardly more than the leading dense layers may have less than none
    of what only other layers do, in one direction; compute makes up for it.
    """
    known = [n for n in IN_ORDER if n in parts] + [
        n for n in parts if n not in IN_ORDER
    ]
    short_s = math.fsum(min(parts[name], 0.0) for name in known)
    kept = {name: max(parts[name], 0.0) for name in known}
    if short_s:
        kept["compute"] += short_s
    return {name: seconds for name, seconds in kept.items() if seconds > 0}


def _held(scored: Scored, spans: list[Span], memory: StageMemory) -> Iterator[Held]:
    """Yield the bytes that a GPU of a stage holds over time; the model gives the peak.

    A chunk is held from its forward until the last task that reads it, logits from the
    last chunk of the model until its backward.
    """
    last = "W" if _splits(scored) else "B"
    head = next(reversed(scored.graph.tasks.places))
    events = []
    for span in spans:
        has_head = (span.stage, span.task.chunk) == head
        if span.task.kind == "F":
            events.append((span.start_s, 1, int(has_head)))
        ends = int(span.task.kind == last), int(span.task.kind == "B" and has_head)
        if any(ends):
            events.append((span.end_s, -ends[0], -ends[1]))
    counts, chunks, heads = [(0.0, 0, 0)], 0, 0
    for at_s, chunk, logits in sorted(events):
        chunks, heads = chunks + chunk, heads + logits
        counts.append((at_s, chunks, heads))
    activations = memory.parts.get("activations", 0.0) / max(c for _, c, _ in counts)
    most_heads = max(max(h for _, _, h in counts), 1)
    logits_gib = memory.parts.get("logits", 0.0) / most_heads
    for at_s, chunks, heads in counts:
        yield Held(at_s, chunks * activations, heads * logits_gib)
