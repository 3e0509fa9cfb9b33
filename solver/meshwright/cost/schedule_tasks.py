"""Pipeline schedules task by task: when every task runs, and how long all take."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from meshwright.schedules.schedule import Schedule
from meshwright.schedules.table import SCHEDULES
from meshwright.schedules.tasks import KINDS, Task, Tasks


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
    tasks, own = Tasks(len(forward_s), microbatches, vpp), SCHEDULES[schedule]
    seconds = _chunk_seconds(forward_s, backward_s, weight_s, own, vpp)
    orders = [own.order(tasks, stage) for stage in range(tasks.stages)]
    ends_s = _ends_s(tasks, orders, seconds)
    return max(ends_s[order[-1]] for order in orders)


def timeline(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    weight_s: Sequence[float],
    microbatches: int,
    schedule: int,
    vpp: int,
) -> list[Span]:
    """Return when every task runs; the tasks of one stage are in their order."""
    tasks, own = Tasks(len(forward_s), microbatches, vpp), SCHEDULES[schedule]
    seconds = _chunk_seconds(forward_s, backward_s, weight_s, own, vpp)
    orders = [own.order(tasks, stage) for stage in range(tasks.stages)]
    ends_s = _ends_s(tasks, orders, seconds)
    spans = []
    for stage, order in enumerate(orders):
        clock_s = 0.0
        for number in order:
            start_s = max(ends_s[tasks.source(number)], clock_s)
            clock_s = ends_s[number]
            spans.append(Span(stage, tasks.task(number), start_s, clock_s))
    return spans


def stage_order(
    stage: int, stages: int, microbatches: int, schedule: int, vpp: int
) -> list[Task]:
    """Return a stage's tasks in the order in which it runs them."""
    tasks = Tasks(stages, microbatches, vpp)
    return [tasks.task(number) for number in SCHEDULES[schedule].order(tasks, stage)]


def _ends_s(
    tasks: Tasks, orders: list[list[int]], seconds: list[list[float]]
) -> list[float]:
    """Return when every task ends, by its number; then zeros, for the first sources.

    A task waits for the one before it on its stage, and for its source on another. Each
    stage runs until a source has not ended; then its neighbours may go on.
    """
    stages, of_a_kind, sources = tasks.stages, tasks.of_a_kind, tasks.sources
    # The first steps have no source: those are the last numbers, counted from behind.
    ends_s = [inf] * (len(KINDS) * of_a_kind) + [0.0] * tasks.microbatches
    done, clocks_s, woken = [0] * stages, [0.0] * stages, deque(range(stages))
    by_stage = list(zip(*seconds, strict=True))
    while woken:
        stage = woken.popleft()
        order, clock_s, takes_s = orders[stage], clocks_s[stage], by_stage[stage]
        first = index = done[stage]
        while index < len(order):
            number = order[index]
            kind = number // of_a_kind
            ready_s = ends_s[number - sources[kind]]
            if ready_s == inf:
                break
            clock_s = (ready_s if ready_s > clock_s else clock_s) + takes_s[kind]
            ends_s[number] = clock_s
            index += 1
        if index > first:
            done[stage], clocks_s[stage] = index, clock_s
            woken += [(stage + 1) % stages, (stage - 1) % stages]
    return ends_s


def _chunk_seconds(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    weight_s: Sequence[float],
    schedule: Schedule,
    vpp: int,
) -> list[list[float]]:
    """Return each stage's seconds per chunk by kind: B holds W where W has no task."""
    pairs = zip(backward_s, weight_s, strict=True)
    apart = schedule.splits_backward
    return [
        [own / vpp for own in forward_s],
        [(own if apart else own + weight) / vpp for own, weight in pairs],
        [own / vpp for own in weight_s],
    ]
