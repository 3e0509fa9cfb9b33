"""The timeline of a schedule: when every stage runs every task."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.cost.schedule import Span, task_graph
from meshwright.plans.schedules import SCHEDULES, Task, Tasks

__all__ = ["Span", "Task", "stage_order", "timeline"]


def timeline(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    weight_s: Sequence[float],
    microbatches: int,
    schedule: int,
    vpp: int,
) -> list[Span]:
    """Return when every task runs; the tasks of one stage are in their order."""
    graph = task_graph(forward_s, backward_s, weight_s, microbatches, schedule, vpp)
    return graph.spans(graph.ends_s)


def stage_order(
    stage: int, stages: int, microbatches: int, schedule: int, vpp: int
) -> list[Task]:
    """Return a stage's tasks in the order in which it runs them."""
    rules = SCHEDULES[schedule]
    tasks = Tasks(stages, microbatches, vpp, rules.is_v)
    return [tasks.task(number) for number in rules.order(tasks, stage)]
