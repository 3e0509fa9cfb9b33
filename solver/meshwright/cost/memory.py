"""Bytes per GPU: what a layer, the ends of the model and the step itself hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.cost.activations import (
    dense_saved_bytes,
    layer_input_bytes,
    saved_bytes,
)
from meshwright.cost.job import Job
from meshwright.cost.offload import host_bytes, kept_state, streams_weights
from meshwright.cost.state import (
    fp8_weight_bytes,
    loss_bytes,
    sharded_bytes,
    state_bytes,
)
from meshwright.cost.traffic import hidden_bytes
from meshwright.cost.transformer import mlp_inputs
from meshwright.cost.weights import (
    Weights,
    dense_layer_weights,
    embedding_weights,
    head_weights,
    layer_weights,
)
from meshwright.frameworks.base.framework import StateBytes
from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.columns import Columns, Floats, Parts, added, scaled
from meshwright.plans.precision import ELEMENT_BYTES
from meshwright.plans.shards import Shards
from meshwright.plans.skeletons import FULL, GRADIENTS, NONE, SELECTIVE, Skeletons
from meshwright.spec.spec import Spec
from meshwright.spec.units import GIB


@dataclass(frozen=True)
class MemoryCosts(Columns):
    """Bytes on one GPU, a row per skeleton.

    A stage of n layers, r of them recomputed, with f micro-batches in flight holds
    n x layer + f x (n x activations - r x freed + outputs) + fixed, and `first` or
    `last` where it is an end of the pipeline (with f x first_activations, and
    last_activations of each micro-batch whose loss the last stage has in flight).
    """

    layer: Parts
    activations: Floats
    freed: Floats
    """What recomputing a layer saves per micro-batch."""
    outputs: Floats
    """What a stage keeps per micro-batch of what it has sent on."""
    first: Parts
    first_activations: Floats
    """What leading layers without experts save more, or less if negative."""
    last: Parts
    last_activations: Floats
    fixed: Parts
    host_layer: Floats
    """On the host of the GPU, as for the next two: of a layer."""
    host_first: Floats
    host_last: Floats


def memory_costs(job: Job, rows: Skeletons) -> MemoryCosts:
    """Return the bytes that make up every stage of every skeleton."""
    spec, framework = job.spec, framework_of(job.spec)
    tokens = rows.shards.tokens(spec.training.seq_len)
    saved, kept = _activation_bytes(job, rows, saved_bytes)
    alike, inverse = rows.distinct_in_state()
    held = _held(job, alike).take(inverse)
    logits = _logits(job, rows)
    working = _at_work(job, rows, tokens * (saved - kept))
    shared = _shared(rows, logits, working)
    outputs = hidden_bytes(job, rows) / rows.shards.sequence_shards
    has_outputs = (rows.pp > 1) & framework.keeps_stage_outputs
    return MemoryCosts(
        layer=held.layer,
        activations=tokens * saved,
        freed=tokens * (saved - kept),
        outputs=np.where(has_outputs, outputs, 0.0),
        first=held.first,
        first_activations=tokens * _leading_activations(job, rows, saved, kept),
        last=added([held.last, shared]),
        last_activations=logits,
        fixed={
            "workspace": working + held.in_transit,
            "overhead": np.full(len(rows), framework.overhead_gib * GIB),
        },
        host_layer=held.host_layer,
        host_first=held.host_first,
        host_last=held.host_last,
    )


@dataclass(frozen=True)
class _Held(Columns):
    """What does not depend on micro-batches: the state, on the GPU and on the host."""

    layer: Parts
    first: Parts
    last: Parts
    in_transit: Floats
    host_layer: Floats
    host_first: Floats
    host_last: Floats


def _held(job: Job, rows: Skeletons) -> _Held:
    state, own = state_bytes(job.spec), layer_weights(job, rows)
    layer = _layer_state(job, state, rows, own)
    embedding, head = embedding_weights(job, rows), head_weights(job, rows)
    lead, host_layer = _leading(job, state, rows, layer), host_bytes(job, rows, own)
    lead_host = _leading_host(job, rows, host_layer)
    return _Held(
        layer=layer,
        first=added([lead, _state(job, state, rows, embedding)]),
        last=_state(job, state, rows, head),
        in_transit=_in_transit(job, state, rows, own),
        host_layer=host_layer,
        host_first=host_bytes(job, rows, embedding) + lead_host,
        host_last=host_bytes(job, rows, head),
    )


def _state(job: Job, state: StateBytes, rows: Skeletons, held: list[Weights]) -> Parts:
    """Return the bytes of weights, gradients and optimizer state on the GPU."""
    has_cast, parts = framework_of(job.spec).has_cast_weights, []
    for own in held:
        shards = own.sharding
        weights, gradients, optimizer = sharded_bytes(state, shards)
        if has_cast and state.gathered < state.weights:
            # fp32 parameters are sharded like gradients; the cast copy only in 3.
            cast = np.where(shards.shards_weights, 0.0, state.gathered)
            weights = state.weights / shards.gradients + cast
        parts.append(
            {
                "weights": own.params * weights,
                "gradients": own.params * gradients,
                "optimizer": own.params * optimizer,
            }
        )
    return kept_state(job, rows, held, added(parts))


def _layer_state(
    job: Job, state: StateBytes, rows: Skeletons, held: list[Weights]
) -> Parts:
    """Return the same of a layer, with copies of weights that stay on the GPU."""
    stays = ~rows.sharding.shards_weights & ~streams_weights(rows)
    copies = np.where(stays, fp8_weight_bytes(job.spec), 0)
    cast = sum(own.params for own in held) * copies
    return added([_state(job, state, rows, held), {"weights": cast}])


def _leading(job: Job, state: StateBytes, rows: Skeletons, layer: Parts) -> Parts:
    """Return the state that leading dense layers hold more than repeated ones."""
    count = job.spec.model.first_dense_layers
    if not count:
        return {}
    dense = _layer_state(job, state, rows, dense_layer_weights(job, rows))
    return added([scaled(dense, count), scaled(layer, -count)])


def _leading_activations(
    job: Job, rows: Skeletons, saved: Floats, kept: Floats
) -> Floats:
    """Return the bytes per token that leading dense layers save more likewise.

    A recomputed layer counts as freeing what a repeated one does. Leading layers that
    free less are taken to be among the recomputed ones, which is safe: no stage holds
    less than its layers keep.
    """
    count = job.spec.model.first_dense_layers
    if not count:
        return np.zeros(len(rows))
    own_saved, own_kept = _activation_bytes(job, rows, dense_saved_bytes)
    return count * np.maximum(own_saved - saved, own_kept - kept)


def _leading_host(job: Job, rows: Skeletons, repeated: Floats) -> Floats:
    """Return what leading dense layers hold on the host more than repeated ones."""
    count = job.spec.model.first_dense_layers
    if not count:
        return np.zeros(len(rows))
    dense = host_bytes(job, rows, dense_layer_weights(job, rows))
    return count * (dense - repeated)


def _activation_bytes(
    job: Job, rows: Skeletons, of_layer: Callable[[Spec, Shards, bool], Floats]
) -> tuple[Floats, Floats]:
    """Return bytes per token and layer: saved without recompute, kept with it."""
    spec, shards = job.spec, rows.shards
    saved, selective = of_layer(spec, shards, False), of_layer(spec, shards, True)
    full = layer_input_bytes(spec, shards)
    mode = rows.recompute
    modes = [mode == NONE, mode == SELECTIVE, mode == FULL]
    kept = np.select(modes, [saved, selective, full])
    return saved, kept


def _logits(job: Job, rows: Skeletons) -> Floats:
    """Return the bytes of logits and loss of one micro-batch."""
    spec = job.spec
    tokens = rows.shards.tokens(spec.training.seq_len)
    width = ELEMENT_BYTES[spec.training.precision] + loss_bytes(spec)
    return tokens * spec.model.vocab / rows.tp * width


def _shared(rows: Skeletons, logits: Floats, working: Floats) -> Parts:
    """Return what logits and workspace need less on the last stage than their sum.

    The loss is over before the first layer is recomputed: where layers are, the larger
    of both is held, and else their sum, which is safe.
    """
    is_full = rows.recompute == FULL
    return {"workspace": -np.where(is_full, np.minimum(logits, working), 0.0)}


def _at_work(job: Job, rows: Skeletons, freed: Floats) -> Floats:
    """Return the bytes of one recomputed layer, and of gradients on their way up."""
    spec, model = job.spec, job.spec.model
    tokens = rows.shards.tokens(spec.training.seq_len)
    widest = model.d_model + mlp_inputs(model) * model.d_ff / rows.tp
    return freed + tokens * widest * ELEMENT_BYTES[spec.training.precision]


def _in_transit(
    job: Job, state: StateBytes, rows: Skeletons, held: list[Weights]
) -> Floats:
    """Return the bytes of gathered weights and of gradients that wait for reduction.

    ZeRO-3 holds the weights of a layer and what is prefetched; from stage 2 on the
    gradients of one layer wait to be reduced, and elsewhere, where they are stored
    apart, to be added up. It is no different where either lives on the host.
    """
    framework = framework_of(job.spec)
    params = sum(own.params for own in held)
    ahead = np.minimum(params, framework.prefetched_params)
    visits = rows.sharding.shards_weights | streams_weights(rows)
    gathered = np.where(visits, (params + ahead) * state.gathered, 0.0)
    is_apart = framework.has_separate_gradients
    waiting = ELEMENT_BYTES[job.spec.training.precision] if is_apart else 0
    passes = rows.sharding.shards_gradients | (rows.offload >= GRADIENTS)
    return gathered + params * np.where(passes, state.gradients, waiting)
