"""Where a plan stands among all that fit: how many ways to split the job are faster.

A way is a row of the lattice: degrees, micro-batch, ZeRO stage, recompute mode, and so
on, on its best mesh with its best split of layers. How fast that is lies between a
bound, and a split that exists on the first mesh.
"""

from __future__ import annotations

import numpy as np

from meshwright.bounds.integer_costs import TICK_S
from meshwright.bounds.lower import lower_bound
from meshwright.bounds.memory_fit import (
    Memory,
    by_stages,
    scale_job,
    stages_by_count,
    timed,
)
from meshwright.bounds.upper import pinned_split, split_ticks
from meshwright.cost.job import Job
from meshwright.explanations.conflict import costly_decisions
from meshwright.lattice.lattice import Lattice, build_lattice
from meshwright.lattice.mesh_table import legal_meshes
from meshwright.plans.columns import Floats, Ints, representatives
from meshwright.results.explanation import Standing
from meshwright.topology.groups import price_groups


def standing(job: Job, step_s: float) -> Standing | None:
    """Return where a plan with some step time stands among all of a job.

    None where rows do not tell whether a plan keeps every limit.
    """
    if costly_decisions(job.spec) or job.spec.cluster.parts:
        return None
    lattice = build_lattice(job)
    memory = Memory(job, lattice)
    index = np.flatnonzero(memory.fits())
    costs = timed(job, memory.of(index), memory.which[index])
    # A nanosecond is rounding, not a difference.
    ticks = step_s / TICK_S - 1
    least = by_stages(job, costs, lambda own: lower_bound(own, ticks))
    near = least < ticks
    surely = _on_first_mesh(job, lattice, index[near]) < ticks
    first, last = 1 + int(surely.sum()), max(1, int(near.sum()))
    return Standing(
        first=first,
        last=max(first, last),
        of=len(index),
        beaten=1 - max(first, last) / len(index),
    )


def _on_first_mesh(job: Job, lattice: Lattice, index: Ints) -> Floats:
    """Return ticks of a split of each row on the first mesh of its degrees."""
    own, number = representatives(lattice.degree[index])
    degrees = lattice.degrees[lattice.degree[index][own]]
    shape = (len(degrees), *degrees.shape[1:], len(job.fabric.sizes))
    first = [legal_meshes(job, each)[0] for each in degrees]
    meshes = np.array(first, dtype=np.int64).reshape(shape)[number]
    rows = lattice.take(index).rows
    paths = price_groups(job.fabric, meshes, rows.ep if job.spec.model.moe else None)
    costs = scale_job(job, rows.on_meshes(paths, np.arange(len(rows))))
    result = np.empty(len(costs))
    for own_rows, stages in stages_by_count(job, costs):
        result[own_rows] = split_ticks(stages, *pinned_split(job.spec.pins, stages))
    return result
