"""The task graph of a pipeline schedule: when each task ends, and the longest path."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

from meshwright.plans.schedules import KINDS, SCHEDULES, Schedule, Task, Tasks

ChunkParts = Sequence[Sequence[float]]
"""For every stage, how often the seconds of each chunk are in those of the stage."""


class Span(NamedTuple):
    """When a stage runs a task, seconds from the start of the step."""

    stage: int
    task: Task
    start_s: float
    end_s: float


@dataclass(frozen=True)
class TaskGraph:
    """The tasks of a step, the order of every stage's, and how long they take."""

    tasks: Tasks
    orders: list[list[int]]
    """The tasks of every stage as it runs them, by number."""
    seconds: list[float]
    """What a task takes, by its number over the micro-batches."""

    @cached_property
    def ends_s(self) -> list[float]:
        """Return when every task ends; see `end_times_s`."""
        return end_times_s(self.tasks, self.orders, self.seconds)

    @property
    def longest_path_s(self) -> float:
        """Return when the last task ends."""
        return max(self.ends_s[order[-1]] for order in self.orders)

    def spans(self, ends_s: Sequence[float]) -> list[Span]:
        """Return when every task runs, those of a stage in their order.

        `ends_s` is when every task ends, as `self.ends_s` or with disturbances.
        """
        spans = []
        for stage, order in enumerate(self.orders):
            clock_s = 0.0
            for number in order:
                start_s = max(ends_s[self.tasks.source(number)], clock_s)
                clock_s = ends_s[number]
                spans.append(Span(stage, self.tasks.task(number), start_s, clock_s))
        return spans

    @property
    def in_order(self) -> list[int]:
        """Return the tasks of all stages, each after those that it waits for."""
        depth = end_times_s(self.tasks, self.orders, [1.0] * len(self.seconds))
        every = [number for order in self.orders for number in order]
        return sorted(every, key=depth.__getitem__)


def task_graph(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    weight_s: Sequence[float],
    microbatches: int,
    schedule: int,
    vpp: int,
    parts: ChunkParts | None = None,
) -> TaskGraph:
    """Return the schedule's task graph.

    `forward_s`, `backward_s` (for inputs) and `weight_s` are each stage's seconds per
    micro-batch, all chunks together; `parts` is as in `chunk_seconds`.
    """
    tasks, rules = Tasks(len(forward_s), microbatches, vpp), SCHEDULES[schedule]
    seconds = chunk_seconds(forward_s, backward_s, weight_s, rules, vpp, parts)
    orders = [rules.order(tasks, stage) for stage in range(tasks.stages)]
    return TaskGraph(tasks, orders, seconds)


def end_times_s(
    tasks: Tasks, orders: list[list[int]], seconds: list[float]
) -> list[float]:
    """Return when every task ends, by its number, followed by zeros.

    `seconds` is what a task takes, by its number over the micro-batches.
    The zeros stand for the sources of the first tasks. A task waits for the task before
    it on its stage, and for its source on another stage. Each stage runs until a source
    has not ended; then its neighbours may go on.
    """
    stages, per_kind, sources = tasks.stages, tasks.per_kind, tasks.sources
    # The first tasks have no source: negative numbers index the zeros at the end.
    ends_s = [inf] * (len(KINDS) * per_kind) + [0.0] * tasks.microbatches
    done, clocks_s, woken = [0] * stages, [0.0] * stages, deque(range(stages))
    microbatches = tasks.microbatches
    while woken:
        stage = woken.popleft()
        order, clock_s = orders[stage], clocks_s[stage]
        first = index = done[stage]
        while index < len(order):
            number = order[index]
            kind = number // per_kind
            ready_s = ends_s[number - sources[kind]]
            if ready_s == inf:
                break
            takes_s = seconds[number // microbatches]
            clock_s = (ready_s if ready_s > clock_s else clock_s) + takes_s
            ends_s[number] = clock_s
            index += 1
        if index > first:
            done[stage], clocks_s[stage] = index, clock_s
            woken += [(stage + 1) % stages, (stage - 1) % stages]
    return ends_s


def chunk_seconds(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    weight_s: Sequence[float],
    schedule: Schedule,
    vpp: int,
    parts: ChunkParts | None = None,
) -> list[float]:
    """Return the seconds of a task by its number over the micro-batches.

    B includes W where W is not a task. `parts` is what a stage's seconds are divided by
    for each of its chunks, the number of chunks if it is left out.
    """
    stages, is_split = len(forward_s), schedule.splits_backward
    parts = parts or [[vpp] * vpp] * stages
    pairs = zip(backward_s, weight_s, strict=True)
    inputs_s = [b if is_split else b + w for b, w in pairs]
    onward = [(stage, chunk) for chunk in range(vpp) for stage in range(stages)]
    return [
        seconds[stage] / parts[stage][chunk]
        for seconds, order in (
            (forward_s, onward),
            (inputs_s, onward[::-1]),
            (weight_s, onward[::-1]),
        )
        for stage, chunk in order
    ]
