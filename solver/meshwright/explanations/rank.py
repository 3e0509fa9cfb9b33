"""The rank of a plan: how many ways to split the job are faster.

A way to split the job is a skeleton: degrees, micro-batch, ZeRO stage, recompute mode
and so on, on its best mesh with its best split of layers. How fast a skeleton is lies
between its lower bound and a split of layers that exists on its first mesh. So the rank
of a plan is known to lie between two numbers.
"""

from __future__ import annotations

import numpy as np

from meshwright.cost.job import Job
from meshwright.explanations.conflict import solve_only_decisions
from meshwright.plans.columns import Floats, Ints, representatives
from meshwright.results.rank import Rank
from meshwright.search.integer_costs import TICK_S
from meshwright.search.lower_bounds import lower_bound
from meshwright.search.memory_fit import (
    MemoryFit,
    measure_stages,
    scaled_costs,
    stages_by_pp,
    with_times,
)
from meshwright.search.mesh_table import legal_meshes
from meshwright.search.rows import Lattice, build_lattice
from meshwright.search.upper_bounds import construct_pinned_split, split_ticks
from meshwright.topology.groups import price_groups


def rank(job: Job, step_s: float) -> Rank | None:
    """Return the rank of a plan with this step time among all skeletons that fit.

    None where only a solve tells whether a skeleton keeps every limit, and where no
    skeleton fits: the plan then replaces pins of the spec that leave none.
    """
    if solve_only_decisions(job.spec) or job.spec.cluster.parts:
        return None
    lattice = build_lattice(job)
    memory = MemoryFit(job, lattice)
    index = np.flatnonzero(memory.is_fitting())
    if not len(index):
        return None
    costs = with_times(job, memory.costs(index), memory.price_group[index])
    # A nanosecond is rounding, not a difference.
    ticks = step_s / TICK_S - 1
    least_ticks = measure_stages(job, costs, lambda rows: lower_bound(rows, ticks))
    may_be_faster = least_ticks < ticks
    achieved_ticks = _achieved_ticks(job, lattice, index[may_be_faster])
    first = 1 + int((achieved_ticks < ticks).sum())
    last = max(first, int(may_be_faster.sum()))
    return Rank(first=first, last=last, of=len(index), beaten=1 - last / len(index))


def _achieved_ticks(job: Job, lattice: Lattice, index: Ints) -> Floats:
    """Return the step time of a split of each skeleton, on the first of its meshes."""
    chosen, number = representatives(lattice.degree[index])
    degrees = lattice.degrees[lattice.degree[index][chosen]]
    shape = (len(degrees), *degrees.shape[1:], len(job.fabric.sizes))
    first = [legal_meshes(job, one)[0] for one in degrees]
    meshes = np.array(first, dtype=np.int64).reshape(shape)[number]
    rows = lattice.take(index).rows
    paths = price_groups(job.fabric, meshes, rows.ep if job.spec.model.moe else None)
    costs = scaled_costs(job, rows.on_meshes(paths, np.arange(len(rows))))
    ticks = np.empty(len(costs))
    for same_pp, stages in stages_by_pp(job, costs):
        ticks[same_pp] = split_ticks(
            stages, *construct_pinned_split(job.spec.pins, stages)
        )
    return ticks
