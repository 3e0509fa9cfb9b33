"""Pipeline schedules task by task: each stage's order, and when every task runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Literal, NamedTuple

from meshwright.skeleton import GPIPE, ZERO_BUBBLE_H1

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
    return max(run.clock_s for run in _walked(graph, seconds))


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
    return [
        Span(stage, graph.task(number), start_s, start_s + run.seconds[kind])
        for stage, run in enumerate(_walked(graph, seconds))
        for number, start_s in zip(run.order, run.start_s, strict=True)
        for kind in [number // graph.of_a_kind]
    ]


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


class _Stage:
    """A stage on its way through its tasks."""

    def __init__(self, graph: _Graph, number: int, seconds: list[float]) -> None:
        self.order = graph.order(number)
        self.seconds = seconds
        self.start_s: list[float] = []
        self.clock_s = 0.0
        self._graph = graph

    def run(self, ended_s: list[float | None]) -> bool:
        """Run the tasks whose sources have ended, and return whether there are any."""
        of_a_kind, m = self._graph.of_a_kind, self._graph.microbatches
        back = (m, m, of_a_kind)
        first, clock_s, seconds = len(self.start_s), self.clock_s, self.seconds
        for number in islice(self.order, first, None):
            kind = number // of_a_kind
            ready_s = ended_s[number - back[kind]]
            if ready_s is None:
                break
            start_s = ready_s if ready_s > clock_s else clock_s
            self.start_s.append(start_s)
            clock_s = ended_s[number] = start_s + seconds[kind]
        self.clock_s = clock_s
        return len(self.start_s) > first


def _walked(graph: _Graph, seconds: list[list[float]]) -> list[_Stage]:
    """Return every stage after its last task.

    A task waits for the one before it on its stage, and for its source on another.
    """
    count = graph.stages
    stages = [_Stage(graph, e, [own[e] for own in seconds]) for e in range(count)]
    # The first steps have no source: those are the last numbers, counted from behind.
    ended_s = [None] * 3 * graph.of_a_kind + [0.0] * graph.microbatches
    woken = deque(range(count))
    while woken:
        stage = woken.popleft()
        if stages[stage].run(ended_s):
            woken += [(stage + 1) % count, (stage - 1) % count]
    return stages


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
