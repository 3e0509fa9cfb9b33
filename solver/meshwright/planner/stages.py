"""Stages of skeletons, and how many layers time and memory let each stage hold.

All amounts are in ticks and chunks (see `integer_costs`). On stage e, n layers need

    r(n) = ceil((n (state + f activations) + fixed - capacity) / (f freed))

recomputed layers or more, where f micro-batches are in flight; more are never faster.
The fluid relaxation counts r in fractions, without the ceiling. It makes the time of n
layers convex with one kink, so that the most layers within a pace have a closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from meshwright.cost.schedule import heads_in_flight, most_in_flight
from meshwright.frameworks.base.registry import (
    most_leading_parts,
    partition_of,
    pinned_chunks,
)
from meshwright.planner.integer_costs import Scaled
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.schedules import IS_V
from meshwright.plans.skeletons import Skeletons, dealt
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import NONE
from meshwright.spec.spec import Spec

GROUPS_OF_STAGES = 3
"""Groups of stages between the ends by which most skeletons are found not to fit."""

ENDLESS_CHUNKS = 2**50
"""Chunks of a host that is never full."""


@dataclass(frozen=True)
class Stages:
    """Costs of skeletons with the same number of stages, (rows, stages)."""

    costs: Scaled
    layers: int
    """Layers of the model."""
    layer: Ints
    recompute: Ints
    pace_layer: Ints
    pace_recompute: Ints
    sync_layer: Ints
    """Ticks of a layer on each stage, as are the four columns above: see `Scaled`."""
    extra: Ints
    pace_extra: Ints
    sync: Ints
    """Ticks of a stage beside its layers, as are the two columns above."""
    parts: int
    """Leading parts of the model."""
    least: Ints
    """Fewest layers of each stage."""
    capacity: Ints
    """Chunks of the GPU of each stage."""
    fixed: Ints
    """Chunks of a stage beside its layers."""
    layer_capacity: Ints
    """Chunks that a stage has for its layers."""
    per_layer: Ints
    freed: Ints
    """Chunks that recomputing a layer frees; 0 where recomputation is off."""
    plain_cap: Floats
    """Most layers that fit with no layer recomputed; fractional."""
    full_cap: Floats
    """Most layers that fit with all recomputed, on the GPU and its host; whole."""
    recompute_slope: Floats
    """Recomputed layers that each layer above plain_cap forces; fractional."""

    @property
    def count(self) -> int:
        """Return the number of stages."""
        result: int = self.extra.shape[1]
        return result


def stages_of(
    costs: Scaled,
    model: Model,
    capacity: int | Ints,
    host_capacity: int = ENDLESS_CHUNKS,
    partition: Ints | None = None,
    pinned: Sequence[int] | None = None,
) -> Stages:
    """Return the stages of skeletons that all have the same pp.

    `capacity` is in chunks, one number or (rows, 1); `host_capacity` is in chunks per
    GPU; `partition` is the layers of each stage where the framework decides them;
    `pinned` is those that the user pins where chunks may then be of any size.
    """
    count, layers = int(costs.rows.pp[0]), model.n_layers
    leading = _leading(model, costs.rows, pinned)
    held = costs.holding(costs.in_flight(count), *costs.ends(count), leading)
    fixed, per_layer, freed = held
    layer_capacity, kept = np.maximum(capacity - fixed, 0), per_layer - freed
    # Of layers that hold nothing all fit, where what is beside them does.
    whole = np.where(capacity >= fixed, layers, 0)
    shape = (len(costs), count)
    # Chunks of interleaved stages have as many layers, or one less.
    even = -(-layers // count)
    chunks = costs.rows.vpp if pinned is None else np.ones_like(costs.rows.vpp)
    most = np.where(chunks > 1, even, layers)[:, None]
    fewest = even - np.minimum(chunks, even * count - layers)
    least = np.where(chunks > 1, fewest, 1)[:, None].repeat(count, axis=1)
    least[:, 0] = np.maximum(least[:, 0], model.leading_layers * (costs.rows.vpp == 1))
    # The first chunk, which leading layers fill, is the longest.
    few = least[:, : leading.shape[1]]
    np.maximum(few, chunks[:, None] * (leading - 1) + 1, out=few)
    if partition is not None:
        most, least = np.minimum(most, partition), np.maximum(least, partition)
    most = np.minimum(most, costs.host_cap(count, leading, host_capacity, layers))
    return Stages(
        costs=costs,
        layers=layers,
        layer=np.broadcast_to(costs.layer[:, None], shape),
        recompute=np.broadcast_to(costs.recompute[:, None], shape),
        pace_layer=np.broadcast_to(costs.pace_layer[:, None], shape),
        pace_recompute=np.broadcast_to(costs.pace_recompute[:, None], shape),
        sync_layer=np.broadcast_to(costs.sync_layer[:, None], shape),
        extra=costs.stage_extra(count, leading),
        pace_extra=costs.stage_pace_extra(count, leading),
        sync=costs.stage_sync(count, leading),
        parts=model.leading_parts,
        least=least,
        capacity=np.broadcast_to(capacity, shape),
        fixed=fixed,
        layer_capacity=layer_capacity,
        per_layer=per_layer,
        freed=freed,
        plain_cap=np.where(
            per_layer > 0, layer_capacity / np.maximum(per_layer, 1), whole
        ),
        full_cap=np.minimum(
            np.where(kept > 0, layer_capacity // np.maximum(kept, 1), whole), most
        ).astype(np.float64),
        recompute_slope=np.where(freed > 0, per_layer / np.maximum(freed, 1), 0.0),
    )


def _leading(model: Model, rows: Skeletons, pinned: Sequence[int] | None) -> Ints:
    """Return how many leading parts the first stages hold, of those that hold any."""
    most = most_leading_parts(model, rows, pinned)[:, None]
    first = np.arange(min(model.leading_parts, int(rows.pp.max(initial=1))))
    return dealt(np.array(model.leading_parts), most, first)


def on_gpu_kinds(kinds: Sequence[Stages], costs: Scaled, kind: Ints) -> Stages:
    """Return stages that each lie on one kind of GPU.

    `kinds` holds all stages on each kind, `kind` the kind of each stage, (stages,);
    `costs` are the least over all kinds.
    """
    columns: dict[str, Any] = {}
    for field in fields(Stages):
        by_kind = [getattr(stages, field.name) for stages in kinds]
        if isinstance(by_kind[0], np.ndarray) and by_kind[0].ndim == 2:
            columns[field.name] = np.stack(
                [by_kind[k][:, e] for e, k in enumerate(kind.tolist())], axis=1
            )
    return replace(kinds[0], costs=costs, **columns)


def quick_fits(
    costs: Scaled,
    model: Model,
    capacity: int | Ints,
    host_capacity: int = ENDLESS_CHUNKS,
) -> tuple[Bools, Bools]:
    """Return which skeletons surely fit in memory, and which surely do not.

    A skeleton fits if the fullest stage that there may be holds an even share of the
    layers, and so does its host. It does not fit if pp stages without the ends of the
    model, with as few micro-batches in flight as the last stage has, hold fewer layers
    than there are. The last stage has one micro-batch in flight or, with v > 1 chunks,
    ((v - 1) G + 1) / v with groups of G, which is at least (G + 1) / 2 whatever v is,
    and G at least pp or all micro-batches. Capacities are as in `stages_of`.
    """
    rows = costs.rows
    recomputes = rows.recompute != NONE
    kept = costs.activations - np.where(recomputes, costs.freed, 0)
    most = most_in_flight(rows.schedule, rows.microbatches, rows.vpp, rows.pp)
    parts, is_alone = model.leading_parts, rows.vpp == 1
    lead, first = parts * costs.lead_state, costs.first_state
    # Interleaved stages may each hold some of what leads, others have it on the first.
    apart = np.maximum(lead, 0) + np.maximum(first, 0)
    ends = np.where(is_alone, np.maximum(lead + first, 0), apart)
    ends = ends + costs.beside_lead + np.maximum(costs.last_state, 0)
    heads = heads_in_flight(rows.schedule, rows.microbatches)
    ends = ends + heads * costs.last_activations
    saved = parts * costs.lead_activations
    ends = ends + most * (np.maximum(saved, 0) + costs.outputs)
    ends = ends + most * rows.vpp * costs.part_segments
    share = np.maximum(-(-model.n_layers // rows.pp), model.leading_layers)
    fullest = share * (costs.state + most * kept) + ends + costs.fixed
    on_host = np.maximum(costs.host_first, 0) + np.maximum(costs.host_last, 0)
    on_host = on_host + np.maximum(parts * costs.host_lead, 0)
    on_host = on_host + share * costs.host_layer
    halves = np.where(rows.vpp > 1, np.minimum(rows.pp, rows.microbatches), 1) + 1
    least = np.maximum(costs.state + halves * kept // 2, 1)
    lead = np.where(is_alone, lead + first, lead + np.minimum(first, 0))
    lead = np.minimum(lead, lead + most * saved)
    spared = -np.minimum(lead, 0) - np.minimum(costs.last_state, 0)
    # What ends and leading parts spare is there once; each may complete a layer.
    layers = rows.pp * (np.maximum(capacity - costs.fixed, 0) // least)
    layers = layers + spared // least + (spared > 0) * (parts + 2)
    can = (fullest <= capacity) & (on_host <= host_capacity)
    return can, layers < model.n_layers


def may_fit(costs: Scaled, model: Model, capacity: int | Ints) -> Bools:
    """Return which skeletons may fit in memory, by a few stages in place of all.

    The stages between the ends are taken in groups: each is as roomy as the last of its
    group, which has the fewest micro-batches in flight. Those of a V are left open.
    """
    rows, layers = costs.rows, model.n_layers
    groups = np.arange(GROUPS_OF_STAGES + 1)
    starts = 1 + np.maximum(rows.pp - 2, 0)[:, None] * groups // GROUPS_OF_STAGES
    one = np.ones((len(rows), 1), dtype=np.int64)
    count = np.concatenate([one, np.diff(starts), one], axis=1)
    end = np.concatenate([one, starts[:, 1:], rows.pp[:, None]], axis=1)
    in_flight = costs.in_flight_before(np.maximum(rows.pp[:, None] - end, 0))
    is_end = np.arange(count.shape[1])[None]
    has_ends = is_end == 0, is_end == count.shape[1] - 1
    # The first of a group has most leading parts, and the last fewest.
    parts, most_parts = model.leading_parts, most_leading_parts(model, rows, None)
    width = len(is_end[0]) if parts else 0
    leading = [
        dealt(np.array(parts), most_parts[:, None], stage[:, :width])
        for stage in (end - count, end - 1)
    ]
    held = costs.holding(in_flight, *has_ends, leading[0])
    if parts:
        other = costs.holding(in_flight, *has_ends, leading[1])
        held = held._replace(fixed=np.minimum(held.fixed, other.fixed))
    kept = held.per_layer - held.freed
    room = np.maximum(capacity - held.fixed, 0)
    whole = np.where(capacity >= held.fixed, layers, 0)
    most = np.where(kept > 0, room // np.maximum(kept, 1), whole)
    most = np.minimum(
        most, np.where(rows.vpp > 1, -(-layers // rows.pp), layers)[:, None]
    )
    has_all = ((most > 0) | (count == 0)).all(axis=1)
    may = has_all & ((count * most).sum(axis=1) >= layers)
    return np.asarray(may | IS_V[rows.schedule] | (rows.pp == 1))


def interleaved_fits(
    costs: Scaled, model: Model, capacity: int, host_capacity: int = ENDLESS_CHUNKS
) -> Bools:
    """Return which interleaved skeletons fit in memory, all layers recomputed.

    All stages must have equally many layers, the first all that lead. A later stage in
    the middle holds less than an earlier one, since fewer micro-batches are in flight:
    if the second stage fits, so do all others in the middle. In a V it holds no less:
    there they hold no more than the last.
    """
    rows = costs.rows
    layers = model.n_layers // rows.pp
    first_second_last = np.stack([rows.pp - 1, rows.pp - 2, 0 * rows.pp], axis=1)
    in_flight, has_ends = costs.in_flight_before(first_second_last), costs.ends(3)
    leading = _leading(model, rows, None)[:, :1]
    fixed, per_layer, freed = costs.holding(in_flight, *has_ends, leading)
    held = fixed + layers[:, None] * (per_layer - freed)
    held[:, 1] *= rows.pp > 2
    fullest = held.max(axis=1)
    host_first = costs.host_first + model.leading_parts * costs.host_lead
    host_ends = host_first, costs.host_last
    at_ends = np.where(IS_V[rows.schedule], sum(host_ends), np.maximum(*host_ends))
    on_host = layers * costs.host_layer + np.maximum(at_ends, 0)
    result: Bools = (fullest <= capacity) & (on_host <= host_capacity)
    return result


def fits(stages: Stages) -> Bools:
    """Return which skeletons fit in memory for at least one split of layers."""
    has_all = (stages.full_cap >= stages.least).all(axis=1)
    result: Bools = has_all & (stages.full_cap.sum(axis=1) >= stages.layers)
    return result


def has_all_leading(model: Model, rows: Skeletons) -> Bools:
    """Return where the first stage holds all that leads, if no layers are pinned."""
    most = most_leading_parts(model, rows, None)
    return np.asarray(most == model.leading_parts)


def has_even_split(spec: Spec, rows: Skeletons) -> Bools:
    """Return which skeletons have only one split of layers: into equal chunks."""
    is_even = (rows.vpp > 1) & (spec.model.n_layers % rows.pp == 0)
    return np.asarray((rows.pp == 1) | (is_even & (pinned_chunks(spec) is None)))


def has_one_split(spec: Spec, rows: Skeletons) -> Bools:
    """Return which skeletons have only one split of layers."""
    is_even = has_even_split(spec, rows)
    return is_even | (partition_of(spec) is not None)


def recomputes(costs: Scaled) -> Bools:
    """Return which skeletons must recompute at least one layer, by their mode."""
    result: Bools = (costs.rows.recompute != NONE) & (costs.recompute > 0)
    return result


def most_layers(stages: Stages, pace: Floats) -> Floats:
    """Return the most whole layers that each stage runs within a pace."""
    return np.floor(fluid_layers(stages, pace)[0] + 1e-9)


def fluid_layers(stages: Stages, pace: Floats) -> tuple[Floats, Floats]:
    """Return the most layers that each stage runs within a pace, in fractions.

    The second result is how many more layers each stage runs per tick of pace; it is 0
    where memory is full.
    """
    spare = pace[:, None] - stages.pace_extra
    # A single micro-batch waits for no other: the pace of a layer is 0 ticks.
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
