"""Candidates for the best plan: rows on meshes, bounded from below and from above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from meshwright.bounds.integer_costs import Scaled, free
from meshwright.bounds.link_limit import LinkLimit
from meshwright.bounds.lower import cheap_bound, lower_bound
from meshwright.bounds.memory_fit import by_stages, stages_by_count, timed
from meshwright.bounds.stages import Stages, has_one_split
from meshwright.bounds.upper import pinned_split, split_fits, split_ticks
from meshwright.cost.job import Job
from meshwright.lattice.lattice import Lattice
from meshwright.lattice.mesh_table import Budget
from meshwright.plans.columns import Bools, Columns, Floats, Ints


@dataclass(frozen=True)
class Coarse(Columns):
    """Coarse rows that have room, and what they hold: that is so on every mesh."""

    number: Ints
    """Of each: its row in the lattice."""
    memory: Scaled


@dataclass(frozen=True)
class Candidates(Columns):
    """Skeletons on meshes that may hold the best plan, in no order."""

    costs: Scaled
    coarse: Ints
    """Of each: its row in the lattice. Plans on one row differ by mesh alone."""
    floor: Floats
    """Ticks that no split gets below, limits on links left aside."""
    lower: Floats
    """The same with those in mind; infinite where no split keeps them."""
    upper: Floats
    """Ticks of the constructive split; infinite where that breaks a limit or pin."""

    def up_to(self, best: float) -> Candidates:
        """Return the candidates whose lower bound is not above `best`."""
        return self.take(np.flatnonzero(self.lower <= best))


def candidates_of(
    job: Job,
    lattice: Lattice,
    batch: Coarse,
    best: float,
    budget: Budget,
) -> Candidates:
    """Return the coarse rows of a batch on their meshes, bounded both ways.

    What is bounded above `best` is left out as soon as that is known.
    """

    def is_near(costs: Scaled) -> Bools:
        return cheap_bound(costs, job.spec.model.n_layers) <= best

    keep = None if np.isinf(best) else lambda own: is_near(timed(job, free(own)))
    rows, own = lattice.on_meshes(batch.number, budget, keep)
    costs = timed(job, batch.memory.shared(rows, own))
    near = np.flatnonzero(is_near(costs))
    costs, coarse = costs.take(near), batch.number[own[near]]
    lower = by_stages(job, costs, lower_bound_at(best))
    near = np.flatnonzero(lower <= best)
    costs, coarse, lower = costs.take(near), coarse[near], lower[near]
    floor, upper = lower.copy(), np.empty(len(costs))
    share = job.spec.limits.max_link_utilisation
    limit = None if share is None else LinkLimit(job, lattice, share)
    for index, stages in stages_by_count(job, costs):
        upper[index] = _constructed_ticks(job, limit, stages)
        if limit is not None:
            lower[index] = np.maximum(lower[index], limit.least_ticks(stages))
    if not job.kinds:
        # What has no other split, and recomputes no more than it must, is the fastest.
        is_exact = has_one_split(costs.rows) & np.isfinite(upper)
        lower = np.where(is_exact, upper, lower)
    return Candidates(costs, coarse, floor, lower, upper)


def _constructed_ticks(job: Job, limit: LinkLimit | None, stages: Stages) -> Floats:
    """Return ticks of constructive splits, infinite where pins or limits are broken."""
    layers, recomputed = pinned_split(job.spec.pins, stages)
    ticks = split_ticks(stages, layers, recomputed)
    allowed = split_fits(stages, layers, recomputed)
    if limit is not None:
        allowed &= limit.keeps(stages, layers, recomputed, ticks)
    return np.where(allowed, ticks, np.inf)


def kth_best(found: list[Candidates], keep: int) -> float:
    """Return the keep-th least upper bound over coarse rows of different times."""
    coarse = np.concatenate([part.coarse for part in found])
    upper = np.concatenate([part.upper for part in found])
    order = np.argsort(upper, kind="stable")
    _, first = np.unique(coarse[order], return_index=True)
    distinct = np.unique(upper[order][first])
    return float(distinct[keep - 1]) if len(distinct) >= keep else np.inf


def within(job: Job, found: list[Candidates], best: float) -> Candidates:
    """Return the candidates within the best plan, bounded once more against it."""
    merged = Candidates.joined([part.up_to(best) for part in found])
    again = by_stages(job, merged.costs, lower_bound_at(best))
    return replace(merged, lower=np.maximum(merged.lower, again)).up_to(best)


def lower_bound_at(best: float) -> Callable[[Stages], Floats]:
    """Return a bound of stages from below, which may be loose above `best`."""
    return lambda stages: lower_bound(stages, best)
