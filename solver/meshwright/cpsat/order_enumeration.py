"""Lists every order of GPUs that symmetries tell apart, where those are few."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@lru_cache(maxsize=64)
def enumerate_orders(
    gpus: int,
    rank_order: tuple[tuple[int, int], ...],
    first_gpu_ranks: tuple[int, ...],
    most: int,
) -> Ints | None:
    """Return the GPU of each rank in every order, (orders, ranks); None above `most`.

    In each pair of `rank_order` the first GPU has the lower rank; GPU 0 has one of
    `first_gpu_ranks`.
    """
    lower_ranked = {gpu: {a for a, b in rank_order if b == gpu} for gpu in range(gpus)}
    found: list[list[int]] = []
    for order in _completions([], lower_ranked, set(first_gpu_ranks)):
        if len(found) == most:
            return None
        found.append(order)
    return np.array(found, dtype=np.int64)


def _completions(
    order: list[int], lower_ranked: dict[int, set[int]], first_gpu_ranks: set[int]
) -> Iterator[list[int]]:
    """Yield the full orders that begin with this one."""
    rank, taken = len(order), set(order)
    if rank == len(lower_ranked):
        yield order
        return
    if 0 not in taken and rank > max(first_gpu_ranks):
        return
    for gpu, earlier in lower_ranked.items():
        if gpu not in taken and earlier <= taken and (gpu or rank in first_gpu_ranks):
            yield from _completions([*order, gpu], lower_ranked, first_gpu_ranks)


def pareto_front(costs: Ints) -> list[int]:
    """Return the rows of `costs` that no other row dominates, the first of equals."""
    distinct, rows = np.unique(costs, axis=0, return_index=True)
    kept: list[int] = []
    for index in np.lexsort((rows, distinct.sum(axis=1))):
        dominates = (distinct[kept] <= distinct[index]).all(axis=1)
        if not dominates.any():
            kept.append(int(index))
    return [int(row) for row in rows[kept]]
