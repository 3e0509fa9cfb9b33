"""Improves an order of GPUs by swapping two at a time, until no swap helps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.cpsat.group_cost import GpuOrder, GroupCost, Ints

Floats = NDArray[np.float64]

MEAN_WEIGHT = 1e-3
"""Weight of the mean link load beside the fullest link's, which decides ties."""


def local_optimum(groups: Sequence[GroupCost], start: GpuOrder) -> GpuOrder:
    """Return the order reached from `start` by always taking the best swap."""
    swaps = np.array(list(itertools.combinations(range(len(start)), 2)))
    order, lowest = np.array(start), np.inf
    while True:
        rows = np.arange(len(swaps))[:, None]
        swapped = np.tile(order, (len(swaps), 1))
        swapped[rows, swaps] = swapped[rows, swaps[:, ::-1]]
        candidates = np.concatenate([order[None], swapped])
        scores = _scores(groups, candidates)
        best = int(scores.argmin())
        if scores[best] >= lowest:
            return tuple(order.tolist())
        order, lowest = candidates[best], scores[best]


def _scores(groups: Sequence[GroupCost], orders: Ints) -> Floats:
    """Return the cost of orders: each cost as a share of the range left to it."""
    total = np.zeros(len(orders))
    for group in groups:
        loads, longest = group.link_loads(orders)
        span = np.subtract(group.most, group.least) + 1
        fullest = loads.max(axis=1) + MEAN_WEIGHT * loads.mean(axis=1)
        total += fullest / span[0]
        total += longest / span[1]
    return total
