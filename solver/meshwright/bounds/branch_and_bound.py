"""Branch and bound over the lattice: which skeletons can still hold the best plan.

Families are visited in order of their time-only lower bound, in parts that grow. The
skeletons of a part that fit in memory are bounded one by one and visited in the order
of that bound, in batches that grow. Each batch is bounded again with memory in mind.
What is left of it is placed on its meshes and bounded once more, and a constructed
split gives a plan that exists. Skeletons whose lower bound is above the best plan are
dropped; once the next one in order is, so are all after it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.bounds.candidates import (
    Candidates,
    Pruned,
    Unplaced,
    count_skeletons,
    kth_best_upper,
    lower_bound_against,
    no_candidates,
    place_and_bound,
    sure_s,
    within_best,
)
from meshwright.bounds.dominated import is_dominated
from meshwright.bounds.families import Families, find_families
from meshwright.bounds.integer_costs import Scaled
from meshwright.bounds.lower_bounds import time_only_bound
from meshwright.bounds.memory_fit import MemoryFit, measure_stages, with_times
from meshwright.bounds.order_bounds import (
    OrderBound,
    open_orders_bound,
    order_bound,
    with_best_degrees,
)
from meshwright.cost.job import Job
from meshwright.deadline import NEVER, Deadline
from meshwright.lattice.lattice import Lattice
from meshwright.lattice.mesh_table import FindAll, OrderSearch
from meshwright.placement.placer import Placer
from meshwright.plans.columns import Floats, Ints, joined, ranges, take
from meshwright.results.outcome import Counts
from meshwright.rules.user_rules import family_may_keep, split_dependent

MODEL_ROWS = 2_000
"""Placed skeletons that the model holds well: bounds leave so many alone."""

FIRST_PART = 256
"""Families in the first part."""

FIRST_BATCH = 64
"""Skeletons in the first batch."""

BATCH_AGAINST_KNOWN = 1_024
"""The same where the time of a plan is known already: most are slower than it."""

FIRST_PLACED = 16
"""Skeletons of a batch that are placed before the others."""

FEW_TO_PLACE = 48
"""Skeletons that are placed at once: the call takes longer than their meshes do."""

FAR_BELOW = 0.95
"""Share of the best step time below which the next plans may well be faster."""

GROWTH = 4
"""Size of a batch over that of the one before; thousands take little longer than one.
"""

GROWTH_OF_PARTS = 16
"""Size of a part over that of the one before."""

MOST_IN_PART = 4_096
"""Families in the largest part: the columns of more leave the processor's caches, and
a plan found in one part spares the next."""

MEASURED_AT_ONCE = 65_536
"""Families whose memory is computed at once."""

FindPlan = Callable[[Candidates], float]
"""Returns the ticks of a plan among candidates, infinite where none is found."""


def prune(
    job: Job,
    lattice: Lattice,
    keep: int = 1,
    spare: int = 1,
    deadline: Deadline = NEVER,
    on_progress: Callable[[str], None] = lambda _: None,
    is_pruning: bool = True,
    families: Families | None = None,
    known: float = np.inf,
    reach: float = 1.0,
    *,
    has_dominated: bool = False,
    find_plan: FindPlan | None = None,
) -> Pruned:
    """Return the candidates for the `keep` best plans on distinct unplaced skeletons.

    The next `spare` plans are kept too, except dominated ones. At least one batch is
    bounded, whatever the deadline. Without pruning every skeleton that fits is a
    candidate. `families` are those of the lattice, if they are known already. `known`
    are the ticks of a plan that exists anyway: none slower than that is wanted.
    `reach` is what plans of `near` take at most over what the best one takes; with
    `has_dominated` dominated ones are among them. Under rules on splits, `find_plan` is
    asked of candidates whose splits break them.
    """
    search = _Search(
        job, lattice, keep, spare, is_pruning, deadline, known, reach, has_dominated
    )
    has_rules = bool(split_dependent(job.spec))
    search.find_plan = find_plan if has_rules and keep + spare == 1 else None
    families = find_families(job, lattice) if families is None else families
    if lattice.skeletons <= search.room:
        return _every_skeleton(job, lattice, families)
    # GPU orders are searched with all skeletons of their degrees in view.
    is_whole = lattice.table.has_choice or not is_pruning
    count = len(families)
    left = np.flatnonzero(families.lower <= known)
    if has_rules:
        first = lattice.take(families.start[left]).rows
        left = left[family_may_keep(job.spec, first, sure_s(families.lower[left]))]
    first_part = FIRST_PART if np.isinf(known) else MOST_IN_PART
    size = count if is_whole else first_part
    while len(left) and not search.is_over:
        on_progress(f"{len(left):,} of {count:,} families of rows to bound")
        part, others = families.least(left, size)
        left = np.append(others, search.visit(families, part))
        left = left[families.lower[left] <= search.best]
        size = min(size * GROWTH_OF_PARTS, MOST_IN_PART)
    near = within_best(job, search.found, search.best)
    candidates = near
    if reach > 1:
        candidates = within_best(job, search.found, search.narrow)
    near = Candidates.joined([near, *search.left])
    candidates = Candidates.joined([candidates, *search.left])
    survivors = count_skeletons(lattice, candidates)
    counts = Counts(
        skeletons=lattice.skeletons,
        no_memory=search.no_memory,
        bounded=lattice.skeletons - search.no_memory - survivors,
        survivors=survivors,
    )
    not_visited = float(families.lower[left].min(initial=np.inf))
    return Pruned(candidates, near, counts, min(not_visited, search.open_bound()))


def _every_skeleton(job: Job, lattice: Lattice, families: Families) -> Pruned:
    """Return every skeleton of some families, also those that fit under no split."""
    index = ranges(families.start, families.count)
    part = lattice.take(index)
    memory = MemoryFit(job, part)
    fits, dominated = memory.is_fitting(), np.zeros(len(index), dtype=bool)
    fitting = np.flatnonzero(fits)
    dominated[fitting] = is_dominated(job, part, fitting)
    rows = Unplaced(index, memory.costs(np.arange(len(index))), fits, dominated)
    found = place_and_bound(job, lattice, rows, np.inf, None)
    no_memory = int(part.copies[part.degree[~fits]].sum())
    survivors = int(found.fits.sum())
    counts = Counts(
        skeletons=lattice.skeletons,
        no_memory=no_memory,
        bounded=lattice.skeletons - no_memory - survivors,
        survivors=survivors,
    )
    return Pruned(found, found, counts, np.inf)


class _Search:
    """The state of one branch and bound."""

    def __init__(
        self,
        job: Job,
        lattice: Lattice,
        keep: int,
        spare: int,
        is_pruning: bool,
        deadline: Deadline,
        known: float,
        reach: float,
        has_dominated: bool,
    ) -> None:
        self._job, self._lattice = job, lattice
        self._wanted = keep + spare
        self._is_pruning, self._deadline = is_pruning, deadline
        self._reach = reach
        self._drops_dominated = is_pruning and keep == 1 and not has_dominated
        self._size = FIRST_BATCH if np.isinf(known) else BATCH_AGAINST_KNOWN
        self._visited: list[tuple[Ints, Floats, Ints]] = []
        """Skeletons of each part, their bounds, and which of them time ran out on."""
        self.found = [no_candidates(lattice)]
        self.left = [no_candidates(lattice)]
        """Skeletons that bounds leave alone, since the model holds so few."""
        self.room = MODEL_ROWS if is_pruning and not lattice.table.has_choice else 0
        self._is_begun = False
        """Whether a batch was bounded."""
        self.best = known
        """Ticks of the slowest plan that is still wanted."""
        self.narrow = known
        """Ticks of the slowest of the best plans: the same where none is in reach."""
        self.find_plan: FindPlan | None = None
        self.no_memory = 0
        """Visited skeletons that do not fit in memory."""

    @property
    def is_over(self) -> bool:
        """Return whether the time is up, and a batch was done."""
        return self._is_begun and self._deadline.has_passed

    def visit(self, families: Families, index: Ints) -> Ints:
        """Bound what fits of some families; return those that time ran out on."""
        part, late = families.least(index, MEASURED_AT_ONCE)
        fitting = [self._fitting(families, part)]
        while len(late) and not self._deadline.has_passed:
            part, late = families.least(late, MEASURED_AT_ONCE)
            fitting.append(self._fitting(families, part))
        if len(fitting) > 1:
            whole = joined(fitting)
            fitting = [take(whole, np.argsort(whole[0].number))]
        self._bound(*fitting[0])
        return late

    def _fitting(self, families: Families, index: Ints) -> tuple[Unplaced, Scaled]:
        """Return the skeletons of some families that fit in memory, and their costs."""
        job, lattice = self._job, self._lattice
        first = lattice.take(families.start[index])
        self.no_memory += int(first.copies[first.degree] @ families.count[index])
        index = families.fitting(lattice, index)
        part = lattice.take(index)
        memory = MemoryFit(job, part)
        fitting = np.flatnonzero(families.fits.keep(job, memory))
        self.no_memory -= int(part.copies[part.degree[fitting]].sum())
        dominated = is_dominated(job, part, fitting)
        if self._drops_dominated:
            fitting, dominated = fitting[~dominated], dominated[~dominated]
        fits = np.ones(len(fitting), dtype=bool)
        rows = Unplaced(index[fitting], memory.costs(fitting), fits, dominated)
        return rows, with_times(job, rows.memory, memory.price_group[fitting])

    def _bound(self, rows: Unplaced, costs: Scaled) -> None:
        """Bound skeletons in batches, in the order of their time-only bounds."""
        bound = time_only_bound(costs, self._job.spec.model.n_layers)
        order = np.argsort(bound, kind="stable")
        done, near = 0, self._near(bound[order])
        if self._leave(rows.take(order[:near])):
            done = near
        while done < near and not self.is_over:
            batch = order[done : min(done + self._size, near)]
            done, self._size = done + len(batch), self._size * GROWTH
            lower = measure_stages(
                self._job, costs.take(batch), lower_bound_against(self.best)
            )
            self._is_begun = True
            self._place_nearest_first(rows.take(batch), lower, rows.number)
            near = self._near(bound[order])
        self._visited.append((rows.number, bound, order[done:]))

    def _leave(self, rows: Unplaced) -> bool:
        """Leave skeletons to the model without further bounds, if it has the room."""
        lattice = self._lattice
        placed = int(lattice.copies[lattice.take(rows.number).degree].sum())
        if placed > self.room:
            return False
        self.room -= placed
        self._is_begun = True
        self.left.append(place_and_bound(self._job, lattice, rows, np.inf, None))
        self._take_best()
        return True

    def _near(self, bound: Floats) -> int:
        """Return how many of the bounds, least first, are not above the best plan."""
        return int(np.searchsorted(bound, self.best, side="right"))

    def _place_nearest_first(self, batch: Unplaced, lower: Floats, part: Ints) -> None:
        """Place a batch, a few skeletons with the least lower bounds first.

        The plans of those may be faster than the bounds of many others, which then
        need no mesh. GPU orders are searched for the whole batch.
        """
        order = np.argsort(lower, kind="stable")
        order = order[: np.searchsorted(lower[order], self.best, side="right")]
        is_split = len(order) > FEW_TO_PLACE and not self._lattice.table.has_choice
        if is_split and lower[order[0]] < FAR_BELOW * self.best:
            self._place(batch.take(order[:FIRST_PLACED]), part)
            order = order[FIRST_PLACED:]
            order = order[lower[order] <= self.best]
        self._place(batch.take(order), part)

    def _place(self, batch: Unplaced, part: Ints) -> None:
        """Place a batch on its meshes; GPU orders are searched for the whole part."""
        if not len(batch):
            return
        ticks = order_bound(self._job, self._lattice, part)
        if np.isinf(self.best) and self._lattice.table.has_choice:
            self._place_first(batch, ticks)
        self._add(batch, self._order_search(ticks, Placer.placements, self.best))

    def _place_first(self, batch: Unplaced, ticks: OrderBound) -> None:
        """Find a first plan, against which GPU orders can be searched.

        It has the GPUs in the order in which they are listed, then improved by swaps.
        """
        self._add(batch, None)
        if self._is_pruning:
            self._add(batch, self._order_search(ticks, Placer.quick_placements, 0.0))
            same = batch.take(with_best_degrees(self._lattice, batch, self.found))
            self._add(same, self._order_search(ticks, Placer.placements, self.best))

    def _order_search(
        self, ticks: OrderBound, find: FindAll, reach: float
    ) -> OrderSearch:
        return OrderSearch(self.best, ticks, find, reach, self._deadline)

    def _add(self, batch: Unplaced, search: OrderSearch | None) -> None:
        found = place_and_bound(self._job, self._lattice, batch, self.best, search)
        self.found.append(found.up_to(self.best))
        if self._is_pruning:
            self._take_best()
        if np.isinf(self.best) and self.find_plan is not None:
            self.narrow = self.find_plan(found)
            self.best = self._reach * self.narrow

    def _take_best(self) -> None:
        """Narrow the search by the best plans found."""
        found = [*self.found, *self.left]
        self.narrow = min(self.narrow, kth_best_upper(found, self._wanted))
        in_reach = self._reach * kth_best_upper(found, 1)
        self.best = min(self.best, max(self.narrow, in_reach))

    def open_bound(self) -> float:
        """Return the least bound of skeletons or GPU orders that time ran out on."""
        open_bounds = (
            float(bound[late].min(initial=np.inf)) for *_, bound, late in self._visited
        )
        least = min(open_bounds, default=np.inf)
        if not self._lattice.table.has_choice:
            return least
        orders = (open_orders_bound(self._lattice, *own[:2]) for own in self._visited)
        return min((least, *orders))
