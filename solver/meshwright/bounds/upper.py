"""Splits of layers over stages: one that attains little more than the bound."""

from __future__ import annotations

import numpy as np

from meshwright.bounds.lower import least_pace
from meshwright.bounds.stages import Stages, most_layers, recomputes
from meshwright.cost.job import Job
from meshwright.cost.price import per_row
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.skeletons import NONE, Skeletons
from meshwright.plans.split import Split
from meshwright.spec.pins import Pins


def constructive_split(stages: Stages) -> tuple[Ints, Ints]:
    """Return layers and recomputed layers of every stage, (rows, stages).

    The split fits in memory where `fits` holds, and its pace is the least one up to
    the rounding of recomputed layers.
    """
    cap = most_layers(stages, least_pace(stages) * (1 + 1e-12) + 1.0)
    plain = np.minimum(cap, np.floor(stages.plain_cap))
    floor = np.minimum(cap, stages.least)
    layers = _level(np.maximum(plain, floor), floor, stages.layers)
    short = stages.layers - layers.sum(axis=1)
    # The first stages hold the most micro-batches: a recomputed layer frees most there.
    room = np.maximum(cap - layers, 0)
    before = np.cumsum(room, axis=1) - room
    layers = layers + np.clip(short[:, None] - before, 0, room)
    whole = layers.astype(np.int64)
    return whole, recomputed_of(stages, whole)


def pinned_split(pins: Pins, stages: Stages) -> tuple[Ints, Ints]:
    """Return layers and recomputed layers, constructed around the pinned ones."""
    layers, recomputed = constructive_split(stages)
    if pins.layers is not None:
        layers = np.tile(np.array(pins.layers), (len(layers), 1))
        recomputed = recomputed_of(stages, layers)
    if pins.stage_recompute is not None:
        recomputed = np.tile(np.array(pins.stage_recompute), (len(layers), 1))
    return layers, recomputed


def recomputed_of(stages: Stages, layers: Ints) -> Ints:
    """Return the fewest recomputed layers for a split: one if none is forced."""
    forced = _least_recomputed(stages, layers)
    pace = layers * stages.pace_layer + stages.pace_extra
    fastest = np.arange(stages.count) == pace.argmin(axis=1)[:, None]
    is_idle = recomputes(stages.costs) & (forced.sum(axis=1) == 0)
    result: Ints = forced + (fastest & is_idle[:, None])
    return result


def _least_recomputed(stages: Stages, layers: Ints) -> Ints:
    """Return the fewest recomputed layers with which each stage fits; exact."""
    missing = np.maximum(layers * stages.per_layer - stages.room, 0)
    result: Ints = -(-missing // np.maximum(stages.freed, 1)) * (stages.freed > 0)
    return result


def split_fits(stages: Stages, layers: Ints, recomputed: Ints) -> Bools:
    """Return which splits fit in memory, place every layer, and are splits at all."""
    needed = layers * stages.per_layer - recomputed * stages.freed
    is_split = (layers >= stages.least) & (recomputed >= 0) & (recomputed <= layers)
    is_split &= layers <= stages.full_cap
    holds = ((needed <= stages.room) & is_split).all(axis=1)
    is_named = recomputes(stages.costs) == (recomputed.sum(axis=1) > 0)
    result: Bools = holds & is_named & (layers.sum(axis=1) == stages.layers)
    return result


def split_ticks(stages: Stages, layers: Ints, recomputed: Ints) -> Floats:
    """Return the exact step time of splits, ticks."""
    fill = layers * stages.layer + recomputed * stages.recompute
    pace = layers * stages.pace_layer
    pace = pace + recomputed * stages.pace_recompute + stages.pace_extra
    sync = (layers * stages.sync_layer + stages.sync).max(axis=1)
    ticks = (fill + stages.extra).sum(axis=1) + pace.max(axis=1) + sync
    return np.asarray(ticks, dtype=np.float64)


def real_split(job: Job, rows: Skeletons, layers: Ints, recomputed: Ints) -> Split:
    """Return a split with what pins have folded into its layers.

    That of one row, (stages,), or of several, (rows, stages).
    """
    if not job.spec.pins.recomputes_all_layers:
        return Split(layers, recomputed)
    is_folded = per_row(rows.recompute != NONE, layers)
    return Split(layers, np.where(is_folded, layers, recomputed))


def _level(caps: Floats, floors: Floats, layers: int) -> Floats:
    """Return the lowest level, within floors and caps, that adds up to `layers`."""
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
