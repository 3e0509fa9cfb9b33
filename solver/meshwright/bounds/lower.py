"""What a skeleton costs at least: bounds that no split of its layers gets below."""

from __future__ import annotations

import numpy as np

from meshwright.bounds.integer_costs import Scaled
from meshwright.bounds.stages import Stages, fluid_layers, most_layers, recomputes
from meshwright.plans.columns import Floats, Ints

MOST_STEPS = 40
"""Steps of a search for the least pace. It takes a few; each ends on a bound."""

ENOUGH = 1e-6
"""Of a layer: nearer than this, layers in fractions are all there."""

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
    return next_tick(work + slowest + _least_sync(costs, layers))


def lower_bound(stages: Stages, best: float) -> Floats:
    """Return ticks below which no split gets; rows above `best` may be left loose.

    work + the least pace + the least recompute that any split with a pace good enough
    to beat `best` needs + the least end of step.
    """
    costs = stages.costs
    pace = least_pace(stages)
    work = stages.layers * costs.layer + stages.extra.sum(axis=1)
    sync = _least_sync(costs, stages.layers)
    floor = work + pace + sync
    # A tick looser, lest float noise cut off a plan that equals the best.
    loosest = pace + np.maximum(best - floor, 0.0) + 1.0
    most = most_layers(stages, loosest)
    forced = np.maximum(_least_recompute(stages, most), recomputes(costs))
    slower = _least_slower(stages, most)
    later = np.maximum(_least_sync_behind(stages, most) - sync, 0)
    return next_tick(floor + slower + later + costs.recompute * forced)


def _least_sync_behind(stages: Stages, most: Floats) -> Floats:
    """Return ticks of sync that the stages after the first have at least.

    `most` says how many layers each stage may have, (rows, stages). Leading layers
    without experts make the first stage's sync short, so it is no measure of the
    others': of the layers that it cannot take, one of those has an even share or more.
    """
    if stages.count == 1:
        return np.zeros(len(most))
    left = np.maximum(stages.layers - most[:, 0], 0)
    largest = np.ceil(left / (stages.count - 1))
    least = stages.sync_layer[:, 1:].min(axis=1)
    return np.asarray(largest * least + np.minimum(stages.sync[:, -1], 0))


def _least_slower(stages: Stages, most: Floats) -> Floats:
    """Return the ticks that layers on slower GPUs add at least.

    The fastest stages take all the layers that they can: `most`, (rows, stages).
    """
    more = stages.layer - stages.costs.layer[:, None]
    if not more.any():
        return np.zeros(len(more))
    order = np.argsort(more, axis=1, kind="stable")
    most = np.take_along_axis(most, order, axis=1)
    before = np.cumsum(most, axis=1) - most
    taken = np.clip(stages.layers - before, 0, most)
    return np.asarray((taken * np.take_along_axis(more, order, axis=1)).sum(axis=1))


def next_tick(bound: Floats) -> Floats:
    """Return the whole tick that a bound implies, float errors taken off first.

    Step times are whole ticks; a bound that is a hair above one must not exclude it.
    """
    result: Floats = np.ceil(bound - (1e-3 + FLOAT_ERROR * bound))
    return result


def most_ticks(stages: Stages, largest: Ints | int) -> Floats:
    """Return ticks that no split passes whose stages have `largest` layers at most.

    All layers lie on the slowest stage and are recomputed, and the slowest is the
    largest.
    """
    fill = stages.layers * (stages.layer + stages.recompute).max(axis=1)
    pace = largest * (stages.pace_layer + stages.pace_recompute).max(axis=1)
    sync = largest * stages.sync_layer.max(axis=1) + stages.sync.max(axis=1)
    ends = stages.extra.sum(axis=1) + stages.pace_extra.max(axis=1)
    return np.asarray(fill + pace + sync + ends, dtype=np.float64)


def least_pace(stages: Stages) -> Floats:
    """Return ticks of pace that the slowest stage has at least.

    From the pace that layers in fractions need, each step goes to the next one at which
    enough stages take one or two whole layers more. Layers must have room.
    """
    pace = _least_fluid_pace(stages)
    for _ in range(MOST_STEPS):
        most = most_layers(stages, pace)
        short = stages.layers - most.sum(axis=1)
        is_short = (short > 0) & (most < stages.full_cap).any(axis=1)
        if not is_short.any():
            break
        pace = np.where(is_short, _next_pace(stages, most, short), pace)
    return pace


def _next_pace(stages: Stages, most: Floats, short: Floats) -> Floats:
    """Return the pace at which `short` layers more are run than `most`, or a lower one.

    That is told by the first two more of each stage, up to where one has a third.
    """
    one, two, three = (_pace_of_whole(stages, most + more) for more in (1, 2, 3))
    known = np.sort(np.concatenate([one, two], axis=1), axis=1)
    at = np.clip(short - 1, 0, known.shape[1] - 1).astype(np.int64)
    enough = np.take_along_axis(known, at[:, None], axis=1)[:, 0]
    return np.asarray(np.minimum(enough, three.min(axis=1)))


def _least_fluid_pace(stages: Stages) -> Floats:
    """Return the pace at which stages take all layers, in fractions.

    By Newton's method from below: how many they take is concave, so that no step goes
    too far.
    """
    pace: Floats = _fluid_pace(stages, stages.least).max(axis=1)
    for _ in range(MOST_STEPS):
        most, slope = fluid_layers(stages, pace)
        short, gain = stages.layers - most.sum(axis=1), slope.sum(axis=1)
        is_short = (short > ENOUGH) & (gain > 0)
        if not is_short.any():
            break
        pace = pace + np.where(is_short, short / np.where(gain > 0, gain, 1.0), 0.0)
    return pace


def _pace_of_whole(stages: Stages, layers: Floats) -> Floats:
    """Return the pace of stages with so many layers; infinite where too many."""
    return np.where(layers <= stages.full_cap, _fluid_pace(stages, layers), np.inf)


def _least_sync(costs: Scaled, layers: int) -> Floats:
    """Return ticks that the end of the step takes at least."""
    largest = -(-layers // costs.rows.pp) * costs.sync_layer
    largest = largest + np.minimum(costs.sync_first, 0)
    ends = np.maximum(costs.sync_first, costs.sync_last) + costs.sync_layer
    alone = costs.sync_first + costs.sync_last + layers * costs.sync_layer
    shared = np.maximum(largest, ends)
    return np.where(costs.rows.pp == 1, alone, shared).astype(np.float64)


def _fluid_pace(stages: Stages, layers: Floats | Ints) -> Floats:
    forced = np.maximum(layers - stages.plain_cap, 0) * stages.recompute_slope
    own = layers * stages.pace_layer + forced * stages.pace_recompute
    return own + stages.pace_extra


def _least_recompute(stages: Stages, most: Floats) -> Floats:
    """Return recomputed layers that any split needs whose stages take `most`; fluid."""
    plain = np.minimum(most, stages.plain_cap)
    short = np.maximum(stages.layers - plain.sum(axis=1), 0)
    room = most - plain
    before = np.cumsum(room, axis=1) - room
    bent = np.clip(short[:, None] - before, 0, room)
    result: Floats = (bent * stages.recompute_slope).sum(axis=1)
    return result
