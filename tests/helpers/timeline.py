"""The timeline of a schedule: when every stage runs every task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.cost.schedule_tasks import chunk_seconds, end_times_s
from meshwright.schedules.table import SCHEDULES
from meshwright.schedules.tasks import Task, Tasks


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
