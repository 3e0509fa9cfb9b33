"""What a skeleton costs at least: bounds that no split of its layers gets below."""

from __future__ import annotations

import numpy as np

from meshwright.cost.arrays import Floats
from meshwright.scaling import Scaled
from meshwright.stages import Stages, most_layers, recomputes

BISECTIONS = 40

FLOAT_ERROR = 1e-12
"""Share of a bound that float arithmetic may be off by; generous."""


def cheap_bound(costs: Scaled, layers: int) -> Floats:
    """Return ticks below which no split of a skeleton gets, memory left aside."""
    rows = costs.rows
    extra = costs.first + costs.last + 2 * (rows.pp - 1) * costs.send
    work = layers * costs.layer + extra
    largest = -(-layers // rows.pp)
    slowest = np.maximum(work / rows.pp, largest * costs.layer)
    waits = (rows.microbatches - 1) * slowest
    return _next_tick(work + waits + _least_sync(costs, layers))


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
    slack = np.where(m > 1, (best - floor) / np.maximum(m - 1, 1), np.inf)
    # A tick looser, lest float noise cut off a plan that equals the best.
    loosest = bottleneck + np.maximum(slack, 0.0) + 1.0
    forced = np.maximum(_least_recompute(stages, loosest), recomputes(costs))
    return _next_tick(floor + costs.recompute * forced)


def _next_tick(bound: Floats) -> Floats:
    """Return the whole tick that a bound implies, float errors taken off first.

    Step times are whole ticks; a bound that is a hair above one must not exclude it.
    """
    result: Floats = np.ceil(bound - (1e-3 + FLOAT_ERROR * bound))
    return result


def least_bottleneck(stages: Stages) -> Floats:
    """Return ticks that the slowest stage takes at least, (rows,), by bisection."""
    costs = stages.costs
    low = (stages.extra + costs.layer[:, None]).max(axis=1)
    high = _fluid_ticks(stages, stages.full_cap).max(axis=1)
    high = np.maximum(high, low)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        enough = most_layers(stages, middle).sum(axis=1) >= stages.layers
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle)
    result: Floats = low
    return result


def _least_sync(costs: Scaled, layers: int) -> Floats:
    """Return ticks that the end of the step takes at least."""
    largest = -(-layers // costs.rows.pp) * costs.sync_layer
    ends = np.maximum(costs.sync_first, costs.sync_last) + costs.sync_layer
    alone = costs.sync_first + costs.sync_last + layers * costs.sync_layer
    shared = np.maximum(largest, ends)
    return np.where(costs.rows.pp == 1, alone, shared).astype(np.float64)


def _fluid_ticks(stages: Stages, layers: Floats) -> Floats:
    costs = stages.costs
    forced = np.maximum(layers - stages.plain_cap, 0) * stages.recompute_slope
    own = layers * costs.layer[:, None] + forced * costs.recompute[:, None]
    return own + stages.extra


def _least_recompute(stages: Stages, bottleneck: Floats) -> Floats:
    """Return recomputed layers that any split within a bottleneck needs; fluid."""
    most = most_layers(stages, bottleneck)
    plain = np.minimum(most, stages.plain_cap)
    short = np.maximum(stages.layers - plain.sum(axis=1), 0)
    room = most - plain
    before = np.cumsum(room, axis=1) - room
    bent = np.clip(short[:, None] - before, 0, room)
    result: Floats = (bent * stages.recompute_slope).sum(axis=1)
    return result
