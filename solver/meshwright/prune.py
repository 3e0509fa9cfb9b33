"""Branch and bound over the lattice: which skeletons can still be the best one.

Coarse rows are taken in the order of a cheap bound, in growing batches. Each batch is
bounded with memory in mind, what is left is placed on its meshes, bounded again, and a
constructive split gives a plan that exists. Rows whose bound is above the best plan
are dropped; when the next cheap bound is, everything after it is too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from meshwright import bounds, splits
from meshwright.cost.arrays import Bools, Floats, Ints, joined, take
from meshwright.cost.links import link_seconds
from meshwright.cost.price import Split, price
from meshwright.job import Job
from meshwright.lattice import Lattice
from meshwright.meshes import AS_LISTED, Budget
from meshwright.needless import is_needless
from meshwright.orders import Share
from meshwright.placement import Placer
from meshwright.plan import Counts
from meshwright.room import (
    Memory,
    by_stages,
    scale_job,
    stages_by_count,
    with_best_time,
)
from meshwright.scaling import TICK_S, Scaled
from meshwright.skeleton import NONE, Skeletons
from meshwright.spec.pins import Pins
from meshwright.stages import Stages
from meshwright.topology.paths import Paths

FIRST_BATCH = 64
"""Coarse rows in the first batch."""

GROWTH = 4
"""How many times as many the next one has: thousands take little longer than one."""


@dataclass(frozen=True)
class Candidates:
    """Skeletons on meshes that may hold the best plan, in no order."""

    costs: Scaled
    coarse: Ints
    """Of each: its row in the lattice. Plans on one row differ by mesh alone."""
    lower: Floats
    upper: Floats
    """Ticks of the constructive split; infinite where that breaks a limit or pin."""

    def take(self, index: Ints) -> Candidates:
        """Return the candidates of `index`."""
        return take(self, index)

    def up_to(self, best: float) -> Candidates:
        """Return the candidates whose lower bound is not above `best`."""
        return self.take(np.flatnonzero(self.lower <= best))


@dataclass(frozen=True)
class Pruned:
    """What is left of a lattice, and where the rest went."""

    candidates: Candidates
    counts: Counts
    open_bound: float
    """Least bound of the rows that time ran out on, ticks; infinite if none."""


def prune(
    job: Job,
    lattice: Lattice,
    keep: int = 1,
    spare: int = 1,
    deadline: float = np.inf,
    on_progress: Callable[[str], None] = lambda _: None,
    is_pruning: bool = True,
) -> Pruned:
    """Return the candidates for the `keep` best plans on distinct coarse rows.

    So many as `spare` are kept beside, unless they are the same plan with something
    freed.
    `deadline` is on the clock of `time.monotonic`; at least one batch is done.
    Without pruning every skeleton that fits is a candidate, for comparison.
    """
    # Most rows of a large lattice hold too much: time is priced for the others alone.
    memory = Memory(job, lattice)
    fitting = memory.fits()
    order = np.flatnonzero(fitting)
    if is_pruning and keep == 1:
        order = order[~is_needless(job, lattice, order)]
    coarse = with_best_time(job, memory.of(order), lattice.alike[order])
    cheap = bounds.cheap_bound(coarse, job.spec.model.n_layers)
    by_bound = np.argsort(cheap, kind="stable")
    found = [_place(job, lattice, order[:0], np.inf, AS_LISTED)]
    ticks = _ticks(job, lattice, order)
    best, done, size = np.inf, 0, FIRST_BATCH
    while done < len(order) and cheap[by_bound[done]] <= best:
        if done and time.monotonic() > deadline:
            break
        on_progress(f"bounded {done:,} of {len(order):,} rows")
        batch = by_bound[done : done + size]
        done, size = done + size, size * GROWTH
        near = by_stages(job, coarse.take(batch), _lower(best)) <= best
        if np.isinf(best) and lattice.table.has_choice:
            # Orders of GPUs are searched against a plan that exists: first as they
            # are listed, then as swaps better that.
            rows = order[batch[near]]
            found.append(_place(job, lattice, rows, best, AS_LISTED))
            if is_pruning:
                best = _kth_best(found, keep + spare)
                soon = Budget(best, ticks, Placer.good, 0.0)
                found.append(_place(job, lattice, rows, best, soon))
                best = _kth_best(found, keep + spare)
                rows = _alike_to_best(lattice, rows, found)
                within = Budget(best, ticks, Placer.placements, best)
                found.append(_place(job, lattice, rows, best, within))
                best = _kth_best(found, keep + spare)
        within = Budget(best, ticks, Placer.placements, best)
        own = _place(job, lattice, order[batch[near]], best, within)
        found.append(own.up_to(best))
        if is_pruning:
            best = _kth_best(found, keep + spare)
    candidates = _final(job, found, best)
    able = int(lattice.copies[lattice.degree[fitting]].sum())
    counts = Counts(
        skeletons=lattice.skeletons,
        no_memory=lattice.skeletons - able,
        bounded=able - len(candidates.lower),
        survivors=len(candidates.lower),
    )
    return Pruned(
        candidates, counts, _open_bound(lattice, order, cheap, by_bound[done:])
    )


def _open_bound(lattice: Lattice, order: Ints, cheap: Floats, late: Ints) -> float:
    """Return ticks of plans that time ran out on, in general or to search orders."""
    number = lattice.degree[order]
    degrees, inverse = np.unique(number, return_inverse=True)
    bounds = np.array([lattice.table.open_bound(own) for own in degrees.tolist()])
    left = np.maximum(cheap, bounds[inverse])
    left[late] = cheap[late]
    return float(left.min(initial=np.inf))


def _lower(best: float) -> Callable[[Stages], Floats]:
    return lambda stages: bounds.lower_bound(stages, best)


def _ticks(
    job: Job, lattice: Lattice, order: Ints
) -> Callable[[int, Share, Paths], Floats]:
    """Return what the plans of some degrees take at least by what groups pay."""

    def ticks(degree: int, ep: Share, paths: Paths) -> Floats:
        own = lattice.rows.take(order[lattice.degree[order] == degree])
        own = own.take(np.flatnonzero(own.ep == (ep or 1)))
        trials, each = len(paths.latency_s), len(own)
        rows = own.take(np.tile(np.arange(each), trials))
        tried = take(paths, np.repeat(np.arange(trials), each))
        costs = scale_job(job, rows.on_meshes(tried, np.arange(len(rows))))
        bound = bounds.cheap_bound(costs, job.spec.model.n_layers)
        return np.asarray(bound.reshape(trials, each).min(axis=1, initial=np.inf))

    return ticks


def _place(
    job: Job, lattice: Lattice, batch: Ints, best: float, budget: Budget
) -> Candidates:
    """Return the coarse rows of a batch on their meshes, bounded both ways.

    What is bounded above `best` is left out as soon as that is known.
    """

    def is_near(costs: Scaled) -> Bools:
        return bounds.cheap_bound(costs, job.spec.model.n_layers) <= best

    keep = None if np.isinf(best) else lambda own: is_near(scale_job(job, own))
    rows, coarse = lattice.on_meshes(batch, budget, keep)
    costs = scale_job(job, rows)
    near = np.flatnonzero(is_near(costs))
    costs, coarse = costs.take(near), coarse[near]
    lower = by_stages(job, costs, _lower(best))
    near = np.flatnonzero(lower <= best)
    costs, coarse, lower = costs.take(near), coarse[near], lower[near]
    upper = np.empty(len(costs))
    for index, stages in stages_by_count(job, costs):
        layers, recomputed = pinned_split(job.spec.pins, stages)
        ticks = splits.split_ticks(stages, layers, recomputed)
        allowed = splits.split_fits(stages, layers, recomputed)
        allowed &= _keeps_link_limit(job, lattice, stages, layers, recomputed, ticks)
        upper[index] = np.where(allowed, ticks, np.inf)
    return Candidates(costs, coarse, lower, upper)


def pinned_split(pins: Pins, stages: Stages) -> tuple[Ints, Ints]:
    """Return layers and recomputed layers, constructed around the pinned ones."""
    layers, recomputed = splits.constructive_split(stages)
    if pins.layers is not None:
        layers = np.tile(np.array(pins.layers), (len(layers), 1))
        recomputed = splits.recomputed_of(stages, layers)
    if pins.stage_recompute is not None:
        recomputed = np.tile(np.array(pins.stage_recompute), (len(layers), 1))
    return layers, recomputed


def _keeps_link_limit(
    job: Job,
    lattice: Lattice,
    stages: Stages,
    layers: Ints,
    recomputed: Ints,
    ticks: Floats,
) -> Bools:
    """Return which splits leave every link idle for as long as the limit asks."""
    result = np.ones(len(layers), dtype=bool)
    share = job.spec.limits.max_link_utilisation
    if share is None:
        return result
    for row in range(len(layers)):
        rows = stages.costs.rows.take(np.array([row]))
        split = real_split(job, rows, layers[row], recomputed[row])
        place = lattice.place(rows)
        busy_s = link_seconds(job, price(job, rows), split, place).sum(axis=1).max()
        result[row] = busy_s <= share * ticks[row] * TICK_S
    return result


def real_split(job: Job, rows: Skeletons, layers: Ints, recomputed: Ints) -> Split:
    """Return the split of one row, with what pins have folded into its layers."""
    is_folded = job.spec.pins.recomputes_all_layers and rows.recompute[0] != NONE
    return Split(layers, layers if is_folded else recomputed)


def _kth_best(found: list[Candidates], keep: int) -> float:
    """Return the keep-th least upper bound over coarse rows of different times."""
    coarse = np.concatenate([part.coarse for part in found])
    upper = np.concatenate([part.upper for part in found])
    order = np.argsort(upper, kind="stable")
    _, first = np.unique(coarse[order], return_index=True)
    distinct = np.unique(upper[order][first])
    return float(distinct[keep - 1]) if len(distinct) >= keep else np.inf


def _alike_to_best(lattice: Lattice, rows: Ints, found: list[Candidates]) -> Ints:
    """Return the rows with the degrees of the best plan known."""
    upper = np.concatenate([own.upper for own in found])
    coarse = np.concatenate([own.coarse for own in found])
    first = coarse[np.argsort(upper)[:1]]
    return np.asarray(rows[np.isin(lattice.degree[rows], lattice.degree[first])])


def _final(job: Job, found: list[Candidates], best: float) -> Candidates:
    """Return the candidates within the best plan, bounded once more against it."""
    merged = joined([part.up_to(best) for part in found])
    again = by_stages(job, merged.costs, _lower(best))
    return replace(merged, lower=np.maximum(merged.lower, again)).up_to(best)
