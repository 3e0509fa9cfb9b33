"""The timeline of a schedule: when every stage runs every task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.cost.schedule_tasks import chunk_seconds, end_times_s
from meshwright.plans.schedules.table import SCHEDULES
from meshwright.plans.schedules.tasks import KINDS, Kind, Tasks


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


def timeline(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    weight_s: Sequence[float],
    microbatches: int,
    schedule: int,
    vpp: int,
) -> list[Span]:
    """Return when every task runs; the tasks of one stage are in their order."""
    tasks, rules = Tasks(len(forward_s), microbatches, vpp), SCHEDULES[schedule]
    seconds = chunk_seconds(forward_s, backward_s, weight_s, rules, vpp)
    orders = [rules.order(tasks, stage) for stage in range(tasks.stages)]
    ends_s = end_times_s(tasks, orders, seconds)
    spans = []
    for stage, order in enumerate(orders):
        clock_s = 0.0
        for number in order:
            start_s = max(ends_s[_source(tasks, number)], clock_s)
            clock_s = ends_s[number]
            spans.append(Span(stage, task_of(tasks, number), start_s, clock_s))
    return spans


def stage_order(
    stage: int, stages: int, microbatches: int, schedule: int, vpp: int
) -> list[Task]:
    """Return a stage's tasks in the order in which it runs them."""
    tasks = Tasks(stages, microbatches, vpp)
    return [
        task_of(tasks, number) for number in SCHEDULES[schedule].order(tasks, stage)
    ]


def task_of(tasks: Tasks, number: int) -> Task:
    """Return a task by its number."""
    kind, index = divmod(number, tasks.per_kind)
    step, microbatch = divmod(index, tasks.microbatches)
    chunk = step // tasks.stages
    return Task(KINDS[kind], microbatch, tasks.vpp - 1 - chunk if kind else chunk)


def _source(tasks: Tasks, number: int) -> int:
    """Return the task that a task waits for; negative where there is none."""
    return number - tasks.sources[number // tasks.per_kind]
