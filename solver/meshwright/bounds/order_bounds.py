"""Bounds of orders of GPUs, where the order decides what groups pay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.bounds.candidates import (
    Candidates,
    Unplaced,
)
from meshwright.bounds.integer_costs import zero_costs
from meshwright.bounds.lower_bounds import time_only_bound
from meshwright.bounds.memory_fit import with_times
from meshwright.cost.job import Job
from meshwright.lattice.lattice import Lattice
from meshwright.placement.order_costs import ExpertDegree
from meshwright.plans.columns import Floats, Ints
from meshwright.topology.fabric import PathCosts

OrderBound = Callable[[int, ExpertDegree, PathCosts], Floats]
"""Lower bound on step time, for an index of degrees, ep, and what groups pay."""


def order_bound(job: Job, lattice: Lattice, part: Ints) -> OrderBound:
    """Return a lower bound on the skeletons of a part, by what their groups pay.

    The bound is for those of given degrees, one value for each entry of the costs.
    """
    degrees = lattice.take(part).degree

    def ticks(degree: int, ep: ExpertDegree, paths: PathCosts) -> Floats:
        rows = lattice.take(part[degrees == degree]).rows
        rows = rows.take(np.flatnonzero(rows.ep == (ep or 1)))
        trials, count = len(paths.latency_s), len(rows)
        rows = rows.take(np.tile(np.arange(count), trials))
        paths = paths.take(np.repeat(np.arange(trials), count))
        placed = rows.on_meshes(paths, np.arange(len(rows)))
        costs = with_times(job, zero_costs(placed))
        bound = time_only_bound(costs, job.spec.model.n_layers)
        return np.asarray(bound.reshape(trials, count).min(axis=1, initial=np.inf))

    return ticks


def with_best_degrees(
    lattice: Lattice, batch: Unplaced, found: list[Candidates]
) -> Ints:
    """Return which of a batch have the degrees of the best plan known."""
    upper = np.concatenate([part.upper for part in found])
    unplaced = np.concatenate([part.unplaced for part in found])
    best = unplaced[np.argsort(upper)[:1]]
    degree = lattice.take(batch.number).degree
    return np.flatnonzero(np.isin(degree, lattice.take(best).degree))


def open_orders_bound(lattice: Lattice, index: Ints, bound: Floats) -> float:
    """Return the least bound of some skeletons in GPU orders not looked at."""
    part = lattice.take(index)
    keys = np.stack([part.degree, part.rows.ep], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    wanted = [lattice.key(degree, ep) for degree, ep in distinct.tolist()]
    orders = np.array([lattice.table.open_bound(key) for key in wanted])
    return float(np.maximum(bound, orders[which]).min(initial=np.inf))
