"""What a skeleton costs at least, and a split of its layers that attains little more.

All in ticks and chunks (see `scaling`), for skeletons with one number of stages at a
time. On stage e, n layers need at least

    r(n) = ceil((n (state + f activations) + fixed - capacity) / (f freed))

recomputed layers, where f micro-batches are in flight; more are never faster. The
fluid r (without the ceiling) makes tau(n) = n layer + r recompute + extra convex with
one kink, so that the most layers within a bottleneck B have a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cost.arrays import Bools, Floats, Ints
from meshwright.scaling import Scaled
from meshwright.skeleton import NONE

BISECTIONS = 40
INFINITE = np.inf


@dataclass(frozen=True)
class Stages:
    """Skeletons with the same number of stages, ready for bounds, (rows, stages)."""

    costs: Scaled
    layers: int
    """Layers of the model."""
    extra: Ints
    sync: Ints
    room: Ints
    """Chunks that a stage has for its layers."""
    per_layer: Ints
    freed: Ints
    """Chunks that a recomputed layer gives back; 0 where recomputation is off."""
    plain_cap: Floats
    """Most layers that fit with none recomputed; fractional."""
    full_cap: Floats
    """Most layers that fit with all recomputed; whole."""
    recompute_slope: Floats
    """Recomputed layers that each layer above plain_cap forces; fractional."""

    @property
    def count(self) -> int:
        """Return the number of stages."""
        return self.extra.shape[1]


def stages_of(costs: Scaled, layers: int, capacity: int | Ints) -> Stages:
    """Return what the memory of every stage allows; all rows have one pp.

    `capacity` is in chunks, for all rows or (rows, 1).
    """
    count = int(costs.rows.pp[0])
    held = costs.held(count)
    room = np.maximum(capacity - costs.stage_fixed(count), 0)
    per_layer = costs.state[:, None] + held * costs.activations[:, None]
    recomputes = (costs.rows.recompute != NONE)[:, None]
    freed = np.where(recomputes, held * costs.freed[:, None], 0)
    return Stages(
        costs=costs,
        layers=layers,
        extra=costs.stage_extra(count),
        sync=costs.stage_sync(count),
        room=room,
        per_layer=per_layer,
        freed=freed,
        plain_cap=room / per_layer,
        full_cap=np.minimum(room // (per_layer - freed), layers).astype(np.float64),
        recompute_slope=np.where(freed > 0, per_layer / np.maximum(freed, 1), 0.0),
    )


def fits(stages: Stages) -> Bools:
    """Return which rows can hold the model at all, every layer recomputed if need be."""
    has_all = (stages.full_cap >= 1).all(axis=1)
    return has_all & (stages.full_cap.sum(axis=1) >= stages.layers)


def cheap_bound(costs: Scaled, layers: int) -> Floats:
    """Return ticks below which no split of a skeleton gets, memory left aside."""
    rows = costs.rows
    extra = costs.first + costs.last + 2 * (rows.pp - 1) * costs.send
    work = layers * costs.layer + extra
    largest = -(-layers // rows.pp)
    slowest = np.maximum(work / rows.pp, largest * costs.layer)
    return work + (rows.microbatches - 1) * slowest + _least_sync(costs, layers)


def lower_bound(stages: Stages, best: float) -> Floats:
    """Return ticks below which no split gets; rows above `best` may be left loose.

    work + (m - 1) x the least bottleneck + the least recompute that any split with
    a bottleneck good enough to beat `best` needs + the least end of step.
    """
    costs, m = stages.costs, stages.costs.rows.microbatches
    bottleneck = least_bottleneck(stages)
    work = stages.layers * costs.layer + stages.extra.sum(axis=1)
    sync = _least_sync(costs, stages.layers)
    floor = work + (m - 1) * bottleneck + sync
    slack = np.where(m > 1, (best - floor) / np.maximum(m - 1, 1), INFINITE)
    loosest = bottleneck + np.maximum(slack, 0.0)
    forced = np.maximum(_least_recompute(stages, loosest), recomputes(costs))
    return floor + costs.recompute * forced


def least_bottleneck(stages: Stages) -> Floats:
    """Return ticks that the slowest stage takes at least, (rows,), by bisection."""
    costs = stages.costs
    low = (stages.extra + costs.layer[:, None]).max(axis=1)
    high = (_fluid_seconds(stages, stages.full_cap)).max(axis=1)
    high = np.maximum(high, low)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        enough = _most_layers(stages, middle).sum(axis=1) >= stages.layers
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle)
    return low


def constructive_split(stages: Stages) -> tuple[Ints, Ints]:
    """Return layers and recomputed layers of every stage, (rows, stages).

    The split fits in memory where `fits` holds, and its bottleneck is the least one
    up to the rounding of recomputed layers.
    """
    cap = _most_layers(stages, least_bottleneck(stages) * (1 + 1e-12) + 1.0)
    plain = np.minimum(cap, np.floor(stages.plain_cap))
    layers = _level(np.maximum(plain, np.minimum(cap, 1)), stages.layers)
    short = stages.layers - layers.sum(axis=1)
    # The first stages hold the most micro-batches: a recomputed layer frees most there.
    room = np.maximum(cap - layers, 0)
    before = np.cumsum(room, axis=1) - room
    layers = layers + np.clip(short[:, None] - before, 0, room)
    whole = layers.astype(np.int64)
    return whole, recomputed_of(stages, whole)


def recomputes(costs: Scaled) -> Bools:
    """Return which rows must recompute a layer somewhere, to be what they say."""
    return (costs.rows.recompute != NONE) & (costs.recompute > 0)


def recomputed_of(stages: Stages, layers: Ints) -> Ints:
    """Return the fewest recomputed layers for a split: one if none is forced."""
    forced = _least_recomputed(stages, layers)
    seconds = layers * stages.costs.layer[:, None] + stages.extra
    fastest = np.arange(stages.count) == seconds.argmin(axis=1)[:, None]
    is_idle = recomputes(stages.costs) & (forced.sum(axis=1) == 0)
    return forced + (fastest & is_idle[:, None])


def _least_recomputed(stages: Stages, layers: Ints) -> Ints:
    """Return the fewest recomputed layers with which each stage fits; exact."""
    missing = np.maximum(layers * stages.per_layer - stages.room, 0)
    return -(-missing // np.maximum(stages.freed, 1)) * (stages.freed > 0)


def split_fits(stages: Stages, layers: Ints, recomputed: Ints) -> Bools:
    """Return which splits fit in memory, place every layer, and are splits at all."""
    needed = layers * stages.per_layer - recomputed * stages.freed
    is_split = (layers >= 1) & (recomputed >= 0) & (recomputed <= layers)
    holds = ((needed <= stages.room) & is_split).all(axis=1)
    is_named = recomputes(stages.costs) == (recomputed.sum(axis=1) > 0)
    return holds & is_named & (layers.sum(axis=1) == stages.layers)


def split_ticks(stages: Stages, layers: Ints, recomputed: Ints) -> Floats:
    """Return the exact step time of splits, ticks."""
    costs = stages.costs
    seconds = layers * costs.layer[:, None] + recomputed * costs.recompute[:, None]
    seconds = seconds + stages.extra
    sync = (layers * costs.sync_layer[:, None] + stages.sync).max(axis=1)
    waits = (costs.rows.microbatches - 1).astype(np.float64)
    return seconds.sum(axis=1) + waits * seconds.max(axis=1) + sync


def _least_sync(costs: Scaled, layers: int) -> Floats:
    """Return ticks that the end of the step takes at least."""
    largest = -(-layers // costs.rows.pp) * costs.sync_layer
    ends = np.maximum(costs.sync_first, costs.sync_last) + costs.sync_layer
    alone = costs.sync_first + costs.sync_last + layers * costs.sync_layer
    shared = np.maximum(largest, ends)
    return np.where(costs.rows.pp == 1, alone, shared).astype(np.float64)


def _fluid_seconds(stages: Stages, layers: Floats) -> Floats:
    costs = stages.costs
    forced = np.maximum(layers - stages.plain_cap, 0) * stages.recompute_slope
    own = layers * costs.layer[:, None] + forced * costs.recompute[:, None]
    return own + stages.extra


def _most_layers(stages: Stages, bottleneck: Floats) -> Floats:
    """Return the most layers, whole, that each stage runs within a bottleneck."""
    costs = stages.costs
    spare = bottleneck[:, None] - stages.extra
    layer, recompute = costs.layer[:, None], costs.recompute[:, None]
    plain = spare / layer
    slope = stages.recompute_slope * recompute
    bent = (spare + slope * stages.plain_cap) / (layer + slope)
    most = np.where(plain <= stages.plain_cap, plain, bent)
    return np.clip(np.floor(most + 1e-9), 0, stages.full_cap)


def _least_recompute(stages: Stages, bottleneck: Floats) -> Floats:
    """Return recomputed layers that any split within a bottleneck needs; fluid."""
    most = _most_layers(stages, bottleneck)
    plain = np.minimum(most, stages.plain_cap)
    short = np.maximum(stages.layers - plain.sum(axis=1), 0)
    room = most - plain
    before = np.cumsum(room, axis=1) - room
    bent = np.clip(short[:, None] - before, 0, room)
    return (bent * stages.recompute_slope).sum(axis=1)


def _level(caps: Floats, layers: int) -> Floats:
    """Return min(cap, level) for the lowest level that adds up to `layers`, if any."""
    low, high = np.zeros(len(caps)), caps.max(axis=1)
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        enough = np.minimum(caps, middle[:, None]).sum(axis=1) >= layers
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle)
    levelled = np.minimum(caps, high[:, None])
    excess = np.maximum(levelled.sum(axis=1) - layers, 0)
    at_level = (levelled == high[:, None]) & (levelled > 1)
    before = np.cumsum(at_level, axis=1) - at_level
    return levelled - (at_level & (before < excess[:, None]))
