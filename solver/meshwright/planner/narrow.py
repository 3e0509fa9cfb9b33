"""Branch and bound: the skeletons of a lattice that can still be among the best.

Dominated ones are left out: they free memory although the same skeleton fits without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.offload import is_never_faster
from meshwright.deadline import NEVER, Deadline
from meshwright.planner.candidates import (
    Candidates,
    Pricing,
    Pruned,
    Unplaced,
    count_skeletons,
    kth_best_upper,
    lower_bound_against,
    may_keep_rules,
    no_candidates,
    place_and_bound,
    sure_s,
    up_to,
    within_best,
)
from meshwright.planner.degrees import FindAll, OrderSearch
from meshwright.planner.families import Families, find_families, least_bubbles
from meshwright.planner.integer_costs import Scaled, zero_costs
from meshwright.planner.memory_fit import MemoryFit, measure_stages, with_times
from meshwright.planner.placer import ExpertDegree, Placer
from meshwright.planner.rows import Lattice
from meshwright.planner.split_bounds import time_only_bound
from meshwright.planner.stages import has_one_split
from meshwright.plans.columns import Bools, Floats, Ints, joined, ranges, take
from meshwright.results.outcome import Counts
from meshwright.rules.rule_truth import at_least
from meshwright.rules.user_rules import (
    BUBBLE,
    family_may_keep,
    parts_asked,
    split_dependent,
)
from meshwright.spec.plan_fields import FULL, KEEPS_ALL, NONE, OFFLOADS
from meshwright.topology.fabric import PathCosts

OrderBound = Callable[[int, ExpertDegree, PathCosts], Floats]
"""Lower bound on step time, for an index of degrees, ep, and what groups pay."""

MODEL_ROWS = 2_000
"""Placed skeletons that the model holds well: bounds leave so many alone."""

FIRST_PART = 64
"""Families in the first part."""

FIRST_BATCH = 64
"""Skeletons in the first batch."""

BATCH_AGAINST_KNOWN = 1_024
"""Skeletons in the first batch where the time of a plan is known: most are slower."""

MOST_EMPTY = 4
"""Parts in which nothing fitted, after which no other is begun once time is up."""

FIRST_PLACED = 16
"""Skeletons in the first part of a batch that is placed."""

FEW_TO_PLACE = 3
"""Skeletons over those of a part that are placed at once: the call takes longer than
their meshes do."""

FAR_BELOW = 0.95
"""Share of the best step time below which the next plans may well be faster."""

GROWTH = 4
"""Size of a batch over that of the one before; thousands take little longer than one.
"""

GROWTH_OF_PARTS = 16
"""Size of a part over that of the one before."""

MOST_IN_PART = 1_536
"""Families in the largest part: the columns of more leave the processor's caches, and
a plan found in one part spares the next."""

MEASURED_AT_ONCE = 65_536
"""Families whose memory is computed at once."""

FindPlans = Callable[[Candidates, int], dict[int, float]]
"""Returns prices of so many plans among candidates, by their unplaced skeleton."""


@dataclass(frozen=True)
class Window:
    """The plans whose candidates `prune` keeps, and the price that compares them."""

    best: int = 1
    """The best plans on distinct unplaced skeletons."""
    spare: int = 1
    """The plans after these, except dominated ones."""
    known: float = np.inf
    """Price of a plan that exists anyway: none above that is kept."""
    reach: float = 1.0
    """Price of plans that are near the best one, at most, over its price."""
    has_dominated: bool = False
    """Whether dominated plans are among those near the best one."""
    is_doubted: bool = False
    """Whether prices are doubted steps in hundredths of ticks; else steps in ticks."""
    leaves_few: bool = True
    """Whether as many rows as the model holds well are left to it."""
    find_plans: FindPlans | None = None
    """Is asked of candidates whose constructed splits break what only splits decide."""


def prune(
    job: Job,
    lattice: Lattice,
    window: Window = Window(),
    *,
    families: Families | None = None,
    deadline: Deadline = NEVER,
    on_progress: Callable[[str], None] = lambda _: None,
    is_pruning: bool = True,
) -> Pruned:
    """Return the candidates of a lattice for the plans in a window.

    At least one batch is bounded, even after the deadline. Without pruning every
    skeleton that fits is a candidate. `families` are those of the lattice, if they are
    known already.
    """
    pricing, known = Pricing(job.spec, window.is_doubted), window.known
    search = _Search(job, lattice, window, pricing, deadline, is_pruning)
    has_rules = bool(split_dependent(job.spec))
    is_first = has_rules and window.best + window.spare == 1
    if is_first or (job.spec.limits.max_link_utilisation and not has_rules):
        search.find_plans = window.find_plans
    if families is None:
        families = find_families(job, lattice)
    families = families.priced(lattice, pricing, known)
    if lattice.skeletons <= search.room:
        return _every_skeleton(job, lattice, families)
    # GPU orders are searched with all skeletons of their degrees in view.
    is_whole = lattice.table.has_choice or not is_pruning
    count = len(families)
    listed = _skeletons_of(lattice, families, np.arange(count))
    search.no_memory = lattice.skeletons - listed
    left = np.flatnonzero(families.lower <= known)
    if has_rules:
        left = _that_may_keep(job, lattice, families, left, pricing)
    first_part = FIRST_PART if np.isinf(known) else MOST_IN_PART
    size = count if is_whole else first_part
    while len(left) and not search.is_over:
        on_progress(f"{len(left):,} of {count:,} groups of plans to bound")
        part, others = families.least(left, size)
        left = np.append(others, search.visit(families, part))
        left = left[families.lower[left] <= search.best]
        size = min(size * GROWTH_OF_PARTS, MOST_IN_PART)
    near = within_best(job, lattice, search.found, search.best, pricing)
    candidates = near
    if window.reach > 1:
        candidates = within_best(job, lattice, search.found, search.narrow, pricing)
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


def _skeletons_of(lattice: Lattice, families: Families, index: Ints) -> int:
    """Return the number of skeletons of some families, on all meshes."""
    degree = lattice.take(families.start[index]).degree
    return int(lattice.copies[degree] @ families.count[index])


def _that_may_keep(
    job: Job, lattice: Lattice, families: Families, left: Ints, pricing: Pricing
) -> Ints:
    """Return the families that may keep the user's rules, or one for a near miss."""
    first = lattice.unplaced.take(families.start[left])
    least_s = sure_s(families.lower[left] / pricing.of(first.rows))
    kept = family_may_keep(job.spec, first.rows, least_s)
    left, first, least_s = left[kept], first.take(np.flatnonzero(kept)), least_s[kept]
    if not len(left) or BUBBLE not in parts_asked(job.spec):
        return left
    bubble_s = {BUBBLE: at_least(sure_s(least_bubbles(job, first)))}
    kept = family_may_keep(job.spec, first.rows, least_s, bubble_s)
    return left[kept] if kept.any() else left[[least_s.argmin()]]


def _every_skeleton(job: Job, lattice: Lattice, families: Families) -> Pruned:
    """Return every skeleton of some families, also those that fit under no split."""
    index = ranges(families.start, families.count)
    part = lattice.take(index)
    memory = MemoryFit(job, part)
    fits, dominated = memory.is_fitting(), np.zeros(len(index), dtype=bool)
    fitting = np.flatnonzero(fits)
    dominated[fitting] = is_dominated(job, part, fitting)
    rows = Unplaced(index, memory.costs(np.arange(len(index))), fits, dominated)
    found = place_and_bound(job, lattice, rows, None, None, Pricing(job.spec))
    no_memory = lattice.skeletons - int(part.copies[part.degree[fits]].sum())
    survivors = int(found.fits.sum())
    counts = Counts(
        skeletons=lattice.skeletons,
        no_memory=no_memory,
        bounded=lattice.skeletons - no_memory - survivors,
        survivors=survivors,
    )
    return Pruned(found, found, counts, np.inf, is_whole=True)


class _Search:
    """The state of one branch and bound."""

    def __init__(
        self,
        job: Job,
        lattice: Lattice,
        window: Window,
        pricing: Pricing,
        deadline: Deadline,
        is_pruning: bool,
    ) -> None:
        self._job, self._lattice, self._pricing = job, lattice, pricing
        self._wanted, self._reach = window.best + window.spare, window.reach
        self._is_pruning, self._deadline = is_pruning, deadline
        self._has_rules = bool(split_dependent(job.spec))
        self.drops_dominated = (
            is_pruning and window.best == 1 and not window.has_dominated
        )
        known = window.known
        self._size = FIRST_BATCH if np.isinf(known) else BATCH_AGAINST_KNOWN
        self._visited: list[tuple[Ints, Floats, Ints]] = []
        """Skeletons of each part, their bounds, and which of them time ran out on."""
        self.found = [no_candidates(lattice)]
        self.left = [no_candidates(lattice)]
        """Skeletons that bounds leave alone, since the model holds so few."""
        leaves_few = window.leaves_few and is_pruning and not lattice.table.has_choice
        self.room = MODEL_ROWS if leaves_few else 0
        self._is_begun = False
        """Whether a batch was bounded."""
        self._empty = 0
        """Visits in which no skeleton fitted."""
        self.best = known
        """Price of the dearest plan that is still wanted."""
        self.narrow = known
        """Price of the dearest of the best plans: the same where none is in reach."""
        self.find_plans: FindPlans | None = None
        self._proven: dict[int, float] = {}
        """Prices of plans that were proven, by their unplaced skeleton."""
        self.no_memory = 0
        """Visited skeletons that do not fit in memory."""

    @property
    def is_over(self) -> bool:
        """Return whether the time is up, and a batch was done or nothing fitted."""
        is_begun = self._is_begun or self._empty >= MOST_EMPTY
        return is_begun and self._deadline.has_passed

    def visit(self, families: Families, index: Ints) -> Ints:
        """Bound the fitting skeletons of families; return those not reached in time."""
        part, late = families.least(index, MEASURED_AT_ONCE)
        fitting = [self._fitting(families, part)]
        while len(late) and not self._deadline.has_passed:
            part, late = families.least(late, MEASURED_AT_ONCE)
            fitting.append(self._fitting(families, part))
        if len(fitting) > 1:
            whole = joined(fitting)
            fitting = [take(whole, np.argsort(whole[0].number))]
        self._empty += not len(fitting[0][0].number)
        self._bound(*fitting[0])
        return late

    def _fitting(self, families: Families, index: Ints) -> tuple[Unplaced, Scaled]:
        """Return the skeletons of some families that fit in memory, and their costs."""
        rows, costs, no_memory = fitting_rows(
            self._job,
            self._lattice,
            families,
            index,
            drops_dominated=self.drops_dominated,
        )
        self.no_memory += no_memory
        return rows, costs

    def _bound(self, rows: Unplaced, costs: Scaled) -> None:
        """Bound skeletons in batches, in the order of their time-only bounds."""
        scale = self._pricing.of(costs.rows)
        bound = time_only_bound(costs, self._job.spec.model) * scale
        order = np.argsort(bound, kind="stable")
        done, near = 0, self._near(bound[order])
        if self._leave(rows.take(order[:near])):
            done = near
        while done < near and not self.is_over:
            batch = order[done : min(done + self._size, near)]
            done, self._size = done + len(batch), self._size * GROWTH
            most = self._pricing.most_ticks(up_to(self.best))
            against = lower_bound_against(self._job.spec.pins, most)
            lower = measure_stages(self._job, costs.take(batch), against)
            self._is_begun = True
            if self._is_pruning and BUBBLE in parts_asked(self._job.spec):
                kept = self._that_may_keep(costs.take(batch), lower)
                batch, lower = batch[kept], lower[kept]
            lower = lower * scale[batch]
            self._place_nearest_first(rows.take(batch), lower, rows.number)
            near = self._near(bound[order])
        self._visited.append((rows.number, bound, order[done:]))

    def _that_may_keep(self, costs: Scaled, lower: Floats) -> Ints:
        """Return which skeletons may keep the user's rules, or one for a near miss."""
        most = self._pricing.most_ticks(up_to(self.best))
        may = may_keep_rules(self._job, costs, lower, most)
        return np.flatnonzero(may) if may.any() else np.argsort(lower)[:1]

    def _leave(self, rows: Unplaced) -> bool:
        """Leave skeletons to the model without further bounds, if it has the room."""
        lattice = self._lattice
        placed = int(lattice.copies[lattice.take(rows.number).degree].sum())
        if placed > self.room:
            return False
        self.room -= placed
        self._is_begun |= placed > 0
        self.left.append(self._priced(rows, np.inf, None))
        self._take_best()
        return True

    def _near(self, bound: Floats) -> int:
        """Return how many of the bounds, least first, are not above the best plan."""
        return int(np.searchsorted(bound, self.best, side="right"))

    def _place_nearest_first(self, batch: Unplaced, lower: Floats, part: Ints) -> None:
        """Place a batch in growing parts, the least lower bounds first.

        The plans of a part may be faster than the bounds of many others, which then
        need no mesh. GPU orders are searched for the whole batch.
        """
        order, size = np.argsort(lower, kind="stable"), FIRST_PLACED
        order = order[: np.searchsorted(lower[order], self.best, side="right")]
        is_split = not self._lattice.table.has_choice
        while len(order) > FEW_TO_PLACE * size and is_split:
            if lower[order[0]] >= FAR_BELOW * self.best:
                break
            self._place(batch.take(order[:size]), part)
            order, size = order[size:], size * GROWTH
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
        unit = self._pricing.unit
        return OrderSearch(self.best / unit, ticks, find, reach / unit, self._deadline)

    def _add(self, batch: Unplaced, search: OrderSearch | None) -> None:
        found = self._priced(batch, self.best, search)
        self.found.append(self._kept(found))
        if not self._is_pruning:
            return
        self._take_best()
        if self.find_plans is not None and self._is_far(found):
            self._proven |= self.find_plans(found, self._wanted)
            self._take_best()

    def _kept(self, found: Candidates) -> Candidates:
        """Return the candidates that may be plans, or one for a near miss."""
        may = np.isfinite(found.lower)
        if self._is_pruning and not may.all() and np.isinf(self.best):
            may[found.floor.argmin()] = True
            return found.take(np.flatnonzero(may))
        return found.up_to(self.best)

    def _is_far(self, found: Candidates) -> bool:
        """Return whether some candidate may be much faster than the plans known.

        Under rules of the user, of which each proof takes long, one plan is enough.
        """
        if np.isinf(self.best):
            return True
        least = float((found.lower * found.scale).min(initial=np.inf))
        return not self._has_rules and least < FAR_BELOW * self.best

    def _priced(
        self, batch: Unplaced, best: float, search: OrderSearch | None
    ) -> Candidates:
        limit = None if np.isinf(best) else up_to(best)
        return place_and_bound(
            self._job, self._lattice, batch, limit, search, self._pricing
        )

    def _take_best(self) -> None:
        """Narrow the search by the best plans found."""
        found = [*self.found, *self.left]
        kth = kth_best_upper(found, self._wanted, self._proven)
        self.narrow = min(self.narrow, kth)
        in_reach = self._reach * kth_best_upper(found, 1, self._proven)
        self.best = min(self.best, max(self.narrow, in_reach))

    def open_bound(self) -> float:
        """Return the least bound of skeletons or GPU orders that time ran out on."""
        open_bounds = (
            float(bound[late].min(initial=np.inf)) for *_, bound, late in self._visited
        )
        least = min(open_bounds, default=np.inf)
        if not self._lattice.table.has_choice:
            return least
        orders = (
            open_orders_bound(self._lattice, *visit[:2], self._pricing.unit)
            for visit in self._visited
        )
        return min((least, *orders))


def fitting_rows(
    job: Job,
    lattice: Lattice,
    families: Families,
    index: Ints,
    *,
    drops_dominated: bool,
) -> tuple[Unplaced, Scaled, int]:
    """Return the skeletons of some families that fit in memory, and their costs.

    The last result is how many skeletons, on all meshes, do not fit.
    """
    no_memory = _skeletons_of(lattice, families, index)
    index = families.fitting(lattice, index)
    part = lattice.take(index)
    memory = MemoryFit(job, part)
    fitting = np.flatnonzero(families.fits.keep(job, memory))
    no_memory -= int(part.copies[part.degree[fitting]].sum())
    dominated = is_dominated(job, part, fitting)
    if drops_dominated:
        fitting, dominated = fitting[~dominated], dominated[~dominated]
    fits = np.ones(len(fitting), dtype=bool)
    rows = Unplaced(index[fitting], memory.costs(fitting), fits, dominated)
    costs = with_times(job, rows.memory, memory.price_group[fitting])
    return rows, costs, no_memory


def is_dominated(job: Job, lattice: Lattice, fitting: Ints) -> Bools:
    """Return which of the fitting unplaced skeletons are dominated.

    Where the layers have only one split, a skeleton that recomputes takes no less time
    than the same skeleton without recomputation, if that fits too; the same goes for
    offload, and for longer segments, which take as long as segments of one layer unless
    the input of every segment must be gathered first. Under a limit on links, or rules
    of the user on splits, nothing is dominated, since a slower plan may keep them.
    Pinned counts of recomputed layers exclude plans that recompute nothing, so those
    dominate no plan.
    """
    if job.spec.limits.max_link_utilisation is not None or split_dependent(job.spec):
        return np.zeros(len(fitting), dtype=bool)
    rows, family = lattice.rows, lattice.unplaced.family[fitting]
    offload, recompute = rows.offload[fitting], rows.recompute[fitting]
    result = np.zeros(len(fitting), dtype=bool)
    if job.spec.pins.stage_recompute is None:
        group = family * len(OFFLOADS) + offload
        result = _has_other(group, recompute == NONE)
    if not job.spec.training.partition_activations:
        segment = rows.recompute_segment[fitting]
        group = (family * len(OFFLOADS) + offload) * 2 + (recompute == FULL)
        is_short = (recompute == FULL) & (segment == 1)
        result |= _has_other(group, is_short) & (segment > 1)
    if is_never_faster(job):
        way = lattice.unplaced.recompute_way[fitting]
        group = family * lattice.unplaced.recompute_ways + way
        result |= _has_other(group, offload == KEEPS_ALL)
    return np.asarray(result & has_one_split(job.spec, rows)[fitting])


def _has_other(group: Ints, is_plain: Bools) -> Bools:
    """Return which rows are not plain although their group has a plain row."""
    has_plain = np.zeros(int(group.max(initial=0)) + 1, dtype=bool)
    has_plain[group[is_plain]] = True
    return np.asarray(has_plain[group] & ~is_plain)


def order_bound(job: Job, lattice: Lattice, part: Ints) -> OrderBound:
    """Return a lower bound on the skeletons of a part, by the costs of their groups.

    The bound is for those of given degrees, one value for each entry of the costs.
    """
    degrees = lattice.take(part).degree

    def ticks(degree: int, ep: ExpertDegree, paths: PathCosts) -> Floats:
        rows = lattice.take(part[degrees == degree]).rows
        rows = rows.take(np.flatnonzero(rows.expert_key == (ep or 1)))
        trials, count = len(paths.latency_s), len(rows)
        rows = rows.take(np.tile(np.arange(count), trials))
        paths = paths.take(np.repeat(np.arange(trials), count))
        placed = rows.on_meshes(paths, np.arange(len(rows)))
        costs = with_times(job, zero_costs(placed))
        bound = time_only_bound(costs, job.spec.model)
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


def open_orders_bound(lattice: Lattice, index: Ints, bound: Floats, unit: int) -> float:
    """Return the least bound of some skeletons in GPU orders not looked at.

    `unit` is the least price of a tick.
    """
    part = lattice.take(index)
    keys = np.stack([part.degree, part.rows.expert_key], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    wanted = [lattice.key(degree, ep) for degree, ep in distinct.tolist()]
    orders = unit * np.array([lattice.table.open_bound(key) for key in wanted])
    return float(np.maximum(bound, orders[which]).min(initial=np.inf))
