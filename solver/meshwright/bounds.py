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
    sends = 2 * (rows.pp * rows.vpp - 1)
    work = layers * costs.layer + costs.first + costs.last + sends * costs.send
    paces = layers * costs.pace_layer + costs.pace_first + costs.pace_last
    largest = -(-layers // rows.pp)
    # A first stage whose leading layers are cheap may be the largest one.
    alone = largest * costs.pace_layer + np.minimum(costs.pace_first, 0)
    slowest = np.maximum((paces + sends * costs.pace_send) / rows.pp, alone)
    return _next_tick(work + slowest + _least_sync(costs, layers))


def lower_bound(stages: Stages, best: float) -> Floats:
    """Return ticks below which no split gets; rows above `best` may be left loose.

    work + the least pace + the least recompute that any split with a pace good enough
    to beat `best` needs + the least end of step.
    """
    costs = stages.costs
    pace = least_pace(stages)
    work = stages.layers * costs.layer + stages.extra.sum(axis=1)
    floor = work + pace + _least_sync(costs, stages.layers)
    # A tick looser, lest float noise cut off a plan that equals the best.
    loosest = pace + np.maximum(best - floor, 0.0) + 1.0
    forced = np.maximum(_least_recompute(stages, loosest), recomputes(costs))
    slower = _least_slower(stages, loosest)
    return _next_tick(floor + slower + costs.recompute * forced)


def _least_slower(stages: Stages, pace: Floats) -> Floats:
    """Return the ticks that layers on slower GPUs add at least, within a pace.

    The fastest stages take all the layers that they can.
    """
    more = stages.layer - stages.costs.layer[:, None]
    if not more.any():
        return np.zeros(len(more))
    order = np.argsort(more, axis=1, kind="stable")
    most = np.take_along_axis(most_layers(stages, pace), order, axis=1)
    before = np.cumsum(most, axis=1) - most
    taken = np.clip(stages.layers - before, 0, most)
    return np.asarray((taken * np.take_along_axis(more, order, axis=1)).sum(axis=1))


def _next_tick(bound: Floats) -> Floats:
    """Return the whole tick that a bound implies, float errors taken off first.

    Step times are whole ticks; a bound that is a hair above one must not exclude it.
    """
    result: Floats = np.ceil(bound - (1e-3 + FLOAT_ERROR * bound))
    return result


def least_pace(stages: Stages) -> Floats:
    """Return ticks of pace that the slowest stage has at least, by bisection."""
    low = (stages.pace_extra + stages.least * stages.pace_layer).max(axis=1)
    high = _fluid_pace(stages, stages.full_cap).max(axis=1)
    high = np.maximum(high, low)
    for _ in range(BISECTIONS):
        if (high - low).max(initial=0.0) < 1:
            break
        middle = (low + high) / 2
        most = most_layers(stages, middle)
        enough = (most.sum(axis=1) >= stages.layers) & (most >= stages.least).all(
            axis=1
        )
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle)
    result: Floats = low
    return result


def _least_sync(costs: Scaled, layers: int) -> Floats:
    """Return ticks that the end of the step takes at least."""
    largest = -(-layers // costs.rows.pp) * costs.sync_layer
    largest = largest + np.minimum(costs.sync_first, 0)
    ends = np.maximum(costs.sync_first, costs.sync_last) + costs.sync_layer
    alone = costs.sync_first + costs.sync_last + layers * costs.sync_layer
    shared = np.maximum(largest, ends)
    return np.where(costs.rows.pp == 1, alone, shared).astype(np.float64)


def _fluid_pace(stages: Stages, layers: Floats) -> Floats:
    forced = np.maximum(layers - stages.plain_cap, 0) * stages.recompute_slope
    own = layers * stages.pace_layer + forced * stages.pace_recompute
    return own + stages.pace_extra


def _least_recompute(stages: Stages, pace: Floats) -> Floats:
    """Return recomputed layers that any split within a pace needs; fluid."""
    most = most_layers(stages, pace)
    plain = np.minimum(most, stages.plain_cap)
    short = np.maximum(stages.layers - plain.sum(axis=1), 0)
    room = most - plain
    before = np.cumsum(room, axis=1) - room
    bent = np.clip(short[:, None] - before, 0, room)
    result: Floats = (bent * stages.recompute_slope).sum(axis=1)
    return result
