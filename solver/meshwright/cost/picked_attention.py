"""Seconds of attention to the tokens that an indexer picks, and of the indexer.

Queries pick different tokens, so that all heads share one key: the latent vector and
its rotary part, and the latent vector is the value, too (DeepSeek-AI 2025, arXiv
2512.02556, section 2.1 and appendix A). The matrices from the latent vector to heads
are multiplied with queries before, and with results after, at the same FLOPs.

The loss of the indexer is the divergence of its scores from what attention gives to the
same tokens, summed over heads (there, section 2.1.1). What runs for it was read in
Megatron-LM d98e8a6, transformer/experimental_attention_variant/: dsa.py,
dsa_cudnn_kernels.py. Its gradients are made at once, in the pass that has a graph: with
recomputation that is the repeated forward, without it the first. Here all of it counts
as backward.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.cost.parameters_and_flops import latent_down_width
from meshwright.cost.roofline import Sizes, Work
from meshwright.cost.whole_model import keys_seen
from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.columns import Floats
from meshwright.spec.gpu import FORMATS
from meshwright.spec.model_parts import Indexer, LatentAttention


class PickedAttention(NamedTuple):
    """Seconds of one layer's attention to picked tokens, with its indexer."""

    forward_s: Floats
    backward_s: Floats


class PickingKernels(NamedTuple):
    """Rates on long rows of picks over FlashAttention-2's, as shares of the peak."""

    forward: float
    backward: float


HOPPER = PickingKernels(forward=1.27, backward=0.74)
"""640 TFLOP/s forward on H800 (FlashMLA 066b5ba, README.md, sparse prefill), and 371
backward on H200 with 64 heads (cudnn-frontend 07b111f, benchmark/dsa/results/glm53/
h200), where each of 2,048 to 8,192 queries reads 2,048 tokens. Of longer sequences the
backward is slower: 338 at 16,384, 234 at 32,768; that is left out."""

BLACKWELL = PickingKernels(forward=1.27, backward=0.54)
"""1,450 TFLOP/s forward on B200 (FlashMLA, there), and 672 backward on GB200 (cudnn-
frontend, there, gb200)."""

BLACKWELL_TFLOPS = 2_000

HALF_PICKS = 170
"""Tokens that a query reads at which its kernel reaches half of its rate: on B200 the
backward has 305, 553, 625 and 659 TFLOP/s at 128, 512, 1,024 and 2,048 tokens
(cudnn-frontend 02c8368, benchmark/dsa/README.md)."""

HEADS_AT_ONCE = 64
"""Heads of a tile: fewer take as long, of attention (dsa_cudnn_kernels.py:
`_flash_mla_head_padding`) and of the indexer's backward
(`_pad_indexer_heads_for_backward`)."""

PICK_BYTES = 269
"""Bytes moved for each token that a query picks by operations of PyTorch: 98 to check
its bounds, 92 to bring picks that count to the front and 79 to put them in order
(dsa_cudnn_kernels.py: `_topk_in_bounds`, `_compact_valid_topk_indices`,
`_sort_valid_topk_indices_by_index`; picks are of 4 bytes, places of 8). A sort reads
and writes keys twice, and writes places twice."""

KEPT_PICK_BYTES = 8
"""The same to copy picks for the backward (`_run_sparse_attention_forward`)."""

LOSS_BYTES = 340
"""The same of the loss: 160 for the score of a pick, which is checked and moved with
it, and for another copy; 55 for logarithms of the softmax and what they are of, 22 to
mask them, 34 to norm and mask the target, 44 for the divergence and 25 to mask and
clamp what the backward reads (`_compute_sparse_indexer_loss_and_grads`)."""

HEAD_BYTES = 28
"""Bytes moved for a score of one head where heads are added one by one, beside the
product: it is cut off at 0 (8), weighted (8) and added to the sum (12), in fp32
(`_compute_indexer_scores_chunk_with_global_rows`)."""

LOOP_BYTES = 30
"""Bytes moved for their sum: it is cleared (4), masked twice (10 and 12), and read to
pick (4)."""

SCORE_BYTES = 8
"""Bytes moved for a sum that one kernel makes: it is written, and read to pick."""

WHOLE_LOSS_BYTES = 107
"""Bytes moved for every pair of tokens by a loss over all, in fp32: scores and target
are written (8), the divergence has 12 operations (91), and its backward reads both
(`_kl_loss_from_dense_scores`)."""

STATISTICS_BYTES = 20
"""Bytes moved for a score of a head to find the denominators of that loss, beside the
product: it is scaled (8), masked (8) and read (4), in fp32 (`_compute_dense_attn_lse`).
"""

PLAIN_BYTES = 88
"""Bytes moved for a score where scores are stored, beside the products: it is scaled
and the mask is added (16), the softmax has eight operations, three of which mask (66),
and its result is cast to 16 bits (6; dsa_masking.py: `masked_softmax`)."""

PLAIN_LOSS_BYTES = 94
"""The same of the loss, which makes the softmax once more, and the sum over heads, in
either pass (dsa.py: `compute_dsa_indexer_loss`, `bwd_fused_indexer_loss_naive`)."""

PLAIN_INDEX_BYTES = 20
"""Bytes moved for a score of a head of the indexer, beside the product: it is cut off
at 0 (8), weighted (8) and summed (4), in fp32 (dsa.py: `_compute_index_scores`)."""

PLAIN_GRADIENT_BYTES = 38
"""The same of its gradient: cut off and a mask (17), multiplied for the gradients of
weights (12) and of scores (5), and masked (4; `bwd_fused_indexer_loss_naive`)."""


PICKING_OPERATIONS = 120
"""Operations that the host starts to pick tokens in a forward, with kernels of cuDNN:
12 for bounds of texts, 32 for queries, key and weights with rotary positions, 18 for
scores, 30 to pick and check, 23 to put picks in order and 5 for attention (dsa.py:
`DSAttention.forward`, `DSAIndexer.forward_before_topk`; `_indexer_topk_bshd`)."""

HEAD_OPERATIONS = 6
"""The same for each head where heads are added one by one."""

LOSS_OPERATIONS = 60 + 30
"""The same for the loss with its gradients, and for those of the matrices."""


class PickingOperations(NamedTuple):
    """Operations of an indexer that the host starts for a layer."""

    forward: Floats
    backward: Floats


def picking_operations(work: Work) -> PickingOperations:
    """Return the operations of a layer's indexer; none where it has no indexer."""
    indexer, training = work.model.indexer, work.spec.training
    none = np.zeros(len(work.shards))
    if indexer is None:
        return PickingOperations(none, none)
    forward = none + PICKING_OPERATIONS
    if not training.stores_scores:
        by_head = framework_of(work.spec).scores_by_head(work.spec, work.shards)
        forward = forward + HEAD_OPERATIONS * indexer.n_heads * by_head
    trains = training.indexer_loss != "none"
    return PickingOperations(forward, none + LOSS_OPERATIONS * trains)


def picked_attention(
    work: Work, mla: LatentAttention, indexer: Indexer, share: Sizes
) -> PickedAttention:
    """Return the seconds of a layer's core of attention, and of its indexer if any.

    `share` is the rate of a usual kernel of attention, at which the indexer scores. A
    layer that shares an indexer has the core alone.
    """
    is_plain = work.spec.training.stores_scores
    core = _plain_core(work, mla) if is_plain else _core(work, mla)
    if work.model.indexer is None:
        return core
    scores_s = _plain_scores_s(work, indexer)
    if not is_plain:
        scores_s = _scores_s(work, indexer, share)
        picked_s = work.gpu.stream_s(PICK_BYTES / work.gpu.element * _places(work))
        scores_s = scores_s + picked_s
    forward_s = core.forward_s + _projections_s(work, mla, indexer) + scores_s
    loss_s = _loss_s(work, mla, indexer, core)
    return PickedAttention(forward_s, core.backward_s + loss_s)


def _core(work: Work, mla: LatentAttention) -> PickedAttention:
    """Return the seconds of attention without the indexer.

    The forward has two matmuls of picked tokens, over the width of the key and of the
    value, and the backward five, three of them over that of the key.
    """
    heads, kernels, rate = _heads(work), _kernels_of(work), _rate(work)
    keys, values = latent_down_width(work.model), mla.kv_rank
    pairs = work.tokens * _seen(work) * _in_tiles(heads)
    moved = work.tokens * (heads * (keys + values) + keys)
    forward, backward = 2 * pairs * (keys + values), 2 * pairs * (3 * keys + 2 * values)
    attention_s = work.gpu.attention_s
    kept = KEPT_PICK_BYTES / work.gpu.element * _places(work)
    return PickedAttention(
        attention_s(forward, moved, kernels.forward * rate) + work.gpu.stream_s(kept),
        attention_s(backward, 2 * moved, kernels.backward * rate),
    )


def _heads(work: Work) -> Floats:
    return np.asarray(work.model.n_heads / work.shards.tp)


def _in_tiles(heads: Sizes) -> Floats:
    return np.maximum(heads, HEADS_AT_ONCE)


def _seen(work: Work) -> float:
    """Return the tokens that a query reads in the mean: the picked ones before it."""
    return keys_seen(work.model, work.spec.training.text_tokens)


def _places(work: Work) -> Floats:
    """Return the places for picks of all queries, filled or not."""
    seq_len, picker = work.spec.training.seq_len, work.model.picker
    assert picker is not None
    return work.tokens * min(picker.top_k, seq_len)


def _rate(work: Work) -> float:
    return _seen(work) / (_seen(work) + HALF_PICKS)


def _kernels_of(work: Work) -> PickingKernels:
    training, gpu = work.spec.training, work.spec.cluster.topology.gpu
    peak_flops = gpu.peak_tflops.flops(FORMATS[training.precision].core)
    return BLACKWELL if peak_flops > BLACKWELL_TFLOPS * 1e12 else HOPPER


def _projections_s(work: Work, mla: LatentAttention, indexer: Indexer) -> Floats:
    """Return the seconds to project to the indexer's queries, key and weights.

    Every GPU of a tensor-parallel group does so for all of its tokens (dsa.py:
    `DSAIndexer.forward_before_topk` gathers them).
    """
    others = indexer.head_dim + indexer.n_heads
    seconds = work.gpu.linear_s(work.tokens, _width(indexer), mla.q_rank)
    return seconds + work.gpu.linear_s(work.tokens, others, work.model.d_model)


def _width(indexer: Indexer) -> int:
    return indexer.n_heads * indexer.head_dim


def _scores_s(work: Work, indexer: Indexer, share: Sizes) -> Floats:
    """Return the seconds in which an indexer scores all tokens before each.

    A kernel skips the masked half. Where heads are added one by one, each is a matmul
    in fp32 over the whole sequence.
    """
    training, gpu = work.spec.training, work.gpu
    pairs = work.tokens * training.seq_len
    flops = work.tokens * training.text_tokens * _width(indexer)
    kernel_s = gpu.attention_s(flops, work.tokens * _width(indexer), share)
    kernel_s = kernel_s + gpu.stream_s(SCORE_BYTES / gpu.element * pairs)
    by_head = framework_of(work.spec).scores_by_head(work.spec, work.shards)
    if not by_head.any():
        return kernel_s
    one_s = _fp32_scores_s(work, indexer.head_dim, 1.0)
    one_s = one_s + gpu.stream_s(HEAD_BYTES / gpu.element * pairs)
    loop_s = indexer.n_heads * one_s + gpu.stream_s(LOOP_BYTES / gpu.element * pairs)
    return np.where(by_head, loop_s, kernel_s)


def _fp32_scores_s(work: Work, width: int, heads: Sizes) -> Floats:
    """Return the seconds of one matmul of heads in fp32, masked pairs and all."""
    seq_len = work.spec.training.seq_len
    queries = seq_len / work.shards.cp
    count = work.tokens / queries * heads
    return work.gpu.fp32_matmul_s(queries, seq_len, width, count)


def _loss_s(
    work: Work, mla: LatentAttention, indexer: Indexer, core: PickedAttention
) -> Floats:
    """Return the seconds of the loss, of its gradients and of those of its matrices.

    Inputs of the indexer are detached: their gradients are not made. Without a loss
    nothing of the indexer has a gradient.
    """
    training = work.spec.training
    if training.indexer_loss == "none":
        return np.zeros(len(work.shards))
    if training.stores_scores:
        seconds = _plain_loss_s(work, indexer)
    elif training.indexer_loss == "picked":
        seconds = _picked_loss_s(work, indexer)
        if work.model.picks_for_others and framework_of(work.spec).repeats_picked_core:
            seconds = seconds + core.forward_s
    else:
        seconds = _whole_loss_s(work, indexer)
    if training.lora is None:
        seconds = seconds + _projections_s(work, mla, indexer)
    return seconds


def _picked_loss_s(work: Work, indexer: Indexer) -> Floats:
    """Return the seconds of a loss over the picked tokens.

    The target is one matmul of attention's queries and keys. Scores of the indexer are
    multiplied again, and once more for gradients of its queries and of its keys, over
    all places for picks, filled or not. Both run at the rate of the backward of
    attention, since they gather as it does.
    """
    gpu, rate, places = work.gpu, _kernels_of(work).backward, _places(work)
    pairs = work.tokens * _seen(work) * _in_tiles(_heads(work))
    target = 2 * pairs * latent_down_width(work.model)
    gradients = 3 * 2 * places * _in_tiles(indexer.n_heads) * indexer.head_dim
    seconds = gpu.attention_s(target, places, rate * _rate(work))
    seconds = seconds + gpu.attention_s(gradients, places, rate)
    return seconds + gpu.stream_s(LOSS_BYTES / gpu.element * places)


def _whole_loss_s(work: Work, indexer: Indexer) -> Floats:
    """Return the seconds of a loss over all tokens before each, as in a warm-up.

    Denominators of attention are found in fp32 over the whole sequence. Then the target
    is one matmul, and scores of the indexer and both gradients are three, over the half
    that is not masked.
    """
    gpu, training, rate = work.gpu, work.spec.training, _kernels_of(work).backward
    heads, pairs = _heads(work), work.tokens * training.seq_len
    half, keys = work.tokens * training.text_tokens / 2, latent_down_width(work.model)
    seconds = _fp32_scores_s(work, keys, heads)
    seconds = seconds + gpu.stream_s(STATISTICS_BYTES / gpu.element * heads * pairs)
    target = 2 * half * _in_tiles(heads) * keys
    gradients = 3 * 2 * half * _in_tiles(indexer.n_heads) * indexer.head_dim
    seconds = seconds + gpu.attention_s(target, half, rate)
    seconds = seconds + gpu.attention_s(gradients, half, rate)
    return seconds + gpu.stream_s(WHOLE_LOSS_BYTES / gpu.element * pairs)


def _plain_core(work: Work, mla: LatentAttention) -> PickedAttention:
    """Return the seconds of attention that stores its scores.

    It multiplies queries with all keys in fp32, masks what was not picked, and takes
    results of the masked softmax in 16 bits (dsa.py: `_unfused_absorbed_dsa_fn`).
    """
    gpu, seq_len = work.gpu, work.spec.training.seq_len
    heads, queries = _heads(work), seq_len / work.shards.cp
    scores = work.tokens / queries * heads
    values_s = gpu.matmul_s(queries, mla.kv_rank, seq_len, scores)
    moved = PLAIN_BYTES / gpu.element * work.tokens * seq_len * heads
    forward_s = _fp32_scores_s(work, latent_down_width(work.model), heads) + values_s
    forward_s = forward_s + gpu.stream_s(moved)
    return PickedAttention(forward_s, 2 * forward_s)


def _plain_scores_s(work: Work, indexer: Indexer) -> Floats:
    """Return the seconds in which an indexer scores all tokens and stores each head."""
    pairs = work.tokens * work.spec.training.seq_len * indexer.n_heads
    seconds = _fp32_scores_s(work, indexer.head_dim, indexer.n_heads)
    return seconds + work.gpu.stream_s(PLAIN_INDEX_BYTES / work.gpu.element * pairs)


def _plain_loss_s(work: Work, indexer: Indexer) -> Floats:
    """Return the seconds of a loss from stored scores, over all pairs in any case.

    Both passes make the target. The backward scores again, for the gradient of scores
    and for that of weights, and multiplies it with keys and with queries.
    """
    gpu, pairs = work.gpu, work.tokens * work.spec.training.seq_len
    heads, of_indexer = _heads(work), indexer.n_heads
    target_s = _fp32_scores_s(work, latent_down_width(work.model), heads)
    moved = PLAIN_LOSS_BYTES / gpu.element * pairs * heads
    gradients_s = 2 * _fp32_scores_s(work, indexer.head_dim, of_indexer)
    also = PLAIN_GRADIENT_BYTES / gpu.element * pairs * of_indexer
    again_s = 2 * _plain_scores_s(work, indexer) + gradients_s + gpu.stream_s(also)
    return 2 * (target_s + gpu.stream_s(moved)) + again_s
