"""Rows that free memory which nothing needs: they cannot be the best ones."""

from __future__ import annotations

import numpy as np

from meshwright.cost.arrays import Bools, Ints
from meshwright.cost.offload import is_never_faster
from meshwright.job import Job
from meshwright.lattice import Lattice
from meshwright.skeleton import KEEPS_ALL, NONE
from meshwright.spec.pins import OFFLOADS, RECOMPUTE_MODES


def is_needless(job: Job, lattice: Lattice) -> Bools:
    """Return which rows, of those that fit, free memory that nothing needs.

    Where layers have one split only, a row that recomputes takes no less time than the
    one that is like it and does not, if that fits too; nor does one that offloads. A
    limit on links is another matter: slower plans may keep it.
    """
    rows = lattice.rows
    if job.spec.limits.max_link_utilisation is not None:
        return np.zeros(len(rows), dtype=bool)
    kin = lattice.kin * len(OFFLOADS) + rows.offload
    result = _follows(kin, rows.recompute == NONE)
    if is_never_faster(job):
        kin = lattice.kin * len(RECOMPUTE_MODES) + rows.recompute
        result |= _follows(kin, rows.offload == KEEPS_ALL)
    return np.asarray(result & ((rows.pp == 1) | (rows.vpp > 1)))


def _follows(kin: Ints, is_first: Bools) -> Bools:
    """Return which rows have a first one among their kin, and are not it."""
    has_first = np.zeros(int(kin.max(initial=0)) + 1, dtype=bool)
    has_first[kin[is_first]] = True
    return np.asarray(has_first[kin] & ~is_first)
