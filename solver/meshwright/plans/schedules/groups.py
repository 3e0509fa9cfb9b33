"""Sizes of groups of micro-batches, in columns."""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Ints
from meshwright.spec.microbatch_groups import group_size


def group_sizes(microbatches: Ints, stages: Ints | int) -> Ints:
    """Return the least size of groups of micro-batches, as `group_size` has it."""
    count, least = np.broadcast_arrays(microbatches, stages)
    size: Ints = np.minimum(count, least)
    has_rest = np.nonzero(count % size)
    if len(has_rest[0]):
        base = int(least.max()) + 1
        pairs, which = np.unique(
            count[has_rest] * base + least[has_rest], return_inverse=True
        )
        found = [group_size(*divmod(pair, base)) for pair in pairs.tolist()]
        size[has_rest] = np.array(found)[which]
    return size
