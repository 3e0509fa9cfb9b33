"""The bytes of a deployment on one GPU: weights, cache, activations, overhead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cost.parameters_and_flops import (
    dense_layer_params,
    embedding_params,
    expert_params,
    head_params,
    kv_shards,
    kv_width,
    latent_down_width,
    layer_params,
    mlp_inputs,
    output_width,
    query_width,
    value_width,
)
from meshwright.plans.columns import Floats, Ints, Parts
from meshwright.serving.deployment import (
    ACTIVATION_BYTES,
    Deployments,
    ServingJob,
    jobs_of_kinds,
    reach,
)
from meshwright.spec.units import GIB

CONTEXT_GIB = 1.5
"""CUDA context with kernels, 1.1 to 1.5 GiB: see `Framework.overhead_gib`."""

COMMUNICATOR_GIB = 0.4
"""Buffers of one NCCL communicator, 0.25 to 0.4 GiB: likewise."""

LOGIT_BYTES = 2 + 4
"""A logit in 16 bits, and in fp32 for sampling (vLLM, logits_processor.py)."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU by part, one row for each deployment."""

    layer: Parts
    """Bytes of every layer of a stage."""
    first: Parts
    """Bytes of the first stage beside its layers."""
    last: Parts
    """Bytes of the last stage beside its layers."""
    fixed: Parts
    """Bytes of every stage beside its layers."""


def memory(job: ServingJob, rows: Deployments) -> Memory:
    """Return the memory of deployments.

    Every stage caches its layers for the requests of all groups of its replica.
    Embedding and head stay in 16 bits, as quantised checkpoints have them; a layer's
    norms and biases are counted like its matrices.
    """
    model, tp = job.model, rows.attention_tp
    kinds = list(jobs_of_kinds(job))
    layer_bytes = [share * _layer_params(kind, rows) for share, kind in kinds]
    cached = [
        share * cached_bytes(kind, tp) * cached_tokens(kind) for share, kind in kinds
    ]
    working = [_activation_bytes(kind, rows) for _, kind in kinds]
    is_split = (tp > 1) & (rows.attention_dp > 1)
    communicators = (rows.tp > 1).astype(np.int64) + (rows.pp > 1) + is_split
    overhead = CONTEXT_GIB + COMMUNICATOR_GIB * communicators
    return Memory(
        layer={
            "weights": np.sum(layer_bytes, axis=0) * job.weight_bytes,
            "cache": rows.attended(rows.requests) * np.sum(cached, axis=0),
        },
        first={"weights": _first_bytes(job, rows)},
        last={
            "weights": ACTIVATION_BYTES * head_params(model, tp, rows.pp),
            "activations": _logit_bytes(job, rows),
        },
        fixed={
            "activations": np.max(working, axis=0),
            "overhead": np.asarray(overhead * GIB),
        },
    )


def _logit_bytes(job: ServingJob, rows: Deployments) -> Floats:
    sampled = rows.attended(rows.group_size)
    return np.asarray(LOGIT_BYTES * sampled * float(job.model.vocab))


def _layer_params(job: ServingJob, rows: Deployments) -> Floats:
    """Return a layer's parameters: experts are split over all groups of attention."""
    rest = layer_params(job.model, rows.attention_tp)
    return rest + expert_params(job.model, rows.tp)


def _first_bytes(job: ServingJob, rows: Deployments) -> Floats:
    """Return the bytes of the embedding, and of leading layers above others'."""
    tp = rows.attention_tp
    more = dense_layer_params(job.model, tp) - _layer_params(job, rows)
    lead = job.model.first_dense_layers * more * job.weight_bytes
    return np.asarray(ACTIVATION_BYTES * embedding_params(job.model, tp) + lead)


def cached_tokens(job: ServingJob) -> int:
    """Return the tokens in a request's cache when it is done, in whole pages.

    Kwon et al. 2023, PagedAttention, section 4.3: only the last page is partly empty.
    """
    block, most = job.inference.kv_block, reach(job)
    tokens = job.inference.context
    tokens = tokens if most is None else min(most, tokens)
    return -(-tokens // block) * block


def cached_bytes(job: ServingJob, tp: Ints) -> Floats:
    """Return the bytes that one GPU caches per layer and token.

    These are the keys and values of its heads; or the latent vector and rotary key,
    which every GPU of a tensor group needs whole (DeepSeek-AI 2024, arXiv 2405.04434,
    table 1).
    """
    model = job.model
    if model.mla is not None:
        return np.full(len(tp), float(latent_down_width(model) * job.cache_bytes))
    width = kv_width(model) + value_width(model)
    return width * job.cache_bytes / kv_shards(model, tp)


def _activation_bytes(job: ServingJob, rows: Deployments) -> Floats:
    """Return the working memory of the largest pass: nothing is kept for a backward.

    It holds the residual stream, its norm, and the inputs and outputs of attention or
    of the MLP, the wider of the two. Groups of attention gather the tokens of all for
    the experts, and hold what experts return of them.
    """
    inference, model, tp = job.inference, job.model, rows.attention_tp
    requests, groups = rows.attended(rows.group_size), rows.attention_dp
    prompts = np.minimum(requests * inference.prompt_len, inference.prefill_tokens)
    tokens = np.maximum(prompts, requests)
    held = (kv_width(model) + value_width(model)) / kv_shards(model, tp)
    attention = (query_width(model) + output_width(model)) / tp + held
    mlp = groups * (mlp_inputs(model) + 1) * _inner_width(job) / rows.tp
    gathered = np.where(groups > 1, 2 * groups * model.d_model, 0)
    widest = np.maximum(attention, mlp + gathered)
    return np.asarray(tokens * (2 * model.d_model + widest) * ACTIVATION_BYTES)


def _inner_width(job: ServingJob) -> int:
    """Return the total inner width of the MLPs that a token passes in one layer."""
    model = job.model
    if model.moe is None:
        return model.d_ff
    experts = model.moe.top_k * model.moe.d_ff + model.moe.shared_d_ff
    return max(experts, model.d_ff * (model.first_dense_layers > 0))
