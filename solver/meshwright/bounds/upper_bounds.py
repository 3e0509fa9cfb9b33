"""Constructs splits of layers that are close to the lower bound: upper bounds."""

from __future__ import annotations

import numpy as np

from meshwright.bounds.lower_bounds import least_pace
from meshwright.bounds.stages import Stages, most_layers, recomputes
from meshwright.cost.job import Job
from meshwright.cost.price import per_row
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.skeletons import NONE, Skeletons
from meshwright.plans.split import Split
from meshwright.spec.pins import Pins


def construct_split(stages: Stages) -> tuple[Ints, Ints]:
    """Return layers and recomputed layers of every stage, (rows, stages).

    The split fits in memory wherever some split does, and its pace is the least one up
    to the rounding of recomputed layers.
    """
    cap = most_layers(stages, least_pace(stages) * (1 + 1e-12) + 1.0)
    plain = np.minimum(cap, np.floor(stages.plain_cap))
    floor = np.minimum(cap, stages.least)
    layers = _level_layers(np.maximum(plain, floor), floor, stages.layers)
    short = stages.layers - layers.sum(axis=1)
    # The first stages have the most micro-batches in flight: there a recomputed layer
    # frees the most.
    further = np.maximum(cap - layers, 0)
    before = np.cumsum(further, axis=1) - further
    layers = layers + np.clip(short[:, None] - before, 0, further)
    whole = layers.astype(np.int64)
    return whole, fewest_recomputed(stages, whole)


def construct_pinned_split(pins: Pins, stages: Stages) -> tuple[Ints, Ints]:
    """Return layers and recomputed layers of every stage, with the pinned ones."""
    layers, recomputed = construct_split(stages)
    if pins.layers is not None:
        layers = np.tile(np.array(pins.layers), (len(layers), 1))
        recomputed = fewest_recomputed(stages, layers)
    if pins.stage_recompute is not None:
        recomputed = np.tile(np.array(pins.stage_recompute), (len(layers), 1))
    return layers, recomputed


def fewest_recomputed(stages: Stages, layers: Ints) -> Ints:
    """Return the fewest recomputed layers of a split: one if memory forces none."""
    forced = _forced_recomputed(stages, layers)
    pace = layers * stages.pace_layer + stages.pace_extra
    fastest = np.arange(stages.count) == pace.argmin(axis=1)[:, None]
    is_idle = recomputes(stages.costs) & (forced.sum(axis=1) == 0)
    result: Ints = forced + (fastest & is_idle[:, None])
    return result


def _forced_recomputed(stages: Stages, layers: Ints) -> Ints:
    """Return the fewest recomputed layers with which each stage fits, exactly."""
    missing = np.maximum(layers * stages.per_layer - stages.layer_capacity, 0)
    result: Ints = -(-missing // np.maximum(stages.freed, 1)) * (stages.freed > 0)
    return result


def split_fits(stages: Stages, layers: Ints, recomputed: Ints) -> Bools:
    """Return which splits are valid and fit in memory."""
    needed = layers * stages.per_layer - recomputed * stages.freed
    is_split = (layers >= stages.least) & (recomputed >= 0) & (recomputed <= layers)
    is_split &= layers <= stages.full_cap
    holds = ((needed <= stages.layer_capacity) & is_split).all(axis=1)
    has_mode = recomputes(stages.costs) == (recomputed.sum(axis=1) > 0)
    result: Bools = holds & has_mode & (layers.sum(axis=1) == stages.layers)
    return result


def split_ticks(stages: Stages, layers: Ints, recomputed: Ints) -> Floats:
    """Return the exact step time of splits in ticks."""
    fill = layers * stages.layer + recomputed * stages.recompute
    pace = layers * stages.pace_layer
    pace = pace + recomputed * stages.pace_recompute + stages.pace_extra
    sync = (layers * stages.sync_layer + stages.sync).max(axis=1)
    ticks = (fill + stages.extra).sum(axis=1) + pace.max(axis=1) + sync
    return np.asarray(ticks, dtype=np.float64)


def unfold_pinned_recompute(
    job: Job, rows: Skeletons, layers: Ints, recomputed: Ints
) -> Split:
    """Return a split with the recomputed layers that pins folded into its layers.

    It is of one skeleton, (stages,), or of several, (rows, stages).
    """
    if not job.spec.pins.recomputes_all_layers:
        return Split(layers, recomputed)
    is_folded = per_row(rows.recompute != NONE, layers)
    return Split(layers, np.where(is_folded, layers, recomputed))


def _level_layers(caps: Floats, floors: Floats, layers: int) -> Floats:
    """Return layers that add up to `layers`, as level as floors and caps allow."""
    low, high = np.zeros(len(caps)), caps.max(axis=1)
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        enough = np.clip(middle[:, None], floors, caps).sum(axis=1) >= layers
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle)
    levelled = np.clip(high[:, None], floors, caps)
    excess = np.maximum(levelled.sum(axis=1) - layers, 0)
    at_level = (levelled == high[:, None]) & (levelled > floors)
    before = np.cumsum(at_level, axis=1) - at_level
    result: Floats = levelled - (at_level & (before < excess[:, None]))
    return result
