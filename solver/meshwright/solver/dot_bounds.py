"""How fast the skeletons of each dot of a map may be, of those that fit in memory.

Families are looked at in the order of their bounds, so that most need no look: once a
skeleton fits and is faster than the bound of the next family, so it is than all after.
"""

from __future__ import annotations

import numpy as np

from meshwright.bounds.branch_and_bound import prune
from meshwright.bounds.candidates import lower_bound_against
from meshwright.bounds.memory_fit import MemoryFit, measure_stages, with_times
from meshwright.bounds.state_fit import state_fits
from meshwright.deadline import Deadline
from meshwright.plans.columns import Ints, ranges
from meshwright.solver.dot_groups import DotGroups
from meshwright.solver.prepared import Prepared

FIRST_LOOK = 2
"""Families of a dot that are looked at first."""

GROWTH = 4
"""Families of a later look over those of the one before."""

AT_ONCE = 8_192
"""Families looked at together: the columns of more leave the processor's caches."""

MOST_S = 2.0
"""Seconds after which skeletons are left without meshes."""

MOST_REACH = 1e6
"""Reach of a search that is to keep all plans within its limit."""


class DotBounds:
    """The skeleton of each group that fits and has the least bound.

    Groups of ranks are on the links that are best for them, until `place` is called.
    """

    def __init__(self, prepared: Prepared, groups: DotGroups) -> None:
        """Begin with nothing that fits."""
        self._job, self._lattice = prepared.job, prepared.lattice
        self._groups, self._families = groups, prepared.families
        self.ticks = np.full(len(groups), np.inf)
        """Least bound of the skeletons of each group that fit; infinite if none do."""
        self.skeleton = np.full(len(groups), -1)
        self.is_near = np.zeros(len(groups), dtype=bool)
        """Which groups may have a plan within the limit that they were placed with."""

    def look(self) -> None:
        """Look at the families of each group in order, until the next are slower."""
        lower, group = self._groups.families.lower, self._groups.group
        order = np.lexsort((lower, group))
        end = np.cumsum(np.bincount(group, minlength=len(self._groups)))
        at, size = end - np.bincount(group, minlength=len(self._groups)), FIRST_LOOK
        while (at < end).any():
            until = np.minimum(at + size, end)
            part = order[ranges(at, until - at)]
            for start in range(0, len(part), AT_ONCE):
                self._look_at(part[start : start + AT_ONCE])
            at, size = until, size * GROWTH
            is_left = at < end
            next_bound = lower[order[at[is_left]]]
            at[is_left] = np.where(
                next_bound < self.ticks[is_left], at[is_left], end[is_left]
            )

    def _look_at(self, part: Ints) -> None:
        """Bound the skeletons of some families that fit in memory."""
        job, families = self._job, self._groups.families
        part = part[families.lower[part] < self.ticks[self._groups.group[part]]]
        index = ranges(families.start[part], families.count[part])
        group = np.repeat(self._groups.group[part], families.count[part])
        has_room = state_fits(job, self._lattice.take(index))
        index, group = index[has_room], group[has_room]
        memory = MemoryFit(job, self._lattice.take(index))
        fitting = np.flatnonzero(memory.is_fitting())
        group_of_price = memory.price_group[fitting]
        costs = with_times(job, memory.costs(fitting), group_of_price)
        ticks = measure_stages(job, costs, lower_bound_against(np.inf))
        index, group = index[fitting], group[fitting]
        order = np.lexsort((index, ticks, group))
        found, first = np.unique(group[order], return_index=True)
        best = order[first]
        is_less = ticks[best] < self.ticks[found]
        self.ticks[found[is_less]] = ticks[best[is_less]]
        self.skeleton[found[is_less]] = index[best[is_less]]

    def place(self, limit: float) -> None:
        """Bound what may be within a limit of ticks on its meshes.

        What is left above the limit takes more. Where the orders of GPUs are too many
        to look at, groups stay on the links that are best for them.
        """
        self.is_near = self.ticks <= limit
        if not self.is_near.any():
            return
        pruned = prune(
            self._job,
            self._lattice,
            spare=0,
            deadline=Deadline(MOST_S),
            families=self._families,
            known=limit,
            reach=MOST_REACH,
            has_dominated=True,
        )
        if pruned.open_bound <= limit:
            return
        found = pruned.near.up_to(limit)
        found = found.take(np.flatnonzero(found.fits))
        group = self._groups.of_skeletons(found.unplaced)
        order = np.lexsort((found.lower, group))
        has_plan, first = np.unique(group[order], return_index=True)
        self.ticks[self.is_near] = np.maximum(self.ticks[self.is_near], limit + 1)
        self.ticks[has_plan] = found.lower[order[first]]
        self.skeleton[has_plan] = found.unplaced[order[first]]
        self.is_near = self.ticks <= limit
