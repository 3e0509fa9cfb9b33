"""Groups of micro-batches that pass a chunk together under interleaved 1F1B.

A stage runs the forwards of a group through its first chunk, then the same group
through its second, and so on, before the next group starts.
"""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Bools, Ints


def group_size(microbatches: Ints | int, stages: Ints | int) -> Ints:
    """Return the least size of groups that leaves no bubble between chunks.

    A group of at least p micro-batches keeps p stages busy until its first one comes
    back for the next chunk. So groups have p or more, and so has the group of what is
    left over (Megatron-LM schedules.py: forward_backward_pipelining_with_interleaving
    refuses any other). Larger groups hold more and are no faster. Fewer than p
    micro-batches are one group.

    PyTorch's m // (m // p) is the same where it divides m: with fewer groups than
    m // p they are larger, with more one has less than p.
    """
    count, least = np.broadcast_arrays(microbatches, stages)
    size: Ints = np.minimum(count, least)
    small = np.flatnonzero(_leaves_few(count, size, least))
    if not len(small):
        return size
    count, least, size = count.ravel(), least.ravel(), size.ravel()
    while len(small):
        size[small] += 1
        small = small[_leaves_few(count[small], size[small], least[small])]
    return size.reshape(np.broadcast_shapes(np.shape(microbatches), np.shape(stages)))


def _leaves_few(count: Ints, size: Ints, least: Ints) -> Bools:
    """Return whether groups of a size leave over a group that is below the least."""
    left = count % size
    return np.asarray((left > 0) & (left < least))
