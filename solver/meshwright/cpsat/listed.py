"""Every order of GPUs that symmetries tell apart, where those are few."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@lru_cache(maxsize=64)
def orders_of(
    gpus: int, before: tuple[tuple[int, int], ...], first: tuple[int, ...], most: int
) -> Ints | None:
    """Return the GPU of each rank in every order, (orders, ranks); None above `most`.

    Of a pair in `before` the first GPU has the lower rank; `first` are the ranks that
    GPU 0 may have.
    """
    known = {gpu: {a for a, b in before if b == gpu} for gpu in range(gpus)}
    found: list[list[int]] = []
    for order in _grown([], known, set(first)):
        if len(found) == most:
            return None
        found.append(order)
    return np.array(found, dtype=np.int64)


def _grown(
    order: list[int], known: dict[int, set[int]], first: set[int]
) -> Iterator[list[int]]:
    """Yield the orders that begin with this one; `known` have to come before each."""
    rank, taken = len(order), set(order)
    if rank == len(known):
        yield order
        return
    if 0 not in taken and rank > max(first):
        return
    for gpu, earlier in known.items():
        if gpu not in taken and earlier <= taken and (gpu or rank in first):
            yield from _grown([*order, gpu], known, first)


def front(costs: Ints) -> list[int]:
    """Return the first order of each least set of costs, (orders, costs)."""
    distinct, rows = np.unique(costs, axis=0, return_index=True)
    kept: list[int] = []
    for index in np.lexsort((rows, distinct.sum(axis=1))):
        is_worse = (distinct[kept] <= distinct[index]).all(axis=1)
        if not is_worse.any():
            kept.append(int(index))
    return [int(row) for row in rows[kept]]
