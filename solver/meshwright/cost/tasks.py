"""Pipeline schedules task by task: each stage's order, and when every task runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

from meshwright.skeleton import GPIPE, ZERO_BUBBLE_H1

Kind = Literal["F", "B", "W"]
"""Forward; backward, for inputs alone where W stands apart; weight gradients."""


class Task(NamedTuple):
    """One micro-batch's pass through one chunk of a stage's layers."""

    kind: Kind
    microbatch: int
    chunk: int


class Span(NamedTuple):
    """When a stage runs a task, seconds from the start of the step."""

    stage: int
    task: Task
    start_s: float
    end_s: float


def longest_path_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    weight_s: Sequence[float],
    microbatches: int,
    schedule: int,
    vpp: int,
) -> float:
    """Return the longest path through the schedule's task graph, seconds.

    `forward_s`, `backward_s` (for inputs) and `weight_s` are each stage's seconds per
    micro-batch, all chunks together.
    """
    spans = timeline(forward_s, backward_s, weight_s, microbatches, schedule, vpp)
    return max(span.end_s for span in spans)


def timeline(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    weight_s: Sequence[float],
    microbatches: int,
    schedule: int,
    vpp: int,
) -> list[Span]:
    """Return when every task runs; the tasks of one stage are in their order.

    A task waits for the one before it on its stage, and for its source on another.
    """
    stages = len(forward_s)
    seconds = _chunk_seconds(forward_s, backward_s, weight_s, schedule, vpp)
    queues = [
        deque(stage_order(stage, stages, microbatches, schedule, vpp))
        for stage in range(stages)
    ]
    ended: dict[tuple[int, Task] | None, float] = {None: 0.0}
    clock = [0.0] * stages
    spans: list[Span] = []
    woken = deque(range(stages))
    while woken:
        stage = woken.popleft()
        queue, before = queues[stage], len(spans)
        while queue and (source := _source(stage, queue[0], stages, vpp)) in ended:
            task = queue.popleft()
            start_s = max(clock[stage], ended[source])
            clock[stage] = start_s + seconds[task.kind][stage]
            ended[stage, task] = clock[stage]
            spans.append(Span(stage, task, start_s, clock[stage]))
        if len(spans) > before:
            woken += [(stage + 1) % stages, (stage - 1) % stages]
    return spans


def stage_order(
    stage: int, stages: int, microbatches: int, schedule: int, vpp: int
) -> list[Task]:
    """Return a stage's tasks in order: warm-up forwards, pairs, the last backwards.

    ZB-H1 is 1F1B whose stage e runs the W of micro-batch i right after the B of
    micro-batch i + e, and its last e after all else: W starts the later the fewer
    micro-batches warm the stage up (Qi et al. 2023, section 2.1 and figure 3, top).
    """
    forwards = _forwards(stages, microbatches, vpp)
    backwards = [Task("B", task.microbatch, vpp - 1 - task.chunk) for task in forwards]
    warm = min(len(forwards), _warm_up(stage, stages, microbatches, schedule, vpp))
    tasks = forwards[:warm]
    for forward, backward in zip(forwards[warm:], backwards, strict=False):
        tasks += [forward, backward]
    tasks += backwards[len(forwards) - warm :]
    return _with_weights(tasks, stage) if schedule == ZERO_BUBBLE_H1 else tasks


def _forwards(stages: int, microbatches: int, vpp: int) -> list[Task]:
    """Return the forwards in order.

    Where interleaved, p divides m, and p micro-batches at a time go through one chunk
    after the other (Narayanan et al. 2021, section 2.2.2; Megatron-LM schedules.py:
    get_schedule_table).
    """
    group = stages if vpp > 1 else microbatches
    return [
        Task("F", index, chunk)
        for first in range(0, microbatches, group)
        for chunk in range(vpp)
        for index in range(first, first + group)
    ]


def _warm_up(
    stage: int, stages: int, microbatches: int, schedule: int, vpp: int
) -> int:
    """Return the forwards before a stage's first pair of forward and backward.

    Interleaved: Megatron-LM schedules.py: get_pp_rank_microbatches.
    """
    if schedule == GPIPE:
        return microbatches
    after = stages - stage - 1
    return 2 * after + (vpp - 1) * stages if vpp > 1 else after


def _with_weights(tasks: list[Task], late: int) -> list[Task]:
    """Return the tasks with weight gradients, `late` micro-batches after backwards."""
    result: list[Task] = []
    waiting: deque[Task] = deque()
    for task in tasks:
        result.append(task)
        if task.kind == "B":
            waiting.append(Task("W", task.microbatch, task.chunk))
            result += [waiting.popleft()] if len(waiting) > late else []
    return result + list(waiting)


def _source(stage: int, task: Task, stages: int, vpp: int) -> tuple[int, Task] | None:
    """Return the task on another stage that a task waits for, None where none is.

    Past the last stage the next chunk starts on the first, and back. The last chunk's
    backward and every W follow tasks of their own stage.
    """
    step = {"F": -1, "B": 1, "W": 0}[task.kind]
    wrap, source = divmod(stage + step, stages)
    chunk = task.chunk + wrap
    if task.kind == "W" or not 0 <= chunk < vpp:
        return None
    return source, task._replace(chunk=chunk)


def _chunk_seconds(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    weight_s: Sequence[float],
    schedule: int,
    vpp: int,
) -> dict[Kind, list[float]]:
    """Return each stage's seconds per chunk by kind: B holds W where W has no task."""
    pairs = zip(backward_s, weight_s, strict=True)
    apart = schedule == ZERO_BUBBLE_H1
    return {
        "F": [own / vpp for own in forward_s],
        "B": [(own if apart else own + weight) / vpp for own, weight in pairs],
        "W": [own / vpp for own in weight_s],
    }
