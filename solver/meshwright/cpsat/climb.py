"""Betters orders of GPUs by swaps of two, until no swap does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.cpsat.goal import Goal, Ints, Seats

Floats = NDArray[np.float64]

TIE = 1e-3
"""Weight of the mean link next to the fullest, to tell orders alike apart."""


def climbed(goals: Sequence[Goal], start: Seats) -> Seats:
    """Return the order that swaps of two GPUs lead to, the best swap first."""
    swaps = np.array(list(itertools.combinations(range(len(start)), 2)))
    order, least = np.array(start), np.inf
    while True:
        rows = np.arange(len(swaps))[:, None]
        tried = np.tile(order, (len(swaps), 1))
        tried[rows, swaps] = tried[rows, swaps[:, ::-1]]
        every = np.concatenate([order[None], tried])
        scores = _scores(goals, every)
        best = int(scores.argmin())
        if scores[best] >= least:
            return tuple(order.tolist())
        order, least = every[best], scores[best]


def _scores(goals: Sequence[Goal], orders: Ints) -> Floats:
    """Return costs of orders as shares of what each may cost above the least."""
    total = np.zeros(len(orders))
    for goal in goals:
        loads, longest = goal.passed(orders)
        room = np.subtract(goal.most, goal.least) + 1
        total += (loads.max(axis=1) + TIE * loads.mean(axis=1)) / room[0]
        total += longest / room[1]
    return total
