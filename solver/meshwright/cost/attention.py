"""Seconds of a layer's mixer on one GPU: attention, or a state space.

Attention is its projections and the core between them, whose rate is that of a kernel
on a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.cost.parameters_and_flops import (
    kv_projected,
    kv_shards,
    kv_width,
    latent_down_width,
    latent_up_width,
    output_width,
    query_width,
    scan_macs,
    value_dim,
    value_width,
)
from meshwright.cost.picked_attention import picked_attention
from meshwright.cost.roofline import (
    FP32_BYTES,
    Work,
    norm_passes,
    rotary_passes,
    softmax_passes,
)
from meshwright.cost.saved import Layer, Saved
from meshwright.cost.whole_model import keys_seen
from meshwright.frameworks.base.registry import (
    A100_TFLOPS,
    attention_kernel_of,
    context_exchange_of,
    joins_norms,
)
from meshwright.plans.columns import Floats
from meshwright.spec.gpu import FORMATS
from meshwright.spec.model_parts import LatentAttention, StateSpace


class Attention(NamedTuple):
    """Seconds of one layer's attention."""

    matmuls_s: Floats
    """The projections, forward."""
    streams_s: Floats
    """Kernels that only move bytes, forward: rotary positions and inner norms."""
    from_latents_s: Floats
    """Kernels after latent vectors, part of both: projections to heads, and rotary
    positions; also the norms before the projections where they are fused into them."""
    core_s: Floats
    core_backward_s: Floats


def attention(work: Work) -> Attention:
    """Return the seconds of one layer's attention, or of what stands for it."""
    if work.model.mixer != "attention":
        return _without_attention(work)
    core = _core_s(work)
    rotary_s, norms_s = _rotary_s(work), _inner_norms_s(work)
    latents_s = np.zeros(len(work.shards))
    if work.model.mla is not None:
        latents_s = _up_s(work, work.model.mla) + rotary_s
        latents_s = latents_s + joins_norms(work.spec) * norms_s
    return Attention(_matmuls_s(work), rotary_s + norms_s, latents_s, *core)


def _core_s(work: Work) -> tuple[Floats, Floats]:
    """Return forward and backward seconds of the core, and of an indexer in it."""
    mla = work.model.mla
    if mla is not None and mla.indexer is not None:
        share = attention_share(work, _length(work))
        return picked_attention(work, mla, mla.indexer, share)
    return (_plain_s if work.spec.training.stores_scores else _fused_s)(work)


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
    # Twice the keys that a token sees: its whole text under a causal mask.
    training = work.spec.training
    skips = KERNELS[attention_kernel_of(work.spec)].skips
    seen = 2 * (keys_seen(model, training.text_tokens) if skips else training.seq_len)
    pairs = work.tokens / hops * seen
    held = (kv_width(model) + value_width(model)) / kv_shards(model, tp)
    moved = (1 + work.is_all_wide) * work.tokens * (keys + values + held)
    core_s, share = work.gpu.attention_s, attention_share(work, _length(work))
    forward = hops * core_s(pairs * (keys + values), moved, share)
    backward_flops = pairs * (3 * keys + 2 * values) / BACKWARD_SHARE
    backward = hops * core_s(backward_flops, 2 * moved, share)
    return forward, backward


def _length(work: Work) -> Floats:
    """Return the tokens of a sequence that one kernel gets."""
    whole = work.spec.training.seq_len
    is_ring = context_exchange_of(work.spec) == "ring"
    return whole / (work.shards.cp if is_ring else np.ones(len(work.shards)))


def _plain_s(work: Work) -> tuple[Floats, Floats]:
    """Return forward and backward seconds of a core that stores all scores."""
    model, gpu, seq_len = work.model, work.gpu, work.spec.training.seq_len
    heads = model.n_heads / work.shards.tp
    queries = seq_len / work.shards.cp
    scores = work.tokens / queries * heads
    matmul_s = gpu.misaligned_s if model.head_dim % 8 else gpu.matmul_s
    matmul_s = gpu.fp32_matmul_s if work.is_all_wide else matmul_s
    matmuls_s = matmul_s(queries, seq_len, model.head_dim, scores)
    matmuls_s = matmuls_s + matmul_s(queries, value_dim(model), seq_len, scores)
    passes = softmax_passes(work.spec) + DROPOUT_PASSES * model.dropout
    passes *= 1 + work.is_all_wide
    softmax = gpu.stream_s(passes * work.tokens * seq_len * heads)
    forward = matmuls_s + softmax
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
    wide = work.stream_width
    passes = wide * rotary_passes(work.spec, wide * work.gpu.element)
    return work.gpu.stream_s(passes * work.tokens * (queries + keys))


def _inner_norms_s(work: Work) -> Floats:
    """Return the seconds of norms over latent vectors, or over query and key heads."""
    model, tp, wide = work.model, work.shards.tp, work.stream_width
    passes = wide * norm_passes(work.spec, wide * work.gpu.element)
    if model.mla is not None:
        latent = model.mla.q_rank + model.mla.kv_rank
        return work.gpu.stream_s(passes * work.gpu_tokens * latent)
    if not model.qk_norm:
        return np.zeros(len(work.shards))
    width = query_width(model) / tp + kv_width(model) / kv_shards(model, tp)
    return work.gpu.stream_s(passes * work.tokens * width)


class Kernel(NamedTuple):
    """How fast a kernel is where its heads are 128 wide and sequences are long."""

    share: float
    """Its rate over that of FlashAttention-2 on A100, as shares of the peak."""
    narrow: float
    """Width of a head that halves the rate of infinitely wide ones."""
    is_for_a100: bool = False
    """Whether it uses only instructions of A100."""
    skips: bool = True
    """Whether it leaves out the keys that a token does not see."""
    wide: float = 1.0
    """Its rate in 16 bits over the usual one where heads are so wide that its results
    do not fit registers."""


KERNELS = {
    # 1 / 1.7 of the rate of version 2 at best, and no faster with wide heads (Dao 2023,
    # FlashAttention-2, section 4.1 and figures 4 to 6)
    "flash1": Kernel(share=0.55, narrow=0, is_for_a100=True),
    # 1 / 1.3 to 1 / 2.5 of it (there); the kernels of 2023
    "triton": Kernel(share=0.67, narrow=0, is_for_a100=True),
    # On H100 335 TFLOP/s forward of 616 of version 3; 299 with heads 64 wide (Shah et
    # al. 2024, FlashAttention-3, figure 5); on B200 no more (tritonbench, 171)
    "flash2": Kernel(share=1.0, narrow=18, is_for_a100=True),
    # 616 of 989 TFLOP/s forward on H100, 473 with narrow heads (there)
    "flash3": Kernel(share=1.13, narrow=50),
    # 1,418 of 2,250 TFLOP/s forward on B200 (flash-attention, 2280)
    "flash4": Kernel(share=1.19, narrow=50),
    # 539 and 388 TFLOP/s on H100 (Shah et al. 2024, figure 5); on B200 1,112 of 2,250
    # (SimuMax, b200_bf16_ceperm.json)
    "cudnn": Kernel(share=1.0, narrow=50),
    # xFormers' kernel, which PyTorch takes where there is a mask (2.13
    # transformers/cuda/sdp_utils.cpp: check_for_attn_mask): it multiplies all that the
    # mask then takes away. Less than half the rate of version 2, as Llama trains with
    # it on A100 and H100 (ljm565/universal-llm-trainer aefdc4a, docs/gpu_test.md)
    "efficient": Kernel(share=0.45, narrow=18, is_for_a100=True, skips=False, wide=0.4),
}

IN_FP32 = 0.12
"""Rate of attention in fp32 over that in 16 bits: PyTorch's kernel splits each number
and takes three products of TF32, which is half as fast (mem_eff_attention,
gemm_kernel_utils.h: OpMultiplyAddFastF32), and splitting takes a third more (with
4-bit weights there)."""

A100_SHARE = 0.63
"""Share of H100's peak that the instructions of A100 reach (Luo et al. 2024,
'Benchmarking and dissecting the Nvidia Hopper GPU architecture', mma against wgmma)."""

MOST_A100_FLOPS = A100_SHARE * 989e12
"""FLOP/s of them on H100. Faster GPUs run them no faster: on B200 FlashAttention-2 has
360 TFLOP/s forward, on H100 370."""

BLACKWELL_TFLOPS = 2_000
"""Peak in 16 bits above which a GPU has instructions newer than those of H100: data-
centre Blackwell and CDNA 4 (2,250 and more), not CDNA 3 (1,307)."""

HALF_LENGTH = 300
"""Tokens of a sequence at which a causal kernel reaches half of the rate of long ones:
blocks on the diagonal are half wasted, and few blocks start and end slowly. On H100
1,024 tokens reach 0.69 (version 3) to 0.78 (version 2) of what 16,384 do, 4,096 tokens
0.94 to 0.96 (Shah et al. 2024, figure 5)."""

USUAL_WIDTH = 128

SMALL_SHARED_KIB = 128
"""Shared memory of a multiprocessor up to which tiles of 128 rows do not fit: GPUs have
100 KiB or 164 and more."""


def attention_share(work: Work, length: Floats) -> Floats:
    """Return the rate of the spec's kernel over that of the best on long sequences.

    `length` is that of the sequences which the kernel gets.
    """
    kernel = KERNELS[attention_kernel_of(work.spec)]
    width = min(work.model.head_dim, USUAL_WIDTH)
    wide = width / (width + kernel.narrow)
    usual = USUAL_WIDTH / (USUAL_WIDTH + kernel.narrow)
    share = kernel.share * wide / usual * _instructions(work, kernel)
    if work.is_all_wide:
        share *= IN_FP32
    elif work.model.head_dim > _widest(work):
        share *= kernel.wide
    return share * length / (length + HALF_LENGTH)


def _widest(work: Work) -> int:
    """Return the width of heads up to which results stay in registers.

    Tiles are as high as heads are wide, and of 128 rows only where shared memory holds
    them (PyTorch, mem_eff_attention/kernels/generate_kernels.py: `BwdKernel.get_all`).
    A kernel for heads up to 96 on compute capabilities 8.6 and 8.9 is left out.
    """
    kib = work.spec.cluster.topology.gpu.shared_memory_kib
    return USUAL_WIDTH if kib > SMALL_SHARED_KIB else USUAL_WIDTH // 2


def _instructions(work: Work, kernel: Kernel) -> float:
    """Return the share of the GPU's peak that the instructions of a kernel reach.

    On Blackwell those of A100 have an efficiency for themselves.
    """
    if not kernel.is_for_a100:
        return 1.0
    training, gpu = work.spec.training, work.spec.cluster.topology.gpu
    peak_flops = gpu.peak_tflops.flops(FORMATS[training.precision].core)
    # A GPU of a higher peak runs the same instructions no slower.
    reached = min(max(A100_TFLOPS * 1e12, A100_SHARE * peak_flops), MOST_A100_FLOPS)
    share = min(1.0, reached / peak_flops)
    if peak_flops > BLACKWELL_TFLOPS * 1e12:
        share *= work.gpu.efficiency.older_attention / work.gpu.efficiency.attention
    return share


STATE_PASSES = 4
"""Times that the state of a chunk is moved: written, read and written as it is passed
on, and read by the scan (mamba_ssm 2.2, ops/triton/ssd_combined.py)."""

BACKWARD_SCANS = 3
"""Seconds of a scan's backward over its forward: states are computed again, and the
gradients of both inputs of every matmul (same file, _mamba_chunk_scan_combined_bwd)."""


class StateSpaceSeconds(NamedTuple):
    """Seconds of one layer's state space."""

    matmuls_s: Floats
    """The projections, forward."""
    streams_s: Floats
    """The convolution and the gated norm, forward."""
    core: tuple[Floats, Floats]
    """The scan, forward and backward."""


def state_space_seconds(work: Work, mixer: StateSpace) -> StateSpaceSeconds:
    """Return the seconds of projections, convolution, scan and norm."""
    gpu, tp, tokens = work.gpu, work.shards.tp, work.tokens
    matmuls_s = gpu.linear_s(tokens, mixer.input_width / tp, work.model.d_model)
    matmuls_s = matmuls_s + gpu.linear_s(tokens, work.model.d_model, mixer.inner / tp)
    # The norm reads the result and its gate.
    streams_s = gpu.stream_s(2 * tokens * mixer.conv_width / tp)
    streams_s = streams_s + gpu.stream_s(3 * tokens * mixer.inner / tp)
    forward_s = _scan_s(work, mixer)
    return StateSpaceSeconds(
        matmuls_s, streams_s, (forward_s, BACKWARD_SCANS * forward_s)
    )


def _scan_s(work: Work, mixer: StateSpace) -> Floats:
    """Return the seconds of a scan in chunks: its matmuls, or the bytes that they move.

    Inputs are read for the states and again for the results. States, one per chunk,
    and scores inside chunks are moved in fp32.
    """
    wide = FP32_BYTES / work.gpu.element
    states = STATE_PASSES * wide * mixer.inner * mixer.state_dim / mixer.chunk
    scores = 2 * wide * mixer.groups * mixer.chunk
    moved = 2 * mixer.conv_width + mixer.inner + states + scores
    flops = 2 * scan_macs(mixer, is_causal=False) * work.tokens / work.shards.tp
    return work.gpu.attention_s(flops, moved * work.tokens / work.shards.tp)


def saved_state_space(layer: Layer, mixer: StateSpace) -> list[Saved]:
    """Return the tensors that a state space saves for its backward.

    The fused kernel of Mamba-2 keeps the result of the first projection and that of the
    scan, and computes the convolution and the states again (mamba_ssm 2.2,
    ops/triton/ssd_combined.py: MambaSplitConv1dScanCombinedFn). A delta net also keeps
    the result of the convolution, and an inverse as wide as a chunk for every head
    (flash-linear-attention 0.3, ops/gated_delta_rule/chunk.py). The norm and the last
    projection save their inputs.
    """
    tensors = [
        layer.saved("state-space input", mixer.input_width, "tensor"),
        layer.saved("scan result", mixer.inner, "tensor"),
        layer.saved("state-space norm input", mixer.inner, "tensor"),
        Saved(
            "state-space output", layer.matmul_input("out_proj") * mixer.inner, "tensor"
        ),
    ]
    if mixer.form == "delta_net":
        inverse = mixer.n_heads * mixer.chunk
        tensors.append(layer.saved("delta rule", mixer.conv_width + inverse, "tensor"))
    return tensors
