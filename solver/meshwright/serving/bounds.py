"""Bounds on the objective of deployments, in ticks.

The objective is a pass through all stages, which takes equally long for every split
of layers, plus what a round of m groups takes longer than a pass: m times its slowest
stage less the pass, if that is positive. The slowest stage takes at least the mean of
all stages, which gives the lower bound; the upper bound is that of the best split.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.plans.columns import Bools, Ints
from meshwright.serving.stage_costs import StageCosts

NEVER = 2**60
"""Ticks of rows that cannot hold the model, or exceed a latency limit."""


class Bounds(NamedTuple):
    """The bounds of rows, and the split that attains the upper one."""

    lower: Ints
    upper: Ints
    layers: Ints
    """(rows, stages)"""


def bounds(stages: StageCosts, layers: int, pinned: Ints | None) -> Bounds:
    """Return the bounds of rows, for the pinned split if there is one."""
    once, cycle = stages.pass_ticks(layers), stages.cycle_ticks(layers)
    groups = stages.rows.microbatches
    even = -(-groups * cycle // stages.count)
    lower = once + np.maximum(even - cycle, 0)
    split = _best_split(stages, layers) if pinned is None else _repeated(stages, pinned)
    slowest = _stage_ticks(stages, split).max(axis=1)
    upper = once + np.maximum(groups * slowest - cycle, 0)
    fits = _fits(stages, split, layers)
    lower, upper = np.where(fits, lower, NEVER), np.where(fits, upper, NEVER)
    return Bounds(lower, upper, split)


def _stage_ticks(stages: StageCosts, split: Ints) -> Ints:
    """Return the ticks of every stage in a round, (rows, stages)."""
    return np.asarray(split * stages.cycle_layer[:, None] + stages.cycle_extra)


def _fits(stages: StageCosts, split: Ints, layers: int) -> Bools:
    inside = (split >= stages.least) & (split <= stages.most)
    return np.asarray(inside.all(axis=1) & (split.sum(axis=1) == layers))


def _repeated(stages: StageCosts, pinned: Ints) -> Ints:
    return np.tile(pinned, (len(stages.rows), 1))


def _best_split(stages: StageCosts, layers: int) -> Ints:
    """Return splits whose slowest stage is as fast as possible.

    The limit on its ticks is bisected: within a limit every stage takes the most layers
    it can. Where no limit is enough, the split has too few layers.
    """
    low = np.zeros(len(stages.rows), dtype=np.int64)
    high = _stage_ticks(stages, stages.most).max(axis=1)
    while (low < high).any():
        middle = (low + high) // 2
        is_enough = _most_within(stages, middle).sum(axis=1) >= layers
        high = np.where(is_enough, middle, high)
        low = np.where(is_enough, low, np.minimum(middle + 1, high))
    return _trimmed(_most_within(stages, high), stages.least, layers)


def _most_within(stages: StageCosts, ticks: Ints) -> Ints:
    """Return the most layers of stages within some ticks; 0 if below the fewest."""
    per_layer = stages.cycle_layer[:, None]
    left = ticks[:, None] - stages.cycle_extra
    fit = np.where(per_layer > 0, left // np.maximum(per_layer, 1), stages.most)
    most = np.where(left < 0, -1, np.minimum(fit, stages.most))
    is_enough = np.asarray((most >= stages.least).all(axis=1))
    return np.where(is_enough[:, None], most, 0)


def _trimmed(split: Ints, least: Ints, layers: int) -> Ints:
    """Return splits without their surplus layers, taken from the last stages first."""
    surplus = np.maximum(split.sum(axis=1) - layers, 0)
    split = split.copy()
    for stage in reversed(range(split.shape[1])):
        removed = np.minimum(surplus, np.maximum(split[:, stage] - least[stage], 0))
        split[:, stage] -= removed
        surplus = surplus - removed
    return split
