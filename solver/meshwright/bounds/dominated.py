"""Rows that free memory which nothing needs: they cannot be the best ones."""

from __future__ import annotations

import numpy as np

from meshwright.bounds.stages import has_one_split
from meshwright.cost.job import Job
from meshwright.cost.offload import is_never_faster
from meshwright.lattice.lattice import Lattice
from meshwright.plans.columns import Bools, Ints
from meshwright.plans.skeletons import KEEPS_ALL, NONE
from meshwright.spec.plan_fields import OFFLOADS, RECOMPUTE_MODES


def is_needless(job: Job, lattice: Lattice, fitting: Ints) -> Bools:
    """Return which rows, of the fitting ones, free memory that nothing needs.

    Where layers have one split only, a row that recomputes takes no less time than the
    one that is like it and does not, if that fits too; nor does one that offloads. A
    limit on links is another matter: slower plans may keep it. So are pinned counts of
    recomputed layers, which plans that recompute nothing may not have.
    """
    if job.spec.limits.max_link_utilisation is not None:
        return np.zeros(len(fitting), dtype=bool)
    rows, kin = lattice.rows, lattice.choices.kin[fitting]
    offload, recompute = rows.offload[fitting], rows.recompute[fitting]
    result = np.zeros(len(fitting), dtype=bool)
    if job.spec.pins.stage_recompute is None:
        result = _follows(kin * len(OFFLOADS) + offload, recompute == NONE)
    if is_never_faster(job):
        kin = kin * len(RECOMPUTE_MODES) + recompute
        result |= _follows(kin, offload == KEEPS_ALL)
    return np.asarray(result & has_one_split(rows)[fitting])


def _follows(kin: Ints, is_first: Bools) -> Bools:
    """Return which rows have a first one among their kin, and are not it."""
    has_first = np.zeros(int(kin.max(initial=0)) + 1, dtype=bool)
    has_first[kin[is_first]] = True
    return np.asarray(has_first[kin] & ~is_first)
