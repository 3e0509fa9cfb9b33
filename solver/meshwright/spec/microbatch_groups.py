"""Groups of micro-batches that pass a chunk together under interleaved 1F1B.

A stage runs the forwards of a group through its first chunk, then the same group
through its second, and so on, before the next group starts.
"""

from __future__ import annotations

from functools import cache


@cache
def group_size(microbatches: int, stages: int) -> int:
    """Return the least size of groups that leaves no bubble between chunks.

    A group of at least p micro-batches keeps p stages busy until its first one comes
    back for the next chunk. So groups have p or more, and so has the group of what is
    left over (Megatron-LM schedules.py: forward_backward_pipelining_with_interleaving
    refuses any other). Larger groups hold more and are no faster. Fewer than p
    micro-batches are one group.

    PyTorch's m // (m // p) is the same where it divides m: with fewer groups than
    m // p they are larger, with more one has less than p.
    """
    sizes = range(stages, microbatches)
    whole = (n for n in sizes if not 0 < microbatches % n < stages)
    return next(whole, microbatches)
