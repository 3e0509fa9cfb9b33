"""Every legal deployment of a spec, with its bounds."""

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
from meshwright.serving.stages import pinned, stages_by_count
from meshwright.spec.pins import AXES
from meshwright.topology.fabric import Meshes


@dataclass(frozen=True)
class Lattice:
    """Deployments, preferred ones first, with the ticks that bound them."""

    job: ServingJob
    rows: Deployments
    meshes: Meshes
    lower: Ints
    """`NEVER` where a row cannot hold the model, or is too slow for its users."""
    upper: Ints
    layers: tuple[Ints, ...]
    """Of each row, the split that attains the upper bound."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @property
    def possible(self) -> Bools:
        """Return which rows have a plan."""
        return self.upper < NEVER

    def best(self, among: Bools) -> int | None:
        """Return the best row of some, the first of equals; None where none is."""
        chosen = np.flatnonzero(among & self.possible)
        if not len(chosen):
            return None
        return int(chosen[self.upper[chosen].argmin()])

    def plan(self, row: int, layers: Ints) -> ServingPlan:
        """Return the plan of a row and a split."""
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
    """Return the deployments that the rules allow, bounded."""
    rows, meshes = enumerate_deployments(job)
    legal = holding(serving_rules(job.spec, meshes), job.spec, rows)
    return bounded(job, rows.take(np.flatnonzero(legal)), meshes)


def bounded(job: ServingJob, rows: Deployments, meshes: Meshes) -> Lattice:
    """Return rows with their bounds."""
    lower = np.full(len(rows), NEVER, dtype=np.int64)
    upper, layers = lower.copy(), [np.zeros(0, dtype=np.int64)] * len(rows)
    for index, stages in stages_by_count(job, rows):
        own = bounds(stages, job.model.n_layers, pinned(job.spec, stages.count))
        lower[index], upper[index] = own.lower, own.upper
        for row, split in zip(index.tolist(), own.layers, strict=True):
            layers[row] = split
    return Lattice(job, rows, meshes, lower, upper, tuple(layers))


def distinct_rows(rows: Deployments, among: Ints) -> Ints:
    """Return the first of some rows that cost the same: all but the mesh is equal."""
    names = [name for name in vars(rows) if name != "mesh"]
    columns = np.stack([getattr(rows, name)[among] for name in names], axis=1)
    _, first = np.unique(columns, axis=0, return_index=True)
    return among[np.sort(first)]
