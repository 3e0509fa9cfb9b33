"""Families: unplaced skeletons that differ only in recomputation and offload.

The skeletons of a family share one lower bound on step time, which leaves memory aside.
A job with its lattice and its families is `Prepared`: many answers start from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np

from meshwright.cost.job import Job, make_job
from meshwright.cost.offload import is_never_faster
from meshwright.deadline import NEVER, Deadline
from meshwright.frameworks.base.registry import pinned_chunks
from meshwright.planner.candidates import Pricing
from meshwright.planner.degrees import MeshTable, has_mesh_rules
from meshwright.planner.integer_costs import TICK_S, Scaled, seconds, zero_costs
from meshwright.planner.memory_fit import KnownFits, families_fit, with_times
from meshwright.planner.rows import Lattice, build_lattice
from meshwright.planner.split_bounds import bubble_bound, time_only_bound
from meshwright.planner.unplaced import UnplacedSkeletons
from meshwright.plans.columns import Bools, Floats, Ints, take
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import KEEPS_ALL
from meshwright.spec.spec import Spec, with_risk

AT_ONCE = 16_000
"""Families bounded at once: memory for longer columns is asked of the system anew."""


@dataclass(frozen=True)
class Families:
    """The families of a lattice, one entry per family."""

    start: Ints
    """Unplaced skeleton that frees the least memory; its family follows it."""
    count: Ints
    """Skeletons of the family."""
    lower: Floats
    """Lower bound on the price of every skeleton of the family, memory left aside: on
    its ticks, unless they are `priced` by another measure.

    It is 0 where there was no time to compute it.
    """
    number: Ints
    """Number of the family among all that `fits` is about."""
    fits: KnownFits
    """Which skeletons fit in memory, as far as that was asked."""

    def __len__(self) -> int:
        """Return the number of families."""
        return len(self.start)

    def least(self, index: Ints, count: int) -> tuple[Ints, Ints]:
        """Return the `count` families with the least bounds, and the others."""
        if len(index) <= count:
            return index, index[:0]
        # Families that no time was left to bound come last.
        lower = self.lower[index]
        order = np.argpartition(np.where(lower > 0, lower, np.inf), count)
        return index[np.sort(order[:count])], index[np.sort(order[count:])]

    def priced(self, lattice: Lattice, pricing: Pricing, most: float) -> Families:
        """Return the families with bounds on prices instead of ticks.

        Bounds above `most` are loose: they count the least doubt that any plan has.
        """
        if not pricing.is_doubted:
            return self
        lower = self.lower * pricing.unit
        near = np.flatnonzero(lower <= most)
        lower[near] = self.lower[near] * pricing.of(lattice.take(self.start[near]).rows)
        return replace(self, lower=lower)

    def among(self, lattice: Lattice, has_degree: Bools) -> Families:
        """Return the families of the part of the lattice that has some degrees."""
        kept = np.flatnonzero(has_degree[lattice.take(self.start).degree])
        columns = (self.start, self.count, self.lower, self.number)
        part = Families(*take(columns, kept), self.fits)
        start = lattice.unplaced.places_among(has_degree, part.start)
        return replace(part, start=start)

    def bounded_again(self, job: Job, lattice: Lattice, most: float) -> Families:
        """Return the families with new bounds where the present ones are up to `most`.

        The new bounds are those of a job on the same skeletons, for which the present
        ones hold too.
        """
        near = np.flatnonzero(self.lower <= most)
        first = lattice.unplaced.take(self.start[near])
        lower = self.lower.copy()
        lower[near] = np.maximum(lower[near], _bounds_in_parts(job, first))
        return replace(self, lower=lower)

    def fitting(self, lattice: Lattice, index: Ints) -> Ints:
        """Return the unplaced skeletons of some families that may fit in memory."""
        start, count = self.start[index], self.count[index]
        return self.fits.rows(lattice, self.number[index], start, count)


def find_families(
    job: Job,
    lattice: Lattice,
    roomiest: Job | None = None,
    *,
    keeps_all: bool = False,
    deadline: Deadline = NEVER,
) -> Families:
    """Return the families of a lattice, each with its bound.

    The `roomiest` job has the most memory that will be asked about: the job itself
    without. Families whose state alone does not fit on its GPUs are left out, unless
    `keeps_all` is set.

    Recomputation never shortens a step, and offload does so only where the host updates
    faster than the GPU. Where that is so, or every skeleton must offload, each way to
    offload is a separate family.

    Once the deadline has passed, the families that are left have no bound.
    """
    unplaced = lattice.unplaced
    start, count = unplaced.families
    first = unplaced.take(start)
    if not (is_never_faster(job) and (first.offload == KEEPS_ALL).all()):
        start, count = unplaced.runs(unplaced.recompute_ways)
        first = unplaced.take(start)
    roomiest = roomiest or job
    if not keeps_all:
        kept = np.flatnonzero(families_fit(roomiest, first))
        first, start, count = first.take(kept), start[kept], count[kept]
    lower = _bounds_in_parts(job, first, deadline=deadline)
    fits = KnownFits(roomiest, len(count))
    return Families(start, count, lower, np.arange(len(count)), fits)


def least_bubbles(job: Job, first: UnplacedSkeletons) -> Floats:
    """Return lower bounds on the ticks of bubble of families, by a skeleton of each."""
    is_any = pinned_chunks(job.spec) is not None
    bound = partial(bubble_bound, has_any_chunks=is_any)
    return _bounds_in_parts(job, first, bound)


def _bounds_in_parts(
    job: Job,
    first: UnplacedSkeletons,
    bound: Callable[[Scaled, Model], Floats] = time_only_bound,
    deadline: Deadline = NEVER,
) -> Floats:
    """Return the bounds of families, by the skeleton of each that frees the least."""
    lower = np.zeros(len(first))
    for part in np.array_split(np.arange(len(first)), -(-len(first) // AT_ONCE) or 1):
        some = first.take(part)
        costs = with_times(job, zero_costs(some.rows), some.price_group)
        lower[part] = bound(costs, job.spec.model)
        if deadline.has_passed:
            break
    return lower


@dataclass(frozen=True)
class Prepared:
    """A job, its lattice and the bounds of its families, shared by several solves."""

    job: Job
    lattice: Lattice
    families: Families
    """The families of the lattice, each with its lower bound."""

    def among(self, has_degree: Bools) -> Prepared:
        """Return the part of the lattice that has some of the degrees."""
        families = self.families.among(self.lattice, has_degree)
        return Prepared(self.job, self.lattice.among(has_degree), families)

    @property
    def least_s(self) -> float:
        """Return a lower bound on the step of every plan; infinite if none is legal."""
        return seconds(self.families.lower.min(initial=inf))

    def at_risk(self, oom_risk: float) -> Prepared:
        """Return the job with another probability of running out of memory.

        Neither skeletons nor bounds of families depend on the usable memory.
        """
        job = replace(self.job, spec=with_risk(self.job.spec, oom_risk))
        return replace(self, job=job) if self._covers(job) else prepare(job)

    def against(self, known_s: float) -> Prepared:
        """Return the job with new bounds for families that may beat a step time.

        That is worth it after `on_better_hardware`, whose bounds are loose.
        """
        most = known_s / TICK_S
        families = self.families.bounded_again(self.job, self.lattice, most)
        return replace(self, families=families)

    def on_better_hardware(self, spec: Spec, speedup: float) -> Prepared | None:
        """Return the job for a spec with more memory, or with faster links.

        No bound of a family depends on memory. Links that are `speedup` times as fast
        shorten no step by more than that factor: if compute were that much faster too,
        the whole step would be, and slower compute never helps. So the bounds divided
        by `speedup` hold. The answer is None under a rule on meshes, which may allow
        other skeletons then, and for more memory than was prepared.
        """
        job = make_job(spec, self.job.efficiency)
        if has_mesh_rules(self.job) or not self._covers(job):
            return None
        lattice = replace(self.lattice, fabric=job.fabric, table=MeshTable(job))
        families = replace(self.families, lower=self.families.lower / speedup)
        return Prepared(job, lattice, families)

    def _covers(self, job: Job) -> bool:
        return self.families.fits.covers(job)


def prepare(
    job: Job,
    most_gib: float = 0.0,
    *,
    keeps_all: bool = False,
    is_wanted: Callable[[Skeletons], Bools] | None = None,
    deadline: Deadline = NEVER,
) -> Prepared:
    """Return a job with its lattice and the bounds of its families.

    Args:
        job: The job.
        most_gib: The most usable memory that later questions will ask about, GiB.
        keeps_all: Whether to keep families whose state alone does not fit, too.
        is_wanted: Which skeletons to list; all without.
        deadline: When to stop listing and bounding.

    Raises:
        OutOfTime: the lattice is too large to be listed in time.
    """
    lattice = build_lattice(job, is_wanted, deadline)
    roomy = job
    if most_gib > job.spec.usable_gib:
        roomy = replace(job, spec=job.spec.having("limits", memory_gib=most_gib))
    families = find_families(
        job, lattice, roomy, keeps_all=keeps_all, deadline=deadline
    )
    return Prepared(job, lattice, families)
