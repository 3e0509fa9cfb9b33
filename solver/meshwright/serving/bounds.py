"""Bounds of deployments: ticks that no split of layers betters, and a split's own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.plans.columns import Bools, Ints
from meshwright.serving.stages import Stages

NEVER = 2**60
"""Ticks of rows that cannot hold the model, or are too slow for its users."""


class Bounds(NamedTuple):
    """Ticks of rows, and the split that attains the upper ones."""

    lower: Ints
    upper: Ints
    layers: Ints
    """(rows, stages)"""


def bounds(stages: Stages, layers: int, pinned: Ints | None) -> Bounds:
    """Return the bounds of rows.

    No round is shorter than if its work were spread evenly. The slowest stage of the
    best split is found by bisection: with a limit on it, stages take what they can.
    """
    once, waited = stages.once(layers), stages.waited(layers)
    groups = stages.rows.microbatches
    even = -(-groups * waited // stages.count)
    lower = once + np.maximum(even - waited, 0)
    split = _best_split(stages, layers) if pinned is None else _given(stages, pinned)
    slowest = _pace(stages, split).max(axis=1)
    upper = once + np.maximum(groups * slowest - waited, 0)
    fits = _holds(stages, split, layers)
    lower, upper = np.where(fits, lower, NEVER), np.where(fits, upper, NEVER)
    return Bounds(lower, upper, split)


def _pace(stages: Stages, split: Ints) -> Ints:
    return np.asarray(split * stages.cycle_layer[:, None] + stages.cycle_extra)


def _holds(stages: Stages, split: Ints, layers: int) -> Bools:
    inside = (split >= stages.least) & (split <= stages.most)
    return np.asarray(inside.all(axis=1) & (split.sum(axis=1) == layers))


def _given(stages: Stages, pinned: Ints) -> Ints:
    return np.tile(pinned, (len(stages.rows), 1))


def _best_split(stages: Stages, layers: int) -> Ints:
    """Return splits whose slowest stage is as quick as it can be, later stages first.

    Where there is none, the split has too few layers.
    """
    low = np.zeros(len(stages.rows), dtype=np.int64)
    high = _pace(stages, stages.most).max(axis=1)
    while (low < high).any():
        middle = (low + high) // 2
        enough = _within(stages, middle).sum(axis=1) >= layers
        high = np.where(enough, middle, high)
        low = np.where(enough, low, np.minimum(middle + 1, high))
    return _cut(_within(stages, high), stages.least, layers)


def _within(stages: Stages, pace: Ints) -> Ints:
    """Return the most layers of each stage that keep a pace; none below the least."""
    per_layer = stages.cycle_layer[:, None]
    left = pace[:, None] - stages.cycle_extra
    fit = np.where(per_layer > 0, left // np.maximum(per_layer, 1), stages.most)
    room = np.where(left < 0, -1, np.minimum(fit, stages.most))
    keeps = np.asarray((room >= stages.least).all(axis=1))
    return np.where(keeps[:, None], room, 0)


def _cut(split: Ints, least: Ints, layers: int) -> Ints:
    """Return splits without the layers that are too many, from the last stage on."""
    over = np.maximum(split.sum(axis=1) - layers, 0)
    split = split.copy()
    for stage in reversed(range(split.shape[1])):
        taken = np.minimum(over, np.maximum(split[:, stage] - least[stage], 0))
        split[:, stage] -= taken
        over = over - taken
    return split
