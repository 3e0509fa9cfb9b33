"""Kin: rows that differ in what they free alone, and what the fastest of each takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.bounds.integer_costs import free
from meshwright.bounds.lower import cheap_bound
from meshwright.bounds.memory_fit import timed
from meshwright.cost.job import Job
from meshwright.cost.offload import is_never_faster
from meshwright.lattice.lattice import Lattice
from meshwright.plans.columns import Bools, Floats, Ints, ranges
from meshwright.plans.skeletons import KEEPS_ALL
from meshwright.spec.plan_fields import OFFLOADS


@dataclass(frozen=True)
class Kin:
    """Kin of a lattice, an entry each."""

    start: Ints
    """Coarse row that frees the least; the others of its kin follow."""
    count: Ints
    floor: Floats
    """Ticks that each of them takes at least, memory left aside."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.start)

    def least(self, index: Ints, count: int) -> tuple[Ints, Ints]:
        """Return the `count` of some kin that have the least floors, and the others."""
        if len(index) <= count:
            return index, index[:0]
        order = np.argpartition(self.floor[index], count)
        return index[np.sort(order[:count])], index[np.sort(order[count:])]

    def among(self, rows: Bools) -> Kin:
        """Return those of the part of a lattice that some coarse rows make up.

        A family is in that part as a whole or not at all.
        """
        own = np.flatnonzero(rows[self.start])
        count = self.count[own]
        return Kin(np.cumsum(count) - count, count, self.floor[own])

    def rows(self, index: Ints) -> Ints:
        """Return the coarse rows of some kin."""
        return ranges(self.start[index], self.count[index])


def kin_of(job: Job, lattice: Lattice) -> Kin:
    """Return the kin of a lattice.

    What recomputes takes no less than what does not, and what offloads no less than
    what keeps all, unless the host updates faster than the GPU. Where that is so, or
    all must offload, each way to offload is kin of its own.
    """
    choices = lattice.choices
    start = _starts(choices.kin)
    least = choices.take(start)
    if not (is_never_faster(job) and (least.rows.offload == KEEPS_ALL).all()):
        start = _starts(choices.kin * len(OFFLOADS) + choices.rows.offload)
        least = choices.take(start)
    costs = timed(job, free(least.rows), least.alike)
    count = np.diff(start, append=len(choices))
    return Kin(start, count, cheap_bound(costs, job.spec.model.n_layers))


def _starts(number: Ints) -> Ints:
    """Return where each number starts, of those that stand together."""
    return np.flatnonzero(np.diff(number, prepend=-1))
