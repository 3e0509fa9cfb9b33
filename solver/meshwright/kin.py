"""Kin: rows that differ in what they free alone, and what the fastest of each takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.bounds import cheap_bound
from meshwright.cost.arrays import Floats, Ints, ranges
from meshwright.cost.offload import is_never_faster
from meshwright.job import Job
from meshwright.lattice import Lattice
from meshwright.room import timed
from meshwright.scaling import free
from meshwright.spec.pins import OFFLOADS


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

    def rows(self, index: Ints) -> Ints:
        """Return the coarse rows of some kin."""
        return ranges(self.start[index], self.count[index])


def kin_of(job: Job, lattice: Lattice) -> Kin:
    """Return the kin of a lattice.

    What recomputes takes no less than what does not, nor does what offloads, unless
    the host updates faster than the GPU: then each way to offload is apart.
    """
    number = lattice.kin * len(OFFLOADS)
    if not is_never_faster(job):
        number = number + lattice.rows.offload
    start = np.flatnonzero(np.diff(number, prepend=-1))
    count = np.diff(start, append=len(number))
    costs = timed(job, free(lattice.rows.take(start)), lattice.alike[start])
    return Kin(start, count, cheap_bound(costs, job.spec.model.n_layers))
