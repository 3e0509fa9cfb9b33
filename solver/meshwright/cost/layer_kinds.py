"""Costs of models with several kinds of layers, from those of models of one kind.

A stage holds leading layers, if it is the first, and then the pattern of kinds a whole
number of times. The cost of a layer is therefore the mean over the pattern, which adds
up exactly, and all that lead are one part, the difference to as many mean layers.
Layers that are recomputed count as spread evenly over the pattern. What one layer at a
time needs, as its workspace, is that of the kind that needs most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from meshwright.cost.blocks import (
    EMBEDDING,
    HEAD,
    LAYER,
    MTP_LAYER,
    Block,
    blocks,
    layer,
)
from meshwright.cost.held_state import HeldState, held_state
from meshwright.cost.job import Job
from meshwright.cost.memory import MemoryCosts, memory_costs
from meshwright.cost.timing import BlockTimes, TimeCosts, block_times, time_costs
from meshwright.frameworks.base.registry import leading_columns
from meshwright.plans.columns import Floats, Parts, added, scaled
from meshwright.plans.skeletons import Skeletons


@dataclass(frozen=True)
class JobOfKind:
    """The job of a model that has layers of one kind alone."""

    name: str
    job: Job
    share: float
    """The share of the kind in the pattern."""
    per_pattern: int
    leading: int
    """Layers of the kind before the pattern."""


def jobs_of_kinds(job: Job) -> list[JobOfKind]:
    """Return a job for each kind of layer; the job itself where there is one kind."""
    model = job.spec.model
    order = model.order
    counts, leading = Counter(order.repeated), Counter(order.leading)
    return [
        JobOfKind(
            LAYER if len(order.names) == 1 else name,
            _of_kind(job, name),
            counts[name] / order.period,
            counts[name],
            leading[name],
        )
        for name in order.names
    ]


def _of_kind(job: Job, name: str) -> Job:
    if not job.spec.model.pattern:
        return job
    model = job.spec.model.of_kind(name)
    return replace(job, spec=job.spec.model_copy(update={"model": model}))


def layer_name(kind: JobOfKind) -> str:
    """Return the name of the block that a layer of a kind is."""
    return LAYER if kind.name == LAYER else f"{LAYER} ({kind.name})"


def blocks_of_kinds(job: Job, rows: Skeletons) -> dict[str, Block]:
    """Return the blocks of a model by name, a layer for each of its kinds."""
    kinds = jobs_of_kinds(job)
    if len(kinds) == 1:
        return blocks(kinds[0].job, rows)
    beside = blocks(kinds[_last(job, kinds)].job, rows)
    layers = {layer_name(kind): layer(kind.job, rows) for kind in kinds}
    return {**layers, **_beside_layers(beside)}


def _last(job: Job, kinds: Sequence[JobOfKind]) -> int:
    """Return which of several kinds the last layer has.

    So do those that predict further tokens. The ends are the same whatever the kind.
    """
    return [kind.name for kind in kinds].index(job.spec.model.order.repeated[-1])


T = TypeVar("T")


def _beside_layers(blocks: Mapping[str, T]) -> dict[str, T]:
    """Return what stands beside the layers of all kinds, by name."""
    names = (MTP_LAYER, EMBEDDING, HEAD)
    return {name: blocks[name] for name in names if name in blocks}


def block_times_of_kinds(job: Job, rows: Skeletons) -> dict[str, BlockTimes]:
    """Return the seconds of every block of `blocks_of_kinds`, by name."""
    kinds = jobs_of_kinds(job)
    found = [block_times(kind.job, rows) for kind in kinds]
    if len(kinds) == 1:
        return found[0]
    layers = {
        layer_name(kind): times[LAYER] for kind, times in zip(kinds, found, strict=True)
    }
    return {**layers, **_beside_layers(found[_last(job, kinds)])}


def mean_time_costs(job: Job, rows: Skeletons) -> TimeCosts:
    """Return the seconds that make up every stage of every skeleton."""
    kinds = jobs_of_kinds(job)
    costs = [time_costs(kind.job, rows) for kind in kinds]
    if len(kinds) == 1:
        return costs[0]
    shares = [kind.share for kind in kinds]
    over = _beyond_mean(kinds)
    both = [added([one.forward, one.backward]) for one in costs]
    return replace(
        costs[_last(job, kinds)],
        forward=_sum([one.forward for one in costs], shares),
        backward=_sum([one.backward for one in costs], shares),
        weight_s=_dot([one.weight_s for one in costs], shares),
        recompute_s=_dot([one.recompute_s for one in costs], shares),
        lead=_sum(both, over),
        lead_weight_s=_dot([one.weight_s for one in costs], over),
        **leading_columns(job.spec, rows),
        # A send hides behind one layer of compute: the kind that hides least of it.
        send_s=np.max([one.send_s for one in costs], axis=0),
        sync_layer=_sum([one.sync_layer for one in costs], shares),
        sync_lead=_sum([one.sync_layer for one in costs], over),
    )


def mean_memory_costs(job: Job, rows: Skeletons) -> MemoryCosts:
    """Return the bytes that make up every stage of every skeleton."""
    kinds = jobs_of_kinds(job)
    costs = [memory_costs(kind.job, rows) for kind in kinds]
    if len(kinds) == 1:
        return costs[0]
    shares, over = [kind.share for kind in kinds], _beyond_mean(kinds)
    activations = _dot([one.activations for one in costs], shares)
    freed = _dot([one.freed for one in costs], shares)
    leading = np.zeros(len(rows))
    for kind, one in zip(kinds, costs, strict=True):
        # As with leading dense layers: what is held with or without recomputation.
        saved, kept = one.activations - activations, one.freed - freed
        leading = leading + kind.leading * np.maximum(saved, saved - kept)
    last = costs[_last(job, kinds)]
    return replace(
        last,
        layer=_sum([one.layer for one in costs], shares),
        activations=activations,
        freed=freed,
        part_segments=np.max([one.part_segments for one in costs], axis=0),
        lead=_sum([one.layer for one in costs], over),
        lead_activations=leading,
        **leading_columns(job.spec, rows),
        last={**_most([one.last for one in costs]), **_state_of(last.last)},
        fixed=_most([one.fixed for one in costs]),
        host_layer=_dot([one.host_layer for one in costs], shares),
        host_lead=_dot([one.host_layer for one in costs], over),
        host_first=np.max([one.host_first for one in costs], axis=0),
    )


def mean_held_state(job: Job, rows: Skeletons) -> HeldState:
    """Return the bytes of state of a mean layer, and of the ends beside them."""
    kinds = jobs_of_kinds(job)
    held = [held_state(kind.job, rows) for kind in kinds]
    if len(kinds) == 1:
        return held[0]
    layers, shares = [one.layer for one in held], [kind.share for kind in kinds]
    return replace(
        held[_last(job, kinds)],
        layer=_sum(layers, shares),
        lead=_sum(layers, _beyond_mean(kinds)),
    )


def _beyond_mean(kinds: Sequence[JobOfKind]) -> list[float]:
    """Return by how much leading layers of each kind differ from as many mean ones."""
    leading = sum(kind.leading for kind in kinds)
    return [kind.leading - leading * kind.share for kind in kinds]


def _dot(columns: Sequence[Floats], weights: Sequence[float]) -> Floats:
    result = np.zeros_like(columns[0])
    for column, weight in zip(columns, weights, strict=True):
        result = result + weight * column
    return result


def _sum(every: Sequence[Parts], weights: Sequence[float]) -> Parts:
    pairs = zip(every, weights, strict=True)
    return added([scaled(parts, weight) for parts, weight in pairs])


def _state_of(parts: Parts) -> Parts:
    """Return the parts that no workspace of a layer changes."""
    return {name: part for name, part in parts.items() if name != "workspace"}


def _most(every: Sequence[Parts]) -> Parts:
    names = dict.fromkeys(name for parts in every for name in parts)
    return {
        name: np.max([parts[name] for parts in every if name in parts], axis=0)
        for name in names
    }
