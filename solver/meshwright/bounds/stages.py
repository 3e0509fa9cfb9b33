"""Skeletons with one number of stages, and what time and memory let a stage hold.

All in ticks and chunks (see `scaling`). On stage e, n layers need at least

    r(n) = ceil((n (state + f activations) + fixed - capacity) / (f freed))

recomputed layers, where f micro-batches are in flight; more are never faster. The
fluid r (without the ceiling) makes the time of n layers convex with one kink, so that
the most layers within a bottleneck have a closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from meshwright.bounds.integer_costs import Scaled
from meshwright.cost.schedule import heads_in_flight, most_in_flight
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.skeletons import NONE, Skeletons
from meshwright.spec.model import Model

MOST = 2**50
"""Chunks of a host without end."""


@dataclass(frozen=True)
class Stages:
    """Skeletons with the same number of stages, ready for bounds, (rows, stages)."""

    costs: Scaled
    layers: int
    """Layers of the model."""
    layer: Ints
    recompute: Ints
    pace_layer: Ints
    pace_recompute: Ints
    sync_layer: Ints
    """Ticks of a layer on each stage, from `layer` on: see `Scaled`."""
    extra: Ints
    pace_extra: Ints
    sync: Ints
    least: Ints
    """Fewest layers of each stage, (stages,)."""
    room: Ints
    """Chunks that a stage has for its layers."""
    per_layer: Ints
    freed: Ints
    """Chunks that a recomputed layer gives back; 0 where recomputation is off."""
    plain_cap: Floats
    """Most layers that fit with none recomputed; fractional."""
    full_cap: Floats
    """Most layers that fit with all recomputed, and on the host; whole."""
    recompute_slope: Floats
    """Recomputed layers that each layer above plain_cap forces; fractional."""

    @property
    def count(self) -> int:
        """Return the number of stages."""
        result: int = self.extra.shape[1]
        return result


def stages_of(
    costs: Scaled, model: Model, capacity: int | Ints, host_capacity: int = MOST
) -> Stages:
    """Return what the memory of every stage allows; all rows have one pp.

    `capacity` is in chunks, for all rows or (rows, 1); `host_capacity` in chunks per
    GPU.
    """
    count, layers = int(costs.rows.pp[0]), model.n_layers
    index = np.arange(count)
    in_flight = costs.in_flight(count)
    fixed, per_layer, freed = costs.holding(in_flight, index == 0, index == count - 1)
    room = np.maximum(capacity - fixed, 0)
    # Chunks are equally many on every stage.
    most = np.where(costs.rows.vpp > 1, layers // count, layers)[:, None]
    most = np.minimum(most, costs.host_cap(count, host_capacity, layers))
    least = np.ones(count, dtype=np.int64)
    least[0] = max(model.first_dense_layers, 1)
    shape = (len(costs), count)
    return Stages(
        costs=costs,
        layers=layers,
        layer=np.broadcast_to(costs.layer[:, None], shape),
        recompute=np.broadcast_to(costs.recompute[:, None], shape),
        pace_layer=np.broadcast_to(costs.pace_layer[:, None], shape),
        pace_recompute=np.broadcast_to(costs.pace_recompute[:, None], shape),
        sync_layer=np.broadcast_to(costs.sync_layer[:, None], shape),
        extra=costs.stage_extra(count),
        pace_extra=costs.stage_pace_extra(count),
        sync=costs.stage_sync(count),
        least=least,
        room=room,
        per_layer=per_layer,
        freed=freed,
        plain_cap=room / per_layer,
        full_cap=np.minimum(room // (per_layer - freed), most).astype(np.float64),
        recompute_slope=np.where(freed > 0, per_layer / np.maximum(freed, 1), 0.0),
    )


def on_kinds(kinds: Sequence[Stages], costs: Scaled, kind: Ints) -> Stages:
    """Return stages of which each lies on its own kind of GPU.

    `kinds` has all of them on each kind, `kind` says which it is, (stages,); `costs`
    are the least ones over all kinds.
    """
    columns: dict[str, Any] = {}
    for field in fields(Stages):
        own = [getattr(stages, field.name) for stages in kinds]
        if isinstance(own[0], np.ndarray) and own[0].ndim == 2:
            columns[field.name] = np.stack(
                [own[k][:, e] for e, k in enumerate(kind.tolist())], axis=1
            )
    return replace(kinds[0], costs=costs, **columns)


def quick_fits(
    costs: Scaled, model: Model, capacity: int, host_capacity: int = MOST
) -> tuple[Bools, Bools]:
    """Return which rows can hold the model, as far as one stage tells, and which not.

    They can where the fullest stage there may be holds an even share of the layers,
    and its host too; they cannot where stages without ends, with as few micro-batches
    in flight as on the last one, hold too few: that is one or, of v > 1 chunks each,
    ((v - 1) p + 1) / v, at least (p + 1) / 2, of as many as there are. Which v it is
    makes no difference. Capacities as in `stages_of`.
    """
    rows = costs.rows
    recomputes = rows.recompute != NONE
    kept = costs.activations - np.where(recomputes, costs.freed, 0)
    most = most_in_flight(rows.schedule, rows.microbatches, rows.vpp, rows.pp)
    ends = np.maximum(costs.first_state, 0) + np.maximum(costs.last_state, 0)
    heads = heads_in_flight(rows.schedule, rows.microbatches)
    ends = ends + heads * costs.last_activations
    ends = ends + most * (np.maximum(costs.first_activations, 0) + costs.outputs)
    share = np.maximum(-(-model.n_layers // rows.pp), model.first_dense_layers)
    fullest = share * (costs.state + most * kept) + ends + costs.fixed
    on_host = np.maximum(costs.host_first, 0) + np.maximum(costs.host_last, 0)
    on_host = on_host + share * costs.host_layer
    halves = np.minimum(np.where(rows.vpp > 1, rows.pp + 1, 2), 2 * rows.microbatches)
    least = np.maximum(costs.state + halves * kept // 2, 1)
    lead = np.minimum(costs.first_state + most * costs.first_activations, 0)
    lead = np.minimum(lead, costs.first_state) + np.minimum(costs.last_state, 0)
    room = np.maximum(capacity - costs.fixed - np.minimum(lead, 0), 0)
    can = (fullest <= capacity) & (on_host <= host_capacity)
    return can, rows.pp * (room // least) < model.n_layers


def even_fits(
    costs: Scaled, model: Model, capacity: int, host_capacity: int = MOST
) -> Bools:
    """Return which interleaved rows can hold the model, recomputing what they must.

    Their stages all have as many layers. Those in the middle hold the less the later
    they come, for less is in flight: where the second one fits, so do the others.
    """
    rows = costs.rows
    layers = model.n_layers // rows.pp
    first_second_last = np.stack([rows.pp - 1, rows.pp - 2, 0 * rows.pp], axis=1)
    in_flight, index = costs.in_flight_before(first_second_last), np.arange(3)
    fixed, per_layer, freed = costs.holding(in_flight, index == 0, index == 2)
    held = fixed + layers[:, None] * (per_layer - freed)
    held[:, 1] *= rows.pp > 2
    fullest = held.max(axis=1)
    at_ends = np.maximum(np.maximum(costs.host_first, costs.host_last), 0)
    on_host = layers * costs.host_layer + at_ends
    result: Bools = (fullest <= capacity) & (on_host <= host_capacity)
    return result & (layers >= max(model.first_dense_layers, 1))


def fits(stages: Stages) -> Bools:
    """Return which rows can hold the model at all, recomputing what they must."""
    has_all = (stages.full_cap >= stages.least).all(axis=1)
    result: Bools = has_all & (stages.full_cap.sum(axis=1) >= stages.layers)
    return result


def has_one_split(rows: Skeletons) -> Bools:
    """Return which rows have their layers split in one way: over equal chunks."""
    return np.asarray((rows.pp == 1) | (rows.vpp > 1))


def recomputes(costs: Scaled) -> Bools:
    """Return which rows must recompute a layer somewhere, to be what they say."""
    result: Bools = (costs.rows.recompute != NONE) & (costs.recompute > 0)
    return result


def most_layers(stages: Stages, pace: Floats) -> Floats:
    """Return the most layers, whole, that each stage runs within a pace."""
    return np.floor(fluid_layers(stages, pace)[0] + 1e-9)


def fluid_layers(stages: Stages, pace: Floats) -> tuple[Floats, Floats]:
    """Return the most layers that each stage runs within a pace, in fractions.

    With them, how many more it runs per tick of pace; 0 where it has no room.
    """
    spare = pace[:, None] - stages.pace_extra
    # One micro-batch waits for no other: its pace is 0, and no bottleneck.
    layer = np.maximum(stages.pace_layer, 1e-9)
    slope = stages.recompute_slope * stages.pace_recompute
    plain = spare / layer
    bent = (spare + slope * stages.plain_cap) / (layer + slope)
    is_plain = plain < stages.plain_cap
    most = np.where(is_plain, plain, bent)
    most = np.where(stages.pace_layer == 0, stages.full_cap, most)
    gain = np.where(is_plain, 1 / layer, 1 / (layer + slope))
    most = np.clip(most, 0, stages.full_cap)
    return most, np.where(most < stages.full_cap, gain, 0.0)
