"""The legal deployments of a spec, with bounds on their objective."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Bools, Ints
from meshwright.plans.rule import holding
from meshwright.results.serving import ServingPlan
from meshwright.serving.bounds import NEVER, bounds
from meshwright.serving.deployment import Deployments
from meshwright.serving.enumeration import enumerate_deployments
from meshwright.serving.job import ServingJob
from meshwright.serving.rules import serving_rules
from meshwright.serving.stage_costs import costs_by_stage_count, pinned
from meshwright.spec.plan_fields import AXES
from meshwright.topology.fabric import Meshes


@dataclass(frozen=True)
class Lattice:
    """Deployments, the preferred ones first, with bounds in ticks."""

    job: ServingJob
    rows: Deployments
    meshes: Meshes
    lower: Ints
    """`NEVER` where no split fits in memory and within the latency limits."""
    upper: Ints
    """Ticks of the split in `layers`; `NEVER` likewise."""
    layers: tuple[Ints, ...]
    """The layers of each stage, for every row."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @property
    def possible(self) -> Bools:
        """Return which rows have a plan that fits."""
        return self.upper < NEVER

    def best(self, among: Bools) -> int | None:
        """Return the best row among some, the first of equals; None if none fits."""
        possible = np.flatnonzero(among & self.possible)
        if not len(possible):
            return None
        return int(possible[self.upper[possible].argmin()])

    def plan(self, row: int, layers: Ints) -> ServingPlan:
        """Return the plan of a row with a split of layers."""
        rows = self.rows
        mesh = self.meshes[rows.mesh[row]]
        return ServingPlan(
            tp=int(rows.tp[row]),
            pp=int(rows.pp[row]),
            dp_replicate=int(rows.dp_replicate[row]),
            microbatches=int(rows.microbatches[row]),
            layers=tuple(layers.tolist()),
            mesh={axis: tuple(mesh[i].tolist()) for i, axis in enumerate(AXES)},
        )


def build_lattice(job: ServingJob) -> Lattice:
    """Return the deployments that the rules allow, with their bounds."""
    rows, meshes = enumerate_deployments(job)
    legal = holding(serving_rules(job.spec, meshes), job.spec, rows)
    return bounded(job, rows.take(np.flatnonzero(legal)), meshes)


def bounded(job: ServingJob, rows: Deployments, meshes: Meshes) -> Lattice:
    """Return rows with their bounds."""
    lower = np.full(len(rows), NEVER, dtype=np.int64)
    upper, layers = lower.copy(), [np.zeros(0, dtype=np.int64)] * len(rows)
    for index, stages in costs_by_stage_count(job, rows):
        found = bounds(stages, job.model.n_layers, pinned(job.spec, stages.count))
        lower[index], upper[index] = found.lower, found.upper
        for row, split in zip(index.tolist(), found.layers, strict=True):
            layers[row] = split
    return Lattice(job, rows, meshes, lower, upper, tuple(layers))


def distinct_rows(rows: Deployments, among: Ints) -> Ints:
    """Return the first row of each set whose columns all agree but for the mesh."""
    names = [name for name in vars(rows) if name != "mesh"]
    columns = np.stack([getattr(rows, name)[among] for name in names], axis=1)
    _, first = np.unique(columns, axis=0, return_index=True)
    return among[np.sort(first)]
