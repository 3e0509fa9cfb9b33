"""Constructs splits of layers that are close to the lower bound: upper bounds."""

from __future__ import annotations

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.price import per_row
from meshwright.frameworks.base.framework import (
    ALL_LAYERS,
    PER_STAGE,
    fewest_in_scope,
)
from meshwright.frameworks.base.registry import recompute_scopes
from meshwright.planner.lower_bounds import least_pace
from meshwright.planner.stages import Stages, most_layers, recomputes
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.skeletons import Skeletons, Split
from meshwright.spec.plan_fields import Pins


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
    if pins.stage_recompute is None:
        return layers, recomputed
    recomputed = np.tile(np.array(pins.stage_recompute), (len(layers), 1))
    has_all = (stages.costs.recompute_scope == ALL_LAYERS)[:, None]
    if pins.layers is None:
        # Where all layers are recomputed, their pinned counts are those of the layers.
        is_split = has_all & (recomputed.sum(axis=1) == stages.layers)[:, None]
        layers = np.where(is_split, recomputed, layers)
    is_part = has_all & (layers == recomputed).all(axis=1, keepdims=True)
    # 0 pinned while all are recomputed: no split is valid, and 0 would mean all.
    is_none = has_all & (recomputed.sum(axis=1, keepdims=True) == 0)
    return layers, np.where(is_part, 0, np.where(is_none, 1, recomputed))


def fewest_recomputed(stages: Stages, layers: Ints) -> Ints:
    """Return the fewest recomputed layers of a split: some even if memory forces none.

    They are those that the recompute scope allows.
    """
    forced = _forced_recomputed(stages, layers)
    pace = layers * stages.pace_layer + stages.pace_extra
    fastest = np.arange(stages.count) == pace.argmin(axis=1)[:, None]
    is_idle = recomputes(stages.costs) & (forced.sum(axis=1) == 0)
    return _in_scope(stages, layers, forced + (fastest & is_idle[:, None]))


def _in_scope(stages: Stages, layers: Ints, needed: Ints) -> Ints:
    """Return the fewest recomputed layers in scope that are not below those needed.

    Where all layers are recomputed, that is part of each layer, and none is left.
    """
    scope, chunks = stages.costs.recompute_scope, stages.costs.rows.vpp
    scope = np.where(scope == ALL_LAYERS, PER_STAGE, scope)
    return fewest_in_scope(scope[:, None], needed, layers, chunks[:, None])


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
    holds &= (recomputed == _in_scope(stages, layers, recomputed)).all(axis=1)
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


def with_all_recomputed(
    job: Job, rows: Skeletons, layers: Ints, recomputed: Ints
) -> Split:
    """Return a split with all layers recomputed where that was part of every layer.

    It is of one skeleton, (stages,), or of several, (rows, stages). Recomputed layers
    that are not 0 there are pinned ones that the scope excludes.
    """
    has_all = per_row(recompute_scopes(job.spec, rows) == ALL_LAYERS, layers)
    has_all = has_all & (recomputed.sum(axis=-1, keepdims=True) == 0)
    return Split(layers, np.where(has_all, layers, recomputed))


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
