"""Random factors on compute, and the walk of a task graph for many samples at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.cost.schedule import TaskGraph
from meshwright.plans.columns import Floats
from meshwright.plans.schedules import KINDS
from meshwright.results.simulation import Disturbance


class Walked(NamedTuple):
    """End and busy times of many walks."""

    ends_s: Floats
    """When the last micro-batch ends, (samples,)."""
    busy_s: Floats
    """The seconds of the tasks of every stage, (stages, samples)."""


class WalkedTasks(NamedTuple):
    """End of every task, and busy times, of many walks."""

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


@dataclass(frozen=True)
class Draws:
    """Draws factors that slow the compute of stages, for GPUs in lockstep."""

    disturbance: Disturbance
    lockstep_gpus: int
    rng: np.random.Generator

    def jitter(self, samples: int) -> Floats | float:
        """Return the factor on the compute of one task, (samples,).

        A GPU's factor is log-normal with mean 1. Of n GPUs the slowest is at the
        quantile u^(1/n) of that, for a uniform u: one draw stands for all n.
        """
        share = self.disturbance.jitter
        if not share:
            return 1.0
        sigma = float(np.sqrt(np.log1p(share**2)))
        return np.asarray(np.exp(sigma * self._slowest(samples) - sigma**2 / 2))

    def _slowest(self, samples: int) -> Floats:
        """Return the largest of n normal numbers, (samples,)."""
        if self.lockstep_gpus == 1:
            return self.rng.standard_normal(samples)
        from scipy.special import ndtri_exp

        log_u = np.log1p(-self.rng.random(samples))
        return np.asarray(ndtri_exp(log_u / self.lockstep_gpus))

    def slow_stages(self, stages: int, samples: int) -> Floats:
        """Return the factor on all compute of stages in a step, (stages, samples).

        A stage is slow if any of its GPUs is.
        """
        told = self.disturbance
        none_slow = (1 - told.slow_gpus) ** self.lockstep_gpus
        is_slow = self.rng.random((stages, samples)) >= none_slow
        return np.where(is_slow, 1 + told.slowdown, 1.0)
