"""State fit: which skeletons fit in memory with their state alone.

State is weights, gradients and optimizer. It does not depend on what is recomputed, so
that one test decides for all skeletons of a family that offload alike, before any of
them is priced as a whole.
"""

from __future__ import annotations

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.price import price_state
from meshwright.lattice.lattice import Lattice
from meshwright.lattice.unplaced_skeletons import UnplacedSkeletons
from meshwright.plans.columns import Bools, Floats, distinct, representatives, total
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.plan_fields import OFFLOADS
from meshwright.spec.units import GIB


def state_fits(job: Job, lattice: Lattice) -> Bools:
    """Return which unplaced skeletons fit if their stages hold nothing but state.

    Those that do not fit with state alone do not fit at all. On several kinds of GPUs
    nothing is left out.
    """
    unplaced = lattice.unplaced
    if job.gpu_kinds:
        return np.ones(len(unplaced), dtype=bool)
    group = unplaced.family * len(OFFLOADS) + unplaced.offload
    one_of_each, inverse = representatives(group)
    return _fits(job, unplaced.take(one_of_each).rows)[inverse]


def families_fit(job: Job, first: UnplacedSkeletons) -> Bools:
    """Return which families have a skeleton that fits if it holds nothing but state.

    `first` has one skeleton of each.
    """
    if job.gpu_kinds:
        return np.ones(len(first), dtype=bool)
    one_of_each, inverse = distinct([*first.state_columns])
    ways, which = first.take(one_of_each).ways_to_offload()
    found = np.zeros(len(one_of_each), dtype=bool)
    found[which[_fits(job, ways.rows)]] = True
    return found[inverse]


def _fits(job: Job, rows: Skeletons) -> Bools:
    """Return whether the stages have room for the state of all layers.

    A single stage holds both ends of the model, else the first and the last hold one.
    """
    held = price_state(job, rows)
    first, last = total(held.first), total(held.last)
    capacity, layer = job.spec.usable_gib * GIB, total(held.layer)
    layers = job.spec.model.n_layers

    def most_layers(beside: Floats) -> Floats:
        room = np.maximum(capacity - beside, 0.0)
        # Where the whole state is on the host, a layer holds nothing here.
        return np.where(layer > 0, room // np.maximum(layer, 1.0), layers)

    inner = np.maximum(rows.pp - 2, 0) * most_layers(np.zeros(1))
    several = most_layers(first) + most_layers(last) + inner
    most = np.where(rows.pp == 1, most_layers(first + last), several)
    result: Bools = most >= layers
    return result
