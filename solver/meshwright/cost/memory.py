"""Bytes per GPU: what a layer, the ends of the model and the step itself hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cost.activations import (
    ELEMENT_BYTES,
    dense_saved_bytes,
    layer_input_bytes,
    saved_bytes,
)
from meshwright.cost.arrays import Floats, Parts, added, scaled
from meshwright.cost.framework import (
    HAS_CAST_WEIGHTS,
    OVERHEAD_GIB,
    StateBytes,
    sharded_bytes,
    state_bytes,
)
from meshwright.cost.offload import host_bytes, kept_state, streams_weights
from meshwright.cost.weights import (
    Weights,
    dense_layer_weights,
    embedding_weights,
    head_weights,
    layer_weights,
)
from meshwright.job import Job
from meshwright.skeleton import FULL, GPIPE, GRADIENTS, NONE, SELECTIVE, Skeletons
from meshwright.spec.units import GIB


@dataclass(frozen=True)
class MemoryCosts:
    """Bytes on one GPU, a row per skeleton.

    A stage of n layers, r of them recomputed, with f micro-batches in flight holds
    n x layer + f x (n x activations - r x freed) + fixed, and `first` or `last` where
    it is an end of the pipeline (with f x first_activations, and last_activations).
    """

    layer: Parts
    activations: Floats
    freed: Floats
    """What recomputing a layer saves per micro-batch."""
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
    spec, model = job.spec, job.spec.model
    tokens = rows.shards.tokens(spec.training.seq_len)
    saved, kept = _activation_bytes(job, rows)
    state = state_bytes(spec)
    layer = _state(job, state, rows, layer_weights(job, rows))
    lead, lead_activations = _leading(job, state, rows, layer, saved)
    # Only GPipe runs all forwards before the first backward.
    held = np.where(rows.schedule == GPIPE, rows.microbatches, 1)
    embedding, head = embedding_weights(job, rows), head_weights(job, rows)
    # Logits in the compute precision, and their softmax in fp32 for the backward.
    logit_bytes = ELEMENT_BYTES[spec.training.precision] + 4
    return MemoryCosts(
        layer=layer,
        activations=tokens * saved,
        freed=tokens * (saved - kept),
        first=added([lead, _state(job, state, rows, embedding)]),
        first_activations=tokens * lead_activations,
        last=_state(job, state, rows, head),
        last_activations=held * tokens * model.vocab / rows.tp * logit_bytes,
        fixed={
            "workspace": _workspace(job, state, rows, tokens * (saved - kept)),
            "overhead": np.full(len(rows), OVERHEAD_GIB * GIB),
        },
        host_layer=host_bytes(job, rows, layer_weights(job, rows)),
        host_first=host_bytes(job, rows, embedding) + _leading_host(job, rows),
        host_last=host_bytes(job, rows, head),
    )


def _state(job: Job, state: StateBytes, rows: Skeletons, held: list[Weights]) -> Parts:
    """Return the bytes of weights, gradients and optimizer state on the GPU."""
    zero = rows.zero
    parts = []
    for own in held:
        weights, gradients, optimizer = sharded_bytes(state, zero, own.shards)
        if job.spec.framework in HAS_CAST_WEIGHTS and state.gathered < state.weights:
            # fp32 parameters are sharded from stage 2 on; the cast copy only in 3.
            sharded = state.weights / np.where(zero >= 2, own.shards, 1)
            weights = sharded + np.where(zero < 3, state.gathered, 0.0)
        parts.append(
            {
                "weights": own.params * weights,
                "gradients": own.params * gradients,
                "optimizer": own.params * optimizer,
            }
        )
    return kept_state(job, rows, held, added(parts))


def _leading(
    job: Job, state: StateBytes, rows: Skeletons, layer: Parts, saved: Floats
) -> tuple[Parts, Floats]:
    """Return what leading dense layers hold more than as many repeated ones.

    State in bytes; what they save for the backward in bytes per token.
    """
    moe = job.spec.model.moe
    if moe is None or not moe.first_dense_layers:
        return {}, np.zeros(len(rows))
    count = moe.first_dense_layers
    dense = _state(job, state, rows, dense_layer_weights(job, rows))
    own = dense_saved_bytes(job.spec, rows.shards, selective=False)
    more = added([scaled(dense, count), scaled(layer, -count)])
    return more, count * (own - saved)


def _leading_host(job: Job, rows: Skeletons) -> Floats:
    """Return what leading dense layers hold on the host more than repeated ones."""
    dense = host_bytes(job, rows, dense_layer_weights(job, rows))
    repeated = host_bytes(job, rows, layer_weights(job, rows))
    return job.spec.model.first_dense_layers * (dense - repeated)


def _activation_bytes(job: Job, rows: Skeletons) -> tuple[Floats, Floats]:
    """Return bytes per token and layer: saved without recompute, kept with it."""
    spec, shards = job.spec, rows.shards
    saved = saved_bytes(spec, shards, selective=False)
    selective = saved_bytes(spec, shards, selective=True)
    full = layer_input_bytes(spec, shards)
    mode = rows.recompute
    modes = [mode == NONE, mode == SELECTIVE, mode == FULL]
    kept = np.select(modes, [saved, selective, full])
    return saved, kept


def _workspace(job: Job, state: StateBytes, rows: Skeletons, freed: Floats) -> Floats:
    """Return the bytes that come and go: one recomputed layer, gradients, gathers.

    ZeRO-3 holds the weights of two layers, the second being prefetched; from stage 2
    on the gradients of one layer wait to be reduced. So it is where they live on the
    host.
    """
    spec, model = job.spec, job.spec.model
    tokens = rows.shards.tokens(spec.training.seq_len)
    widest = model.d_model + (2 if model.gated_mlp else 1) * model.d_ff / rows.tp
    upstream = tokens * widest * ELEMENT_BYTES[spec.training.precision]
    params = sum(own.params for own in layer_weights(job, rows))
    visits = (rows.zero == 3) | streams_weights(rows)
    gathered = np.where(visits, 2 * params * state.gathered, 0.0)
    passes = (rows.zero >= 2) | (rows.offload >= GRADIENTS)
    unreduced = np.where(passes, params * state.gradients, 0.0)
    return freed + upstream + gathered + unreduced
