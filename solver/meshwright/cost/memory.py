"""Bytes per GPU: what a layer, the ends of the model and the step itself hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cost.activations import (
    ELEMENT_BYTES,
    layer_input_bytes,
    saved_bytes,
)
from meshwright.cost.arrays import Floats, Ints, Parts
from meshwright.cost.framework import (
    HAS_CAST_WEIGHTS,
    OVERHEAD_GIB,
    StateBytes,
    state_bytes,
)
from meshwright.cost.transformer import (
    embedding_params,
    head_params,
    layer_params,
)
from meshwright.job import Job
from meshwright.skeleton import FULL, NONE, SELECTIVE, Skeletons
from meshwright.spec.units import GIB


@dataclass(frozen=True)
class MemoryCosts:
    """Bytes on one GPU, a row per skeleton.

    A stage of n layers, r of them recomputed, with f micro-batches in flight holds
    n x layer + f x (n x activations - r x freed) + fixed, and `first` or `last` where
    it is an end of the pipeline (f x last_activations too).
    """

    layer: Parts
    activations: Floats
    freed: Floats
    """What recomputing a layer saves per micro-batch."""
    first: Parts
    last: Parts
    last_activations: Floats
    fixed: Parts


def memory_costs(job: Job, rows: Skeletons) -> MemoryCosts:
    """Return the bytes that make up every stage of every skeleton."""
    spec, model = job.spec, job.spec.model
    tokens = rows.shards.tokens(spec.training.seq_len)
    saved, kept = _activation_bytes(job, rows)
    per_layer = layer_params(model, rows.tp)
    state = state_bytes(spec)
    # Logits in the compute precision, and their softmax in fp32 for the backward.
    logit_bytes = ELEMENT_BYTES[spec.training.precision] + 4
    return MemoryCosts(
        layer=_state(job, state, rows, per_layer),
        activations=tokens * saved,
        freed=tokens * (saved - kept),
        first=_state(job, state, rows, embedding_params(model, rows.tp)),
        last=_state(job, state, rows, head_params(model, rows.tp, rows.pp)),
        last_activations=tokens * model.vocab / rows.tp * logit_bytes,
        fixed={
            "workspace": _workspace(job, state, rows, tokens * (saved - kept)),
            "overhead": np.full(len(rows), OVERHEAD_GIB * GIB),
        },
    )


def sharded_bytes(
    state: StateBytes, zero: Ints, dp_shard: Ints
) -> tuple[Floats, Floats, Floats]:
    """Return bytes per parameter of weights, gradients and optimizer under ZeRO.

    Stage 1 shards the optimizer, 2 gradients too, 3 weights too (Rajbhandari et al.
    2019, section 5 and figure 1).
    """
    weights = state.weights / np.where(zero >= 3, dp_shard, 1)
    gradients = state.gradients / np.where(zero >= 2, dp_shard, 1)
    optimizer = state.optimizer / np.where(zero >= 1, dp_shard, 1)
    return weights, gradients, optimizer


def _state(job: Job, state: StateBytes, rows: Skeletons, params: Floats) -> Parts:
    zero, shard = rows.zero, rows.dp_shard
    if job.spec.framework in HAS_CAST_WEIGHTS and state.gathered < state.weights:
        # fp32 parameters are sharded from stage 2 on; the cast copy only in stage 3.
        own = state.weights / np.where(zero >= 2, shard, 1)
        weights = own + np.where(zero < 3, state.gathered, 0.0)
        _, gradients, optimizer = sharded_bytes(state, zero, shard)
    else:
        weights, gradients, optimizer = sharded_bytes(state, zero, shard)
    return {
        "weights": params * weights,
        "gradients": params * gradients,
        "optimizer": params * optimizer,
    }


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
    on the gradients of one layer wait to be reduced.
    """
    spec, model = job.spec, job.spec.model
    tokens = rows.shards.tokens(spec.training.seq_len)
    widest = model.d_model + (2 if model.gated_mlp else 1) * model.d_ff / rows.tp
    upstream = tokens * widest * ELEMENT_BYTES[spec.training.precision]
    params = layer_params(model, rows.tp)
    gathered = np.where(rows.zero == 3, 2 * params * state.gathered, 0.0)
    unreduced = np.where(rows.zero >= 2, params * state.gradients, 0.0)
    return freed + upstream + gathered + unreduced
