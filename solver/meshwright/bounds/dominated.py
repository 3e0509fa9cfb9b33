"""Dominated skeletons: they free memory although the same skeleton fits without."""

from __future__ import annotations

import numpy as np

from meshwright.bounds.stages import has_one_split
from meshwright.cost.job import Job
from meshwright.cost.offload import is_never_faster
from meshwright.lattice.lattice import Lattice
from meshwright.plans.columns import Bools, Ints
from meshwright.plans.skeletons import FULL, KEEPS_ALL, NONE
from meshwright.rules.user_rules import split_dependent
from meshwright.spec.plan_fields import OFFLOADS


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
