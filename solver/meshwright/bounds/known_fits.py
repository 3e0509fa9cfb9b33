"""Known fits: which skeletons of families fit in memory, found once and kept.

One explanation searches parts of one lattice, on links as they are or faster, with the
usable memory or more of it. The same families come up again and again, and few of
their skeletons fit.
"""

from __future__ import annotations

import numpy as np

from meshwright.bounds.memory_fit import MemoryFit, capacities
from meshwright.bounds.state_fit import state_fits
from meshwright.cost.job import Job
from meshwright.lattice.lattice import Lattice
from meshwright.plans.columns import Bools, Ints, ranges

NOT_KNOWN = -1


class KnownFits:
    """The skeletons of families that fit on the GPUs of a job, kept by family.

    Each skeleton is kept as its place in its family, which is the same in every part of
    the lattice. What does not fit there fits nowhere with less memory.
    """

    def __init__(self, job: Job, families: int) -> None:
        """Know nothing yet of any family; `job` has the most memory that is asked."""
        self.job = job
        """The job on whose GPUs all of them fit."""
        self._first = np.full(families, NOT_KNOWN, dtype=np.int64)
        """Where the places of each family start."""
        self._count = np.zeros(families, dtype=np.int64)
        self._places = np.zeros(0, dtype=np.int32)

    def covers(self, job: Job) -> bool:
        """Return whether all that fits on the GPUs of another job is known here."""
        pairs = zip(_room(job), _room(self.job), strict=True)
        return all(own <= most for own, most in pairs)

    def rows(self, lattice: Lattice, family: Ints, start: Ints, count: Ints) -> Ints:
        """Return the skeletons of families that may fit, by their place in a lattice.

        The `count` skeletons of a family stand from `start` on.
        """
        new = np.flatnonzero(self._first[family] == NOT_KNOWN)
        self._find(lattice, family[new], start[new], count[new])
        fitting = self._count[family]
        place = self._places[ranges(self._first[family], fitting)]
        return np.repeat(start, fitting) + place

    def keep(self, job: Job, memory: MemoryFit) -> Bools:
        """Return which skeletons that fit here fit on the GPUs of a job too."""
        if _room(job) == _room(self.job):
            return np.ones(len(memory), dtype=bool)
        return memory.is_fitting()

    def _find(self, lattice: Lattice, family: Ints, start: Ints, count: Ints) -> None:
        """Find out which skeletons of some families fit."""
        row = ranges(start, count)
        row = row[state_fits(self.job, lattice.take(row))]
        row = row[MemoryFit(self.job, lattice.take(row)).is_fitting()]
        own = np.searchsorted(start, row, side="right") - 1
        self._count[family] = np.bincount(own, minlength=len(family))
        ends = np.cumsum(self._count[family])
        self._first[family] = len(self._places) + ends - self._count[family]
        place = (row - start[own]).astype(np.int32)
        self._places = np.concatenate([self._places, place])


def _room(job: Job) -> list[int]:
    """Return the chunks of a GPU and of its share of a host, for each kind of GPU."""
    return [chunks for kind in job.gpu_kinds or (job,) for chunks in capacities(kind)]
