"""Pipeline schedules task by task: each stage's order, and when every task runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Literal, NamedTuple

from meshwright.plans.skeletons import GPIPE, ZERO_BUBBLE_H1

Kind = Literal["F", "B", "W"]
"""Forward; backward, for inputs alone where W stands apart; weight gradients."""

KINDS: tuple[Kind, ...] = ("F", "B", "W")


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
    graph = _Graph(len(forward_s), microbatches, schedule, vpp)
    seconds = _chunk_seconds(forward_s, backward_s, weight_s, schedule, vpp)
    orders = graph.orders
    ends_s = _ends_s(graph, orders, seconds)
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
    graph = _Graph(len(forward_s), microbatches, schedule, vpp)
    seconds = _chunk_seconds(forward_s, backward_s, weight_s, schedule, vpp)
    orders = graph.orders
    ends_s = _ends_s(graph, orders, seconds)
    spans = []
    for stage, order in enumerate(orders):
        clock_s = 0.0
        for number in order:
            start_s = max(ends_s[graph.source(number)], clock_s)
            clock_s = ends_s[number]
            spans.append(Span(stage, graph.task(number), start_s, clock_s))
    return spans


def stage_order(
    stage: int, stages: int, microbatches: int, schedule: int, vpp: int
) -> list[Task]:
    """Return a stage's tasks in order: warm-up forwards, pairs, the last backwards."""
    graph = _Graph(stages, microbatches, schedule, vpp)
    return [graph.task(number) for number in graph.order(stage)]


@dataclass(frozen=True)
class _Graph:
    """The tasks of a schedule by number: steps of a micro-batch's way, m tasks each.

    It goes down p v chunks and up again, past the last stage to the first and back: a
    task waits for the one m before it. Weight gradients come p v steps after their
    backward, and wait for that.
    """

    stages: int
    microbatches: int
    schedule: int
    vpp: int

    @property
    def of_a_kind(self) -> int:
        """Return how many tasks of each kind there are."""
        return self.stages * self.vpp * self.microbatches

    def task(self, number: int) -> Task:
        """Return a task by its number."""
        kind, own = divmod(number, self.of_a_kind)
        step, microbatch = divmod(own, self.microbatches)
        chunk = step // self.stages
        return Task(KINDS[kind], microbatch, self.vpp - 1 - chunk if kind else chunk)

    @property
    def sources(self) -> tuple[int, int, int]:
        """Return how far before a task of each kind that stands which it waits for."""
        return self.microbatches, self.microbatches, self.of_a_kind

    def source(self, number: int) -> int:
        """Return the task that a task waits for; below 0 where there is none."""
        return number - self.sources[number // self.of_a_kind]

    @property
    def orders(self) -> list[list[int]]:
        """Return the tasks of every stage in order."""
        return [self.order(stage) for stage in range(self.stages)]

    def order(self, stage: int) -> list[int]:
        """Return a stage's tasks: warm-up forwards, pairs, the last backwards."""
        m, after = self.microbatches, self.stages - stage - 1
        forwards = [number + stage * m for number in self.first_forwards]
        up = self.of_a_kind + after * m
        backwards = [number + up for number in self.first_forwards]
        warm = min(len(forwards), self._warm_up(after))
        tasks = forwards[:warm]
        for pair in zip(forwards[warm:], backwards, strict=False):
            tasks += pair
        tasks += backwards[len(forwards) - warm :]
        is_zb = self.schedule == ZERO_BUBBLE_H1
        return self._with_weights(tasks, stage) if is_zb else tasks

    @cached_property
    def first_forwards(self) -> list[int]:
        """Return the forwards of the first stage in order.

        Where interleaved, p divides m, and p micro-batches at a time go through one
        chunk after the other (Narayanan et al. 2021, section 2.2.2; Megatron-LM
        schedules.py: get_schedule_table).
        """
        m = self.microbatches
        group = self.stages if self.vpp > 1 else m
        return [
            chunk * self.stages * m + index
            for first in range(0, m, group)
            for chunk in range(self.vpp)
            for index in range(first, first + group)
        ]

    def _warm_up(self, after: int) -> int:
        """Return the forwards before the first pair, `after` stages from the last.

        Interleaved: Megatron-LM schedules.py: get_pp_rank_microbatches.
        """
        if self.schedule == GPIPE:
            return self.microbatches
        more = (self.vpp - 1) * self.stages
        return 2 * after + more if self.vpp > 1 else after

    def _with_weights(self, tasks: list[int], late: int) -> list[int]:
        """Return the tasks with weight gradients, `late` micro-batches after backwards.

        ZB-H1 is 1F1B whose stage e runs the W of micro-batch i right after the B of
        micro-batch i + e, and its last e after all else: W starts the later the fewer
        micro-batches warm the stage up (Qi et al. 2023, section 2.1 and figure 3, top).
        """
        result: list[int] = []
        waiting: deque[int] = deque()
        for number in tasks:
            result.append(number)
            if number >= self.of_a_kind:
                waiting.append(number + self.of_a_kind)
                result += [waiting.popleft()] if len(waiting) > late else []
        return result + list(waiting)


def _ends_s(
    graph: _Graph, orders: list[list[int]], seconds: list[list[float]]
) -> list[float]:
    """Return when every task ends, by its number; then zeros, for the first sources.

    A task waits for the one before it on its stage, and for its source on another. Each
    stage runs until a source has not ended; then its neighbours may go on.
    """
    stages, of_a_kind, sources = graph.stages, graph.of_a_kind, graph.sources
    # The first steps have no source: those are the last numbers, counted from behind.
    ends_s = [inf] * (len(KINDS) * of_a_kind) + [0.0] * graph.microbatches
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
    schedule: int,
    vpp: int,
) -> list[list[float]]:
    """Return each stage's seconds per chunk by kind: B holds W where W has no task."""
    pairs = zip(backward_s, weight_s, strict=True)
    apart = schedule == ZERO_BUBBLE_H1
    return [
        [own / vpp for own in forward_s],
        [(own if apart else own + weight) / vpp for own, weight in pairs],
        [own / vpp for own in weight_s],
    ]
