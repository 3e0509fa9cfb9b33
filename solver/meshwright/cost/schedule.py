"""Pipeline schedules: chunks in flight, the step in closed form, and its task graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.schedules import (
    IS_V,
    KINDS,
    SCHEDULES,
    Schedule,
    Task,
    Tasks,
    by_schedule,
)
from meshwright.spec.plan_fields import way


def in_flight(schedule: Ints, microbatches: Ints, vpp: Ints, stages: int) -> Ints:
    """Return the most chunks of activations that stages hold, (rows, stages)."""
    after = np.arange(stages - 1, -1, -1)
    columns = (schedule[:, None], microbatches[:, None], vpp[:, None])
    return in_flight_before(after, *columns, stages)


def in_flight_before(
    after: Ints, schedule: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
) -> Ints:
    """Return the same for stages with `after` stages behind them, in any shape.

    A chunk is one micro-batch's activations of 1/vpp of the stage's layers.
    """
    columns = (after, microbatches, vpp, stages)
    held: Ints = by_schedule(schedule, lambda rules: rules.in_flight(*columns))
    return held


def heads_in_flight(schedule: Ints, microbatches: Ints) -> Ints:
    """Return the micro-batches whose logits the last stage holds, (rows,)."""
    heads: Ints = by_schedule(
        schedule, lambda rules: rules.heads_in_flight(microbatches)
    )
    return heads


def most_in_flight(schedule: Ints, microbatches: Ints, vpp: Ints, stages: Ints) -> Ints:
    """Return the most micro-batches in flight on any stage, all chunks together."""
    columns = (microbatches, vpp, stages)
    most: Ints = by_schedule(schedule, lambda rules: rules.most_in_flight(*columns))
    return most


def ends(schedule: Ints | int, stages: Ints | int, index: Ints) -> tuple[Bools, Bools]:
    """Return which stages have the embedding, and which the head; see `sends`.

    `index` numbers the stages from the first. In a V the first stage has both.
    """
    return index == 0, index == np.where(IS_V[schedule], 0, np.asarray(stages) - 1)


def sends(stages: int, vpp: Ints | int, schedule: Ints | int) -> tuple[Ints, Ints]:
    """Return how often each stage sends a micro-batch on, and its gradients back.

    Each does so once per chunk, except that the stage with the head sends nothing after
    that, the first stage sends no gradients of its first chunk, and the last stage of a
    V sends nothing between its two. The shape is (stages,), or (rows, stages) if `vpp`
    and `schedule` are (rows, 1).
    """
    index = np.arange(stages)
    first, last = ends(schedule, stages, index)
    chunks = (vpp if stages > 1 else 1) * np.ones(stages, dtype=np.int64)
    chunks = chunks - (IS_V[schedule] & (index == stages - 1))
    return chunks - last, chunks - first


@dataclass(frozen=True)
class StepWeights:
    """How often the seconds of a stage count in the step, (rows,).

    With tau = F + B + W, the seconds of a stage's forward, backward for inputs and
    backward for weights of one micro-batch, the step takes

        sum of (fill_share tau - deferred W) + max of (pace_count tau + deferred W)

    over the stages: both linear in the stage's layers and recomputed layers.
    """

    fill_share: Floats
    pace_count: Floats
    deferred: Floats

    def fill_s(self, tau_s: Floats, weight_s: Floats) -> Floats:
        """Return the seconds that a stage adds to the fill."""
        return self.fill_share * tau_s - self.deferred * weight_s

    def pace_s(self, tau_s: Floats, weight_s: Floats) -> Floats:
        """Return the seconds that a stage adds to the pace."""
        return self.pace_count * tau_s + self.deferred * weight_s


def step_weights(
    schedule: Ints, microbatches: Ints, vpp: Ints, stages: Ints
) -> StepWeights:
    """Return how often the seconds of a stage count in the step.

    Even stages take m tau and a bubble of (p - 1) tau / v, less what is deferred; see
    the schedules in `plans.schedules`.
    """
    columns = (microbatches, vpp, stages)
    fill_share = by_schedule(schedule, lambda rules: rules.fill_share(*columns))
    return StepWeights(
        fill_share=fill_share,
        pace_count=microbatches - fill_share,
        deferred=by_schedule(
            schedule, lambda rules: rules.deferred(microbatches, stages)
        ),
    )


def closed_form_s(
    tau_s: Floats, weight_s: Floats, schedule: Ints, microbatches: Ints, vpp: Ints
) -> Floats:
    """Return the pipeline's seconds from those of each stage, (rows, stages).

    `tau_s` is all seconds of a stage per micro-batch, `weight_s` those of its weight
    gradients, which zero-bubble schedules defer. Against the longest path of the task
    graph the result

    - is exact for even stages; under ZB-H1 only if W is not above F or B, else it is
      too low, since no more than min(F, B, W) fills a bubble;
    - for uneven stages with equal shares of F, B and W is exact for GPipe, and an upper
      bound for 1F1B, for ZB-H1 with m >= p, and, rare cases aside, for interleaved;
    - under ZB-V is exact for even stages with F = B = W; it is too low by
      (p - 1) (B - F) / 4 if m >= 2 p - 1, F and W are not above B, and B not above 2 W;
    - under DualPipeV is exact for even stages with W <= B <= F <= B + W, and too low
      for others;
    - for stages with different shares can be on either side; for GPipe it is never too
      high, since the slowest forward and the slowest backward count separately.

    `GAPS` in tests/cost/test_schedule.py holds the measured gaps.
    """
    stages = np.array(tau_s.shape[1])
    column = (schedule[:, None], microbatches[:, None], vpp[:, None])
    weights = step_weights(*column, stages)
    fill = weights.fill_s(tau_s, weight_s).sum(axis=1)
    result: Floats = fill + weights.pace_s(tau_s, weight_s).max(axis=1)
    return result


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
    """Seconds of a task, by its number; a whole backward has those of its W."""
    whole: Mapping[int, float]
    """By the number of a whole backward, the share of its seconds before its W."""

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

        `ends_s` is when every task ends, as `self.ends_s` or with disturbances. The W
        of a whole backward runs in the end of it.
        """
        spans = []
        for stage, order in enumerate(self.orders):
            clock_s = 0.0
            for number in order:
                task, source = self.tasks.task(number), self.tasks.source(number)
                start_s = clock_s
                if task.kind != "W" or source not in self.whole:
                    start_s = max(ends_s[source], clock_s)
                weights = 1 - self.whole.get(number, 1.0)
                clock_s = ends_s[number] - (ends_s[number] - start_s) * weights
                spans.append(Span(stage, task, start_s, clock_s))
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
    rules = SCHEDULES[schedule]
    tasks = Tasks(len(forward_s), microbatches, vpp, rules.is_v)
    chunks_s = chunk_seconds(forward_s, backward_s, weight_s, rules, vpp, parts)
    seconds = [takes_s for takes_s in chunks_s for _ in range(microbatches)]
    orders = [rules.order(tasks, stage) for stage in range(tasks.stages)]
    whole = {}
    for stage in range(tasks.stages):
        for number in rules.whole_backwards(tasks, stage):
            inputs_s, weights = seconds[number], number + tasks.per_kind
            seconds[number] += seconds[weights]
            seconds[weights] = 0.0
            whole[number] = inputs_s / (seconds[number] or 1.0)
    return TaskGraph(tasks, orders, seconds, whole)


def end_times_s(
    tasks: Tasks, orders: list[list[int]], seconds: list[float]
) -> list[float]:
    """Return when every task ends, by its number, followed by zeros.

    `seconds` is what a task takes, by its number. The zeros stand for the sources of
    the first tasks. A task waits for the task before it on its stage, and for its
    source on another stage. Each stage runs until a source has not ended; then its
    neighbours may go on.
    """
    stages, per_kind, sources = tasks.stages, tasks.per_kind, tasks.sources
    # The first tasks have no source: negative numbers index the zeros at the end.
    ends_s = [inf] * (len(KINDS) * per_kind) + [0.0] * tasks.microbatches
    done, clocks_s, woken = [0] * stages, [0.0] * stages, deque(range(stages))
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
            clock_s = (ready_s if ready_s > clock_s else clock_s) + seconds[number]
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
    """Return the seconds of a task of every chunk, by kind, in the order of numbers.

    B includes W where W is not a task. `parts` is what a stage's seconds are divided by
    for each of its chunks, the number of chunks if it is left out.
    """
    stages, is_split = len(forward_s), schedule.splits_backward
    parts = parts or [[vpp] * vpp] * stages
    pairs = zip(backward_s, weight_s, strict=True)
    inputs_s = [b if is_split else b + w for b, w in pairs]
    onward = way(stages, vpp, schedule.is_v)
    return [
        seconds[stage] / parts[stage][chunk]
        for seconds, order in (
            (forward_s, onward),
            (inputs_s, onward[::-1]),
            (weight_s, onward[::-1]),
        )
        for stage, chunk in order
    ]
