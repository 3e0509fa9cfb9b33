"""Branch and bound over the lattice: which skeletons can still be the best one.

Kin are taken in the order of a bound that leaves memory aside, in growing parts. Rows
of a part that have room are bounded on their own and taken in that order, in growing
batches. Each batch is bounded with memory in mind, what is left is placed on its
meshes, bounded again, and a constructive split gives a plan that exists. What is
bounded above the best plan is dropped; when the next bound is, all after it is too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.bounds.candidates import (
    Candidates,
    Coarse,
    candidates_of,
    kth_best,
    lower_bound_at,
    within,
)
from meshwright.bounds.dominated import is_needless
from meshwright.bounds.families import Kin, kin_of
from meshwright.bounds.integer_costs import Scaled, free
from meshwright.bounds.lower import cheap_bound
from meshwright.bounds.memory_fit import Memory, by_stages, timed
from meshwright.cost.job import Job
from meshwright.deadline import NEVER, Deadline
from meshwright.lattice.lattice import Lattice
from meshwright.lattice.mesh_table import AS_LISTED, Budget, FindAll
from meshwright.placement.order_costs import ExpertDegree
from meshwright.placement.placer import Placer
from meshwright.plans.columns import Floats, Ints
from meshwright.results.outcome import Counts
from meshwright.topology.fabric import PathCosts

FIRST_PART = 256
"""Kin in the first part."""

FIRST_BATCH = 64
"""Coarse rows in the first batch."""

GROWTH = 4
"""How many times as many the next one has: thousands take little longer than one."""

GROWTH_OF_PARTS = 16

Ticks = Callable[[int, ExpertDegree, PathCosts], Floats]


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
    deadline: Deadline = NEVER,
    on_progress: Callable[[str], None] = lambda _: None,
    is_pruning: bool = True,
    kin: Kin | None = None,
) -> Pruned:
    """Return the candidates for the `keep` best plans on distinct coarse rows.

    So many as `spare` are kept beside, unless they are the same plan with something
    freed.
    At least one batch is done, whatever the deadline.
    Without pruning every skeleton that fits is a candidate, for comparison. Who knows
    the families of the lattice already gives them.
    """
    search = _Search(job, lattice, keep, spare, is_pruning, deadline)
    kin = kin_of(job, lattice) if kin is None else kin
    # Orders of GPUs are looked for against all rows of some degrees at once.
    is_whole = lattice.table.has_choice or not is_pruning
    left, size = np.arange(len(kin)), len(kin) if is_whole else FIRST_PART
    while len(left) and not search.is_over:
        on_progress(f"{len(left):,} of {len(kin):,} families of rows to bound")
        part, others = kin.least(left, size)
        search.look_at(kin.rows(part))
        left, size = others[kin.floor[others] <= search.best], size * GROWTH_OF_PARTS
    candidates = within(job, search.found, search.best)
    survivors = _skeletons(lattice, candidates)
    counts = Counts(
        skeletons=lattice.skeletons,
        no_memory=search.no_memory,
        bounded=lattice.skeletons - search.no_memory - survivors,
        survivors=survivors,
    )
    late = float(kin.floor[left].min(initial=np.inf))
    return Pruned(candidates, counts, min(late, search.open_bound()))


def _skeletons(lattice: Lattice, candidates: Candidates) -> int:
    """Return how many skeletons there are, those in several orders of GPUs once."""
    if not lattice.table.has_choice:
        return len(candidates.lower)
    meshes = candidates.costs.rows.mesh.tolist()
    lie = {own: lattice.table.place(own).mesh.tobytes() for own in set(meshes)}
    pairs = zip(candidates.coarse.tolist(), meshes, strict=True)
    return len({(row, lie[mesh]) for row, mesh in pairs})


class _Search:
    """A branch and bound on its way."""

    def __init__(
        self,
        job: Job,
        lattice: Lattice,
        keep: int,
        spare: int,
        is_pruning: bool,
        deadline: Deadline,
    ) -> None:
        self._job, self._lattice = job, lattice
        self._keep, self._wanted = keep, keep + spare
        self._is_pruning, self._deadline = is_pruning, deadline
        self._size = FIRST_BATCH
        self._looked: list[tuple[Ints, Floats, Ints]] = []
        nothing = np.zeros(0, dtype=np.int64)
        no_rows = Coarse(nothing, free(lattice.take(nothing).rows))
        self.found = [candidates_of(job, lattice, no_rows, np.inf, AS_LISTED)]
        self.best = np.inf
        """Ticks that a plan takes no more than that is of interest."""
        self.no_memory = 0
        """Skeletons that were looked at and have no room."""

    @property
    def is_over(self) -> bool:
        """Return whether the time is up, and a batch was done."""
        return len(self.found) > 1 and self._deadline.has_passed

    def look_at(self, index: Ints) -> None:
        """Bound some coarse rows, as far as they have room."""
        job, part = self._job, self._lattice.take(index)
        memory = Memory(job, part)
        has_room = memory.fits()
        self.no_memory += int(part.copies[part.degree[~has_room]].sum())
        fitting = np.flatnonzero(has_room)
        if self._is_pruning and self._keep == 1:
            fitting = fitting[~is_needless(job, part, fitting)]
        coarse = Coarse(index[fitting], memory.of(fitting))
        self._bound(coarse, timed(job, coarse.memory, memory.which[fitting]))

    def _bound(self, coarse: Coarse, costs: Scaled) -> None:
        """Bound coarse rows in batches by their least times, which `costs` have."""
        cheap = cheap_bound(costs, self._job.spec.model.n_layers)
        order = np.argsort(cheap, kind="stable")
        done, near = 0, len(order)
        while done < near and not self.is_over:
            batch = order[done : min(done + self._size, near)]
            done, self._size = done + len(batch), self._size * GROWTH
            own = costs.take(batch)
            is_near = by_stages(self._job, own, lower_bound_at(self.best)) <= self.best
            self._place(coarse.take(batch[is_near]), coarse.number)
            near = int(np.searchsorted(cheap[order], self.best, side="right"))
        self._looked.append((coarse.number, cheap, order[done:]))

    def _place(self, batch: Coarse, every: Ints) -> None:
        """Place a batch on its meshes; orders are sought for `every` coarse row."""
        ticks = _ticks(self._job, self._lattice, every)
        if np.isinf(self.best) and self._lattice.table.has_choice:
            self._place_first(batch, ticks)
        self._add(batch, self._budget(ticks, Placer.placements, self.best))

    def _place_first(self, batch: Coarse, ticks: Ticks) -> None:
        """Look for a plan that exists, against which orders of GPUs are searched.

        First as they are listed, then as swaps better that.
        """
        self._add(batch, AS_LISTED)
        if self._is_pruning:
            self._add(batch, self._budget(ticks, Placer.quick_placements, 0.0))
            alike = batch.take(_alike_to_best(self._lattice, batch, self.found))
            self._add(alike, self._budget(ticks, Placer.placements, self.best))

    def _budget(self, ticks: Ticks, find: FindAll, reach: float) -> Budget:
        return Budget(self.best, ticks, find, reach, self._deadline)

    def _add(self, batch: Coarse, budget: Budget) -> None:
        own = candidates_of(self._job, self._lattice, batch, self.best, budget)
        self.found.append(own.up_to(self.best))
        if self._is_pruning:
            self.best = kth_best(self.found, self._wanted)

    def open_bound(self) -> float:
        """Return ticks of plans that time ran out on, in general or to seek orders."""
        late = (
            float(cheap[late].min(initial=np.inf)) for *_, cheap, late in self._looked
        )
        least = min(late, default=np.inf)
        if not self._lattice.table.has_choice:
            return least
        orders = (self._open_orders(rows, cheap) for rows, cheap, _ in self._looked)
        return min((least, *orders))

    def _open_orders(self, rows: Ints, cheap: Floats) -> float:
        """Return ticks of coarse rows on orders that nobody looked at, at least."""
        lattice, own = self._lattice, self._lattice.take(rows)
        keys = np.stack([own.degree, own.rows.ep], axis=1)
        every, inverse = np.unique(keys, axis=0, return_inverse=True)
        asked = [lattice.key(degree, ep) for degree, ep in every.tolist()]
        orders = np.array([lattice.table.open_bound(key) for key in asked])
        return float(np.maximum(cheap, orders[inverse]).min(initial=np.inf))


def _ticks(job: Job, lattice: Lattice, order: Ints) -> Ticks:
    """Return what the plans of some degrees take at least by what groups pay."""

    def ticks(degree: int, ep: ExpertDegree, paths: PathCosts) -> Floats:
        own = lattice.take(order[lattice.degree[order] == degree]).rows
        own = own.take(np.flatnonzero(own.ep == (ep or 1)))
        trials, each = len(paths.latency_s), len(own)
        rows = own.take(np.tile(np.arange(each), trials))
        tried = paths.take(np.repeat(np.arange(trials), each))
        costs = timed(job, free(rows.on_meshes(tried, np.arange(len(rows)))))
        bound = cheap_bound(costs, job.spec.model.n_layers)
        return np.asarray(bound.reshape(trials, each).min(axis=1, initial=np.inf))

    return ticks


def _alike_to_best(lattice: Lattice, batch: Coarse, found: list[Candidates]) -> Ints:
    """Return which of a batch have the degrees of the best plan known."""
    upper = np.concatenate([own.upper for own in found])
    coarse = np.concatenate([own.coarse for own in found])
    first = coarse[np.argsort(upper)[:1]]
    own = lattice.degree[batch.number]
    return np.flatnonzero(np.isin(own, lattice.degree[first]))
