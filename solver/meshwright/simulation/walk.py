"""Walks a schedule's task graph for many samples at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.cost.schedule_tasks import TaskGraph
from meshwright.plans.columns import Floats
from meshwright.plans.schedules.tasks import KINDS


class Walked(NamedTuple):
    """What comes of a walk."""

    ends_s: Floats
    """When the last micro-batch ends, (samples,)."""
    busy_s: Floats
    """The seconds of the tasks of every stage, (stages, samples)."""


class WalkedTasks(NamedTuple):
    """What comes of a walk, task by task."""

    ends_s: Floats
    """When a task ends, by its number as in `TaskGraph.ends_s`, (tasks, samples)."""
    busy_s: Floats
    """The seconds of the tasks of every stage, (stages, samples)."""


def walk(
    graph: TaskGraph,
    compute: Sequence[float],
    stage_factor: Floats,
    task_factor: Callable[[], Floats | float],
) -> Walked:
    """Return how long a pipeline takes in every sample; see `walk_tasks`."""
    walked = walk_tasks(graph, compute, stage_factor, task_factor)
    last = [order[-1] for order in graph.orders]
    return Walked(walked.ends_s[last].max(axis=0), walked.busy_s)


def walk_tasks(
    graph: TaskGraph,
    compute: Sequence[float],
    stage_factor: Floats,
    task_factor: Callable[[], Floats | float],
) -> WalkedTasks:
    """Return when every task of a pipeline ends in every sample.

    Args:
        graph: The tasks; their seconds are those without disturbance.
        compute: The share of compute in a task's seconds, in the order of
            `graph.seconds`; the rest is the same in all samples.
        stage_factor: On the compute of a stage, (stages, samples).
        task_factor: Returns the factor on the compute of the next task, (samples,).
    """
    tasks, stages = graph.tasks, graph.tasks.stages
    m, samples = tasks.microbatches, stage_factor.shape[1]
    ends_s = np.zeros((len(KINDS) * tasks.per_kind + m, samples))
    clocks_s, busy_s = np.zeros((stages, samples)), np.zeros((stages, samples))
    stage_of = _stages(graph)
    for number in graph.in_order:
        row = number // m
        stage = stage_of[row]
        steady_s = graph.seconds[row] * (1 - compute[row])
        disturbed_s = graph.seconds[row] * compute[row]
        takes_s = steady_s + disturbed_s * stage_factor[stage] * task_factor()
        start_s = np.maximum(ends_s[tasks.source(number)], clocks_s[stage])
        clocks_s[stage] = ends_s[number] = start_s + takes_s
        busy_s[stage] += takes_s
    return WalkedTasks(ends_s, busy_s)


def _stages(graph: TaskGraph) -> list[int]:
    """Return the stage of a task by its number over the micro-batches."""
    m = graph.tasks.microbatches
    stage_of = [0] * len(graph.seconds)
    for stage, order in enumerate(graph.orders):
        for number in order:
            stage_of[number // m] = stage
    return stage_of
