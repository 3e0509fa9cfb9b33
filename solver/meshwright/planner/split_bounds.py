"""Bounds on the step time of a skeleton: below any split, and of one that exists."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.price import per_row
from meshwright.frameworks.base.framework import (
    ALL_LAYERS,
    PER_STAGE,
    fewest_in_scope,
)
from meshwright.frameworks.base.registry import recompute_scopes
from meshwright.planner.integer_costs import MOST_TICKS, Scaled
from meshwright.planner.stages import Stages, fluid_layers, most_layers, recomputes
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.schedules import IS_V
from meshwright.plans.skeletons import Skeletons, Split
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import NONE, Pins

MOST_STEPS = 40
"""Steps of a search for the least pace. Few are needed, and each gives a bound."""

LAYER_TOLERANCE = 1e-6
"""Fraction of a layer that may be missing when the fluid pace is found."""

FLOAT_ERROR = 1e-12
"""Relative error of a bound from float arithmetic, generously."""


def time_only_bound(costs: Scaled, model: Model) -> Floats:
    """Return a lower bound on the ticks of any split, memory left aside."""
    rows, layers, parts = costs.rows, model.n_layers, model.leading_parts
    sends = 2 * (rows.pp * rows.vpp - 1 - IS_V[rows.schedule])
    work = layers * costs.layer + costs.first + costs.last + sends * costs.send
    work = work + parts * costs.lead
    paces = layers * costs.pace_layer + costs.pace_first + costs.pace_last
    paces = paces + parts * costs.pace_lead
    largest = -(-layers // rows.pp)
    # The largest stage may hold leading layers, which may be cheaper.
    beside = _least_beside(costs, parts * costs.pace_lead, costs.pace_first)
    alone = largest * costs.pace_layer + beside
    slowest = np.maximum((paces + sends * costs.pace_send) / rows.pp, alone)
    return round_up_to_tick(work + slowest + _least_sync(costs, layers, parts))


def _least_beside(costs: Scaled, lead: Ints, first: Ints) -> Ints:
    """Return the least ticks of a stage beside its layers; 0 where all have more.

    `lead` is those of all leading parts: on the first stage, or on any interleaved one.
    """
    apart = np.minimum(lead, 0) + np.minimum(first, 0)
    together = np.minimum(lead + first, 0)
    return np.asarray(np.where(costs.rows.vpp > 1, apart, together))


def bubble_bound(
    costs: Scaled, model: Model, *, has_any_chunks: bool = False
) -> Floats:
    """Return a lower bound on the ticks of bubble of any split, memory left aside.

    The bubble is all that fills the pipeline but the share of the slowest stage, which
    leaves at least the fewest layers to every other. Schedules that defer gradients of
    weights, and fill it with those, have no such bound. `has_any_chunks` says that
    chunks of interleaved stages may be of any size.
    """
    pp, vpp, layers = costs.rows.pp, costs.rows.vpp, model.n_layers
    even, are_even = -(-layers // pp), (vpp > 1) & np.bool_(not has_any_chunks)
    fewest = np.where(are_even, even - np.minimum(vpp, even * pp - layers), 1)
    most = np.where(are_even, even, layers)
    others = np.maximum(layers - most, (pp - 1) * np.maximum(fewest, 0))
    ends = _least_beside(costs, model.leading_parts * costs.lead, costs.first)
    ends = ends + np.minimum(costs.last, 0)
    return np.asarray(
        others * costs.layer + ends - bubble_rounding(costs, layers), float
    )


def least_bubble(stages: Stages, best: Floats | float) -> Floats:
    """Return a lower bound on the ticks of bubble of the splits that may beat `best`.

    It is that of `bubble_bound`, where the slowest stage has no more layers than fit in
    memory and than it runs in the time that filling the pipeline leaves.
    """
    costs = stages.costs
    work = stages.layers * costs.layer + stages.extra.sum(axis=1)
    pace = np.minimum(best - work, MOST_TICKS)
    most = np.maximum(most_layers(stages, pace + 1.0), stages.least)
    fewest = stages.least.sum(axis=1)[:, None] - stages.least
    layers = np.maximum(stages.layers - most, fewest) * costs.layer[:, None]
    extra = stages.extra.sum(axis=1)[:, None] - stages.extra
    return np.asarray(
        (layers + extra).min(axis=1) - bubble_rounding(costs, stages.layers)
    )


def bubble_rounding(costs: Scaled, layers: int) -> Ints:
    """Return the ticks by which rounding may lengthen what fills the pipeline."""
    return np.asarray(layers + costs.rows.pp * (2 * costs.rows.vpp + 3))


def lower_bound(stages: Stages, best: Floats | float) -> Floats:
    """Return a lower bound on the ticks of any split; it may be loose above `best`.

    The bound is the work of all layers, plus the least pace, plus the least end of the
    step, plus what a split must add whose pace is good enough to beat `best`:
    recomputation, layers on slower GPUs, and a later end of the step.
    """
    costs = stages.costs
    pace = least_pace(stages)
    work = stages.layers * costs.layer + stages.extra.sum(axis=1)
    sync = _least_sync(costs, stages.layers, stages.parts)
    floor = work + pace + sync
    # One tick more, so that float errors exclude no plan that equals the best.
    loosest = pace + np.maximum(best - floor, 0.0) + 1.0
    most = most_layers(stages, loosest)
    forced = np.maximum(_least_recompute(stages, most), recomputes(costs))
    slower = _least_on_slower_gpus(stages, most)
    later = np.maximum(_least_sync_after_first(stages, most) - sync, 0)
    return round_up_to_tick(floor + slower + later + costs.recompute * forced)


def with_pinned_recompute(pins: Pins, stages: Stages) -> Stages:
    """Return stages whose pinned recomputation counts beside their layers.

    No splits but those with the pinned counts are of interest. Their recomputed layers
    take and free as much on any of them, so that what is left to split are the layers.
    Stages have no others where all are recomputed, which is then part of each layer,
    or where the scope has a greater count for all.
    """
    if len(pins.stage_recompute or ()) != stages.count:
        return stages
    again, costs = np.array([pins.stage_recompute], dtype=np.int64), stages.costs
    scope, repeats = costs.recompute_scope[:, None], costs.rows.recompute != NONE
    is_repeating = repeats[:, None]
    is_whole = is_repeating & (scope == ALL_LAYERS)
    chunks, more = costs.rows.vpp[:, None], np.full_like(again, stages.layers + 1)
    has_others = fewest_in_scope(scope, again, more, chunks) == again
    has_others |= ~is_repeating
    again = np.where(is_repeating, again, 0)
    part: Ints = np.where(is_whole, 0, again)
    cap = (stages.layer_capacity + part * stages.freed) / np.maximum(
        stages.per_layer, 1
    )
    cap = np.where(stages.per_layer > 0, cap, stages.plain_cap)
    most = np.where(has_others, stages.full_cap, np.minimum(stages.full_cap, again))
    return replace(
        stages,
        costs=replace(costs, recompute=0 * costs.recompute),
        extra=stages.extra + part * stages.recompute,
        pace_extra=stages.pace_extra + part * stages.pace_recompute,
        least=np.maximum(stages.least, again),
        plain_cap=cap,
        full_cap=np.where(is_whole, most, np.minimum(most, np.floor(cap))),
        recompute_slope=0 * stages.recompute_slope,
    )


def _least_sync_after_first(stages: Stages, most: Floats) -> Floats:
    """Return the least ticks of sync of the stages after the first.

    `most` is the most layers of each stage, (rows, stages). Leading layers without
    experts make the sync of the first stage short, so that it says nothing about the
    other stages. One of those has at least an even share of the layers that the first
    stage cannot take.
    """
    if stages.count == 1:
        return np.zeros(len(most))
    left = np.maximum(stages.layers - most[:, 0], 0)
    largest = np.ceil(left / (stages.count - 1))
    least = stages.sync_layer[:, 1:].min(axis=1)
    beside = np.minimum(stages.sync[:, 1:].min(axis=1), 0)
    return np.asarray(largest * least + beside)


def _least_on_slower_gpus(stages: Stages, most: Floats) -> Floats:
    """Return the least ticks that layers add on stages with slower GPUs.

    The fastest stages take as many layers as they can: `most`, (rows, stages).
    """
    more = stages.layer - stages.costs.layer[:, None]
    if not more.any():
        return np.zeros(len(more))
    order = np.argsort(more, axis=1, kind="stable")
    most = np.take_along_axis(most, order, axis=1)
    before = np.cumsum(most, axis=1) - most
    taken = np.clip(stages.layers - before, 0, most)
    return np.asarray((taken * np.take_along_axis(more, order, axis=1)).sum(axis=1))


def round_up_to_tick(bound: Floats) -> Floats:
    """Return a bound rounded up to a whole tick, less its float error.

    Step times are whole ticks, so that the next whole tick is a bound too. A bound that
    is above a tick only by a float error must not exclude that tick.
    """
    result: Floats = np.ceil(bound - (1e-3 + FLOAT_ERROR * bound))
    return result


def slowest_split_ticks(stages: Stages, largest: Ints | int) -> Floats:
    """Return an upper bound on the ticks of splits with `largest` layers a stage.

    It takes every layer as slow as on the slowest stage and recomputed, and the largest
    stage as the slowest.
    """
    fill = stages.layers * (stages.layer + stages.recompute).max(axis=1)
    pace = largest * (stages.pace_layer + stages.pace_recompute).max(axis=1)
    sync = largest * stages.sync_layer.max(axis=1) + stages.sync.max(axis=1)
    ends = stages.extra.sum(axis=1) + stages.pace_extra.max(axis=1)
    return np.asarray(fill + pace + sync + ends, dtype=np.float64)


def least_pace(stages: Stages) -> Floats:
    """Return the least ticks of pace at which the stages take all layers.

    The search starts at the fluid pace. Each step goes to the next pace at which enough
    stages take one or two whole layers more. The layers must fit in memory.
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
    """Return a lower bound on the pace at which `short` more layers run than `most`.

    It is exact while no stage takes a third layer more.
    """
    one, two, three = (_pace_of_whole(stages, most + more) for more in (1, 2, 3))
    paces = np.sort(np.concatenate([one, two], axis=1), axis=1)
    last = np.clip(short - 1, 0, paces.shape[1] - 1).astype(np.int64)
    enough = np.take_along_axis(paces, last[:, None], axis=1)[:, 0]
    return np.asarray(np.minimum(enough, three.min(axis=1)))


def _least_fluid_pace(stages: Stages) -> Floats:
    """Return the fluid pace: stages take all layers, in fractions, within it.

    Newton's method finds it from below. The number of layers is concave in the pace, so
    that no step goes too far.
    """
    pace: Floats = _fluid_pace(stages, stages.least).max(axis=1)
    for _ in range(MOST_STEPS):
        most, slope = fluid_layers(stages, pace)
        short, gain = stages.layers - most.sum(axis=1), slope.sum(axis=1)
        is_short = (short > LAYER_TOLERANCE) & (gain > 0)
        if not is_short.any():
            break
        pace = pace + np.where(is_short, short / np.where(gain > 0, gain, 1.0), 0.0)
    return pace


def _pace_of_whole(stages: Stages, layers: Floats) -> Floats:
    """Return the pace of stages with these layers; infinite where they do not fit."""
    return np.where(layers <= stages.full_cap, _fluid_pace(stages, layers), np.inf)


def _least_sync(costs: Scaled, layers: int, parts: Ints | int) -> Floats:
    """Return the least ticks of the end of the step; `parts` of the model lead."""
    first, last, lead = costs.sync_first, costs.sync_last, parts * costs.sync_lead
    largest = -(-layers // costs.rows.pp) * costs.sync_layer
    largest = largest + _least_beside(costs, lead, first)
    is_v, is_apart = IS_V[costs.rows.schedule], costs.rows.vpp > 1
    on_last = last + np.where(is_apart, np.minimum(lead, 0), 0)
    on_first = first + np.where(is_apart, np.minimum(lead, 0), lead)
    ends = np.where(is_v, on_first + last, np.maximum(on_first, on_last))
    ends = ends + costs.sync_layer
    alone = first + last + lead + layers * costs.sync_layer
    shared = np.maximum(largest, ends)
    return np.where(costs.rows.pp == 1, alone, shared).astype(np.float64)


def _fluid_pace(stages: Stages, layers: Floats | Ints) -> Floats:
    """Return the pace of stages with these layers, recomputed ones in fractions."""
    forced = np.maximum(layers - stages.plain_cap, 0) * stages.recompute_slope
    ticks = layers * stages.pace_layer + forced * stages.pace_recompute
    return ticks + stages.pace_extra


def _least_recompute(stages: Stages, most: Floats) -> Floats:
    """Return the least recomputed layers, in fractions, of splits of up to `most`."""
    plain = np.minimum(most, stages.plain_cap)
    short = np.maximum(stages.layers - plain.sum(axis=1), 0)
    further = most - plain
    before = np.cumsum(further, axis=1) - further
    beyond_plain = np.clip(short[:, None] - before, 0, further)
    result: Floats = (beyond_plain * stages.recompute_slope).sum(axis=1)
    return result


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
    layers, recomputed = construct_split(with_pinned_recompute(pins, stages))
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
    excess = levelled.sum(axis=1) - layers
    at_level = (levelled == high[:, None]) & (levelled > floors)
    before = np.cumsum(at_level, axis=1) - at_level
    result: Floats = levelled - (at_level & (before < excess[:, None]))
    return result
