"""A plan as columns of length one, with its prices and the times of its stages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.links import link_seconds
from meshwright.cost.price import (
    Prices,
    StageTimes,
    price,
    stage_times,
    step_parts,
    times_on_kinds,
)
from meshwright.cost.schedule_tasks import TaskGraph, task_graph
from meshwright.plans.columns import Floats, total
from meshwright.plans.plan import Plan
from meshwright.plans.schedules import schedule_named
from meshwright.plans.skeletons import Skeletons, Split, to_row, to_split
from meshwright.topology.fabric import Place
from meshwright.topology.groups import price_groups_by_gpu_kind

MOST_TASKS = 16_000
"""Most tasks of a schedule's graph that are computed one by one."""


@dataclass(frozen=True)
class Scored:
    """A plan as columns of length one, with its prices and split."""

    job: Job
    plan: Plan
    place: Place
    prices: Prices
    split: Split
    times: StageTimes

    @property
    def rows(self) -> Skeletons:
        """Return the plan as one row."""
        return self.prices.rows

    @cached_property
    def link_s(self) -> Floats:
        """Return how long each group keeps each link busy, (stages, groups, links)."""
        return link_seconds(self.job, self.rows, self.split, self.place)

    @property
    def busy_s(self) -> Floats:
        """Return the same for all groups together, (stages, links)."""
        return np.asarray(self.link_s.sum(axis=1))

    @property
    def step_parts(self) -> dict[str, float]:
        """Return the step time by part, in closed form."""
        return step_parts(self.rows, self.times)

    @cached_property
    def graph(self) -> TaskGraph:
        """Return the schedule's tasks, without micro-batches beyond `MOST_TASKS`."""
        times = self.times
        seconds, forward = total(times.seconds), times.forward_s
        return task_graph(
            forward.tolist(),
            (seconds - forward - times.weight_s).tolist(),
            times.weight_s.tolist(),
            exact_microbatches(self.plan),
            int(self.rows.schedule[0]),
            self.plan.vpp,
            chunk_parts(self.plan),
        )

    @property
    def left_out(self) -> int:
        """Return how many micro-batches `graph` leaves out."""
        return self.plan.microbatches - self.graph.tasks.microbatches

    @property
    def left_out_s(self) -> float:
        """Return their seconds, at the rate of a full pipeline."""
        rules = schedule_named(self.plan.schedule)
        rate_s = rules.rate_s(total(self.times.seconds), self.times.forward_s)
        return self.left_out * rate_s

    @property
    def sync_s(self) -> float:
        """Return the seconds of the end of the step, on the slowest stage."""
        return float(total(self.times.sync).max())

    @property
    def schedule_s(self) -> float:
        """Return the step time by the longest path through the schedule's tasks."""
        return self.graph.longest_path_s + self.left_out_s + self.sync_s


def score(job: Job, plan: Plan) -> Scored:
    """Return a plan with its prices and the times of its stages."""
    rows, place = to_row(job.fabric, plan)
    prices, split = price(job, rows), to_split(plan)
    if not job.gpu_kinds:
        times = stage_times(rows, prices.time, split)
        return Scored(job, plan, place, prices, split, times)
    by_kind = [
        stage_times(row, price(kind, row).time, split)
        for kind, row in rows_by_kind(job, rows, place)
    ]
    times = times_on_kinds(by_kind, job.gpu_kind_of_stage(plan.pp))
    return Scored(job, plan, place, prices, split, times)


def rows_by_kind(
    job: Job, rows: Skeletons, place: Place
) -> list[tuple[Job, Skeletons]]:
    """Return, for each kind of GPU that stages lie on, the job and the row on it."""
    if not job.gpu_kinds:
        return [(job, rows)]
    fabrics = [kind.fabric for kind in job.gpu_kinds]
    by_kind = price_groups_by_gpu_kind(fabrics, place.mesh[None], rows.paths, rows.ep)
    placed = (rows.on_meshes(paths, rows.mesh) for paths in by_kind)
    return list(zip(job.gpu_kinds, placed, strict=True))


def chunk_parts(plan: Plan) -> list[list[float]]:
    """Return how often each chunk's layers are in those of its stage.

    A plan that is no more than a near miss may have chunks without layers.
    """
    layers = np.array(plan.chunk_layers).reshape(plan.vpp, plan.pp).T
    whole, empty = layers.sum(axis=1, keepdims=True), np.full(layers.shape, np.inf)
    parts: list[list[float]] = np.divide(
        whole, layers, out=empty, where=layers > 0
    ).tolist()
    return parts


def exact_microbatches(plan: Plan) -> int:
    """Return how many micro-batches are computed task by task, in whole rounds."""
    rounds = max(MOST_TASKS // (3 * plan.vpp * plan.pp**2), 2)
    return min(plan.microbatches, rounds * plan.pp)
