"""Seconds of attention on one GPU: its projections, and the core between them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.cost.attention_kernels import attention_share
from meshwright.cost.elementwise import (
    norm_passes,
    rotary_passes,
    softmax_passes,
)
from meshwright.cost.parameters_and_flops import (
    kv_projected,
    kv_shards,
    kv_width,
    latent_down_width,
    latent_up_width,
    output_width,
    query_width,
    value_dim,
    value_width,
)
from meshwright.cost.roofline import Work
from meshwright.cost.state_space_time import state_space_seconds
from meshwright.cost.whole_model import keys_seen
from meshwright.frameworks.base.registry import context_exchange_of, joins_norms
from meshwright.plans.columns import Floats
from meshwright.spec.model_parts import LatentAttention


class Attention(NamedTuple):
    """Seconds of one layer's attention."""

    matmuls_s: Floats
    """The projections, forward."""
    streams_s: Floats
    """Kernels that only move bytes, forward: rotary positions and inner norms."""
    from_latents_s: Floats
    """What follows latent vectors, part of both: projections to heads, and rotary
    positions; also the norms before the projections where they are fused into them."""
    core_s: Floats
    core_backward_s: Floats


def attention(work: Work) -> Attention:
    """Return the seconds of one layer's attention, or of what stands for it."""
    if work.model.mixer != "attention":
        return _without_attention(work)
    core = (_plain_s if work.spec.training.stores_scores else _fused_s)(work)
    rotary_s, norms_s = _rotary_s(work), _inner_norms_s(work)
    latents_s = np.zeros(len(work.shards))
    if work.model.mla is not None:
        latents_s = _up_s(work, work.model.mla) + rotary_s
        latents_s = latents_s + joins_norms(work.spec) * norms_s
    return Attention(_matmuls_s(work), rotary_s + norms_s, latents_s, *core)


def _without_attention(work: Work) -> Attention:
    """Return the seconds of a state space, or of nothing."""
    none = np.zeros(len(work.shards))
    mixer = work.model.state_space
    if work.model.mixer == "none" or mixer is None:
        return Attention(none, none, none, none, none)
    seconds = state_space_seconds(work, mixer)
    return Attention(seconds.matmuls_s, seconds.streams_s, none, *seconds.core)


def _matmuls_s(work: Work) -> Floats:
    model, tp, linear_s = work.model, work.shards.tp, work.gpu.linear_s
    output = linear_s(work.tokens, model.d_model, output_width(model) / tp)
    if model.mla is not None:
        return _latent_matmuls_s(work, model.mla) + output
    keys_and_values = kv_projected(model) / kv_shards(model, tp)
    queries = query_width(model) * (2 if model.output_gate else 1)
    qkv = queries / tp + keys_and_values
    return linear_s(work.tokens, qkv, model.d_model) + output


def _latent_matmuls_s(work: Work, mla: LatentAttention) -> Floats:
    """Return the seconds to project down by tokens, and up by heads."""
    model, linear_s = work.model, work.gpu.linear_s
    seconds = linear_s(work.gpu_tokens, latent_down_width(model), model.d_model)
    if mla.q_rank:
        seconds = seconds + linear_s(work.gpu_tokens, mla.q_rank, model.d_model)
    if (indexer := mla.indexer) is not None:
        queries, keys = indexer.n_heads * indexer.head_dim, indexer.head_dim
        seconds = seconds + linear_s(work.gpu_tokens, queries, mla.q_rank)
        keys += indexer.n_heads
        seconds = seconds + linear_s(work.gpu_tokens, keys, model.d_model)
    return seconds + _up_s(work, mla)


def _up_s(work: Work, mla: LatentAttention) -> Floats:
    """Return the seconds to project from latent vectors up to heads."""
    model, tp, linear_s = work.model, work.shards.tp, work.gpu.linear_s
    seconds = linear_s(work.tokens, latent_up_width(model) / tp, mla.kv_rank)
    inputs = mla.q_rank or model.d_model
    return seconds + linear_s(work.tokens, query_width(model) / tp, inputs)


BACKWARD_SHARE = 0.8
"""Rate of a fused backward over that of its forward (Dao 2023, figures 4 and 5)."""

DROPOUT_PASSES = 2.5
"""Passes over the scores: dropout reads and writes them, and a mask of one byte."""


def _fused_s(work: Work) -> tuple[Floats, Floats]:
    """Return forward and backward seconds of a fused core.

    A causal kernel skips the masked half of the matmuls. The forward has two, the
    backward five (Dao 2023, FlashAttention-2, 3.1), three of them over the width of
    the keys and two over that of the values. Under context parallelism one kernel after
    another takes the keys and values of one GPU (Liu et al. 2023, Ring Attention,
    section 3), with the causal half spread evenly.
    """
    model, tp, hops = work.model, work.shards.tp, work.shards.cp
    keys, values = query_width(model) / tp, output_width(model) / tp
    # Twice the keys that a token sees: the whole sequence under a causal mask.
    seen = 2 * keys_seen(model, work.spec.training.seq_len)
    pairs = work.tokens / hops * seen
    held = (kv_width(model) + value_width(model)) / kv_shards(model, tp)
    moved = work.tokens * (keys + values + held)
    core_s, share = work.gpu.attention_s, attention_share(work, _length(work))
    forward = hops * core_s(pairs * (keys + values), moved, share)
    backward_flops = pairs * (3 * keys + 2 * values) / BACKWARD_SHARE
    backward = hops * core_s(backward_flops, 2 * moved, share)
    scores_s = _indexer_scores_s(work)
    return forward + scores_s, backward + 2 * scores_s


def _length(work: Work) -> Floats:
    """Return the tokens of a sequence that one kernel gets."""
    whole = work.spec.training.seq_len
    is_ring = context_exchange_of(work.spec) == "ring"
    return whole / (work.shards.cp if is_ring else np.ones(len(work.shards)))


def _indexer_scores_s(work: Work) -> Floats:
    """Return the seconds in which an indexer scores all tokens before each, if any."""
    mla = work.model.mla
    if mla is None or mla.indexer is None:
        return np.zeros(len(work.shards))
    width = mla.indexer.n_heads * mla.indexer.head_dim
    flops = work.gpu_tokens * work.spec.training.seq_len * width
    share = attention_share(work, _length(work))
    return work.gpu.attention_s(flops, work.gpu_tokens * width, share)


def _plain_s(work: Work) -> tuple[Floats, Floats]:
    """Return forward and backward seconds of a core that stores all scores."""
    model, gpu, seq_len = work.model, work.gpu, work.spec.training.seq_len
    heads = model.n_heads / work.shards.tp
    queries = seq_len / work.shards.cp
    scores = work.tokens / queries * heads
    matmul_s = gpu.misaligned_s if model.head_dim % 8 else gpu.matmul_s
    matmuls = matmul_s(queries, seq_len, model.head_dim)
    matmuls = matmuls + matmul_s(queries, value_dim(model), seq_len)
    passes = softmax_passes(work.spec) + DROPOUT_PASSES * model.dropout
    softmax = gpu.stream_s(passes * work.tokens * seq_len * heads)
    forward = scores * matmuls + softmax
    return forward, 2 * forward


def _rotary_s(work: Work) -> Floats:
    """Return the seconds of rotary positions on queries and keys.

    Latent attention turns only the rotary part of its queries. It also joins the key of
    every head from a projection and from the rotary key that all heads share.
    """
    model, tp = work.model, work.shards.tp
    if model.learned_positions or model.alibi:
        return np.zeros(len(work.shards))
    keys = kv_width(model) / kv_shards(model, tp)
    queries = query_width(model) / tp
    if model.mla is not None:
        queries = model.n_heads * model.mla.rope_dim / tp
    passes = rotary_passes(work.spec, work.gpu.element)
    return work.gpu.stream_s(passes * work.tokens * (queries + keys))


def _inner_norms_s(work: Work) -> Floats:
    """Return the seconds of norms over latent vectors, or over query and key heads."""
    model, tp = work.model, work.shards.tp
    passes = norm_passes(work.spec, work.gpu.element)
    if model.mla is not None:
        latent = model.mla.q_rank + model.mla.kv_rank
        return work.gpu.stream_s(passes * work.gpu_tokens * latent)
    if not model.qk_norm:
        return np.zeros(len(work.shards))
    width = query_width(model) / tp + kv_width(model) / kv_shards(model, tp)
    return work.gpu.stream_s(passes * work.tokens * width)
