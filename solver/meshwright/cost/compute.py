"""Seconds of a layer's kernels on one GPU: forward, and repeated by recomputation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.cost.activations import norm_bits, repeated_matmuls_s
from meshwright.cost.attention import Attention, attention
from meshwright.cost.job import Efficiency
from meshwright.cost.parameters_and_flops import (
    expert_params,
    expert_width,
    input_norms,
    mlp_inputs,
    output_norms,
)
from meshwright.cost.picked_attention import picking_operations
from meshwright.cost.roofline import (
    FP32_BYTES,
    MISALIGNED,
    Sizes,
    Work,
    activation_passes,
    loss_bytes_moved,
    norm_passes,
    residual_passes,
    residual_sums,
    work,
)
from meshwright.cost.state import copies_of_token, layer_state, trains_ends
from meshwright.cost.text_loops import LAYER_OPERATIONS, LoopSeconds, text_loops
from meshwright.cost.weights import adapters, lora_kernels, matrices
from meshwright.frameworks.base.registry import (
    expert_passes,
    framework_of,
    fused_of,
    stops_recompute,
    sums_by_index,
    weights_experts_apart,
)
from meshwright.plans.columns import Columns, Floats, Ints
from meshwright.plans.skeletons import (
    CHEAP,
    CORE_ATTN,
    MLA_UP_PROJ,
    MLP,
    MOE,
    MOE_ACT,
    PER_OP,
    SHARED_EXPERTS,
    Shards,
)
from meshwright.spec.model import Model
from meshwright.spec.model_parts import Experts
from meshwright.spec.spec import Spec
from meshwright.spec.training import Lora

MOE_DISPATCH = 2.4
"""Number of kernels of a layer with experts, without those of every expert, over that
of a dense layer, some 25: router, permutation and exchanges are added."""

DEEPEP_DISPATCH = 1.8
"""The same where DeepEP or HybridEP exchanges tokens: 8 of 25 kernels in the place of
23, which count, gather and copy numbers of tokens, permute, exchange tokens and
weights, and sort them (megatron-core d98e8a64, transformer/moe/token_dispatcher.py:
`MoEAlltoAllTokenDispatcher`, `_DeepepManager`, `_HybridEPManager`).

In fp8 others take their place: padding and its end, casts of every expert's inputs, and
the order of their scales (transformer/moe/experts.py: `quantization_padding`;
Transformer Engine d0067d0, csrc/extensions/cast.cpp: `multi_tensor_quantize_impl`).
Counted beside all-to-all as well, sources that a fit has not seen come out worse."""

EXPERT_DISPATCH = 0.08
"""The same of every expert on the GPU: its two matmuls."""

QUERY_NORM_DISPATCH = 0.3
"""The same of norms of queries and keys: two modules beside five of Transformer Engine
(Megatron Core 0.19, transformer/attention.py: `q_layernorm`, `k_layernorm`), or seven
operations each of some 50, as unfused norms are."""

ADAPTER_DISPATCH = 0.3
"""Number of kernels of an adapter over that of a layer: of 25, dropout, A, B, a scale,
a sum and casts (peft, tuners/lora/layer.py: Linear.forward)."""

UNPACKED_DISPATCH = 0.2
"""The same of bringing a quantised matrix to 16 bits in a pass: of 25, scales, their
offset, room for the result, the matrix and a cast (bitsandbytes 0.41, functional.py:
dequantize_4bit)."""

EXPOSED_SUMS = 0.45
"""Share of the reads and writes of sums of gradients that no matmul of experts hides.

Such matmuls take longer than those of the forward by the time of 0.36 of these bytes at
the peak of A100's memory, of 0.26 to 0.32 on B200, of which streams reach three
quarters (SimuMax 4dcaae5, configs/system/a100_pcie.json and b200_bf16_ceperm.json,
`group_matmul`, `stage=bwd_grad_w`). Matmuls of many tokens show as much for each byte;
there it is a part of fitted efficiencies, since it goes with the FLOPs: priced beside
these, sources that a fit has not seen come out worse."""

COMPILED_DISPATCH = 0.5
"""Host time of compiled kernels over that of operations: they are half as many."""


@dataclass(frozen=True)
class LayerKernels(Columns):
    """Seconds of one layer's kernels per micro-batch on one GPU, (rows,)."""

    forward_s: Floats
    backward_s: Floats
    attention_s: Floats
    """The core of attention, part of the forward."""
    attention_backward_s: Floats
    """The core of attention, part of the backward."""
    matmuls_s: Floats
    """The matmuls with weights, part of the forward."""
    matmuls_backward_s: Floats
    """The matmuls with weights and of their gradients, part of the backward."""
    weight_s: Floats
    """The matmuls of weight gradients, part of the backward."""
    dispatch_s: Floats
    """The time in which the host starts the kernels of a forward."""
    dispatch_backward_s: Floats
    awaited_s: Floats
    """The part of a forward's before which the host waits for the GPU."""
    awaited_backward_s: Floats
    unneeded_s: Floats
    """The part of the forward that recomputation of the whole layer leaves out."""


@dataclass(frozen=True)
class Kernels(Columns):
    """Seconds of kernels per micro-batch on one GPU, one row per set of shards."""

    layer: LayerKernels
    dense: LayerKernels
    """A leading dense layer; the same as `layer` without experts."""
    repeated: Repeated
    """The kernels of a layer that selective recomputation repeats."""
    repeated_dense_s: Floats
    """The kernels of a leading layer that recomputing `mlp` repeats."""
    embedding_s: Floats
    head_s: Floats
    """Final norm, head and loss, forward and backward."""
    beside_mtp_s: Floats
    """What a layer that predicts a further token has beside a layer, both ways."""


def kernels(
    spec: Spec, efficiency: Efficiency, shards: Shards, recomputed: int = ~0
) -> Kernels:
    """Return the kernel times of the blocks of a model.

    `recomputed` is what selective recomputation repeats in some plan, as bits; all of
    it, unless said.
    """
    share = work(spec, efficiency, shards)
    heads, dense, loops = attention(share), dense_mlp(share), text_loops(share)
    inner, norm_s = dense, _norm_s(share)
    layer = leading = _layer_s(share, heads, dense, loops, True)
    if spec.model.moe is not None:
        inner = _experts(share, spec.model.moe)
        layer = _layer_s(share, heads, inner, loops, False)
    return Kernels(
        layer=layer,
        dense=leading,
        repeated=_repeated_s(share, heads, inner, loops, norm_s, recomputed),
        repeated_dense_s=repeated_mlp_s(share, dense, norm_s),
        embedding_s=_embedding_s(share),
        head_s=_head_s(share),
        beside_mtp_s=_beside_mtp_s(share),
    )


def _layer_s(
    share: Work, heads: Attention, inner: Mlp, loops: LoopSeconds, is_dense: bool
) -> LayerKernels:
    """Return the seconds of a layer.

    Frozen matrices have no matmul of weight gradients, but adapters have.
    """
    model, residual_s = share.model, _residual_s(share)
    norms = input_norms(model) + output_norms(model)
    streams_s = norms * _norm_s(share) + residual_s + heads.streams_s
    once_s = heads.matmuls_s + inner.matmuls_s + streams_s
    once_s = once_s + inner.activation_s + inner.routing_s
    forward_s, backward_s = once_s + heads.core_s, 2 * once_s + heads.core_backward_s
    if "residual" in fused_of(share.spec):
        # The backward of the norm adds up the gradients.
        backward_s = backward_s - 2 * residual_s
    # A matmul of weight gradients has the FLOPs and the shape of its forward.
    matmuls_s, sums_s = heads.matmuls_s + inner.matmuls_s, _sums_s(share, is_dense)
    weight_s, matmuls_backward_s = matmuls_s + sums_s, 2 * matmuls_s + sums_s
    backward_s = backward_s + sums_s
    if is_dense and share.spec.training.mlp_chunks > 1:
        # The backward of each part repeats its forward (deepspeed 0.19.8,
        # runtime/sequence_parallel/ulysses_sp.py: TiledMLP).
        backward_s = backward_s + repeated_mlp_s(share, inner, 0 * sums_s)
    if (lora := share.spec.training.lora) is not None:
        low_rank = lora_kernels(share, lora, is_dense)
        forward_s, backward_s = (
            forward_s + low_rank.forward_s,
            backward_s - weight_s + low_rank.backward_s,
        )
        weight_s, matmuls_backward_s = low_rank.weight_s, matmuls_s
    dispatch_s = _dispatch_s(share, is_dense, bool(inner.routing_s.any()))
    picking = picking_operations(share)
    one_s = share.gpu.efficiency.dispatch_s / LAYER_OPERATIONS
    return LayerKernels(
        forward_s=forward_s,
        backward_s=backward_s,
        attention_s=heads.core_s,
        attention_backward_s=heads.core_backward_s,
        matmuls_s=matmuls_s,
        matmuls_backward_s=matmuls_backward_s,
        weight_s=weight_s,
        dispatch_s=dispatch_s + loops.forward_s + one_s * picking.forward,
        dispatch_backward_s=2 * dispatch_s
        + loops.backward_s
        + one_s * picking.backward,
        awaited_s=_awaited_s(share, is_dense) + loops.forward_s,
        awaited_backward_s=loops.exchange_backward_s,
        unneeded_s=_unneeded_s(share, is_dense),
    )


def _sums_s(share: Work, is_dense: bool) -> Floats:
    """Return the seconds in which gradients of experts are added to those of the step.

    Their matmuls read and write the sums for every micro-batch, of which each expert
    sees few tokens.
    """
    spec = share.spec
    is_frozen = spec.training.lora is not None
    if is_dense or is_frozen or not framework_of(spec).has_gradient_buffers:
        return np.zeros(len(share.shards))
    passes = 2 * layer_state(spec).gradients / share.gpu.element
    params = expert_params(share.model, share.shards.expert_gpus)
    return EXPOSED_SUMS * share.gpu.stream_s(passes * params)


def _unneeded_s(share: Work, is_dense: bool) -> Floats:
    """Return the seconds of the last matmul where recomputation stops before it.

    A norm, dropout or an adapter after it needs its result, and so do experts, whose
    results are weighed. The code of 8-bit and 4-bit matmuls keeps tensors only after
    the matmul, so that it runs unless a compiler leaves it out.
    """
    model, training = share.model, share.spec.training
    lora, none = training.lora, np.zeros(len(share.shards))
    needs = output_norms(model) or model.dropout or not (is_dense and model.d_ff)
    needs = needs or (lora is not None and "down_proj" in lora.projections)
    is_cast = share.gpu.fp8_flops is not None
    is_cast = is_cast or (lora is not None and lora.is_quantised)
    needs = needs or (is_cast and not training.compile)
    if needs or not stops_recompute(share.spec):
        return none
    return share.gpu.linear_s(share.tokens, model.d_model, model.d_ff / share.shards.tp)


def _dispatch_s(share: Work, is_dense: bool, has_experts: bool) -> Floats:
    """Return the host's seconds for a forward of a layer, but for whole graphs.

    Graphs of all but the experts leave it what a layer with experts has beyond others.
    """
    one_s = share.gpu.efficiency.dispatch_s * framework_of(share.spec).layer_dispatch
    one_s *= COMPILED_DISPATCH if share.spec.training.compile else 1
    kernels = (
        _kernels_with_experts(share) if has_experts else np.ones(len(share.shards))
    )
    usual = 1.0
    model = share.model
    if model.qk_norm and model.mla is None and model.mixer == "attention":
        usual += QUERY_NORM_DISPATCH
    kernels = kernels - 1 + usual
    if (lora := share.spec.training.lora) is not None:
        kernels = kernels + _kernels_beside(share.model, lora, is_dense)
    if share.spec.training.cuda_graphs == "outside_experts":
        kernels = kernels - usual
    return kernels * one_s


def _kernels_beside(model: Model, lora: Lora, is_dense: bool) -> float:
    """Return the kernels of adapters and quantised matrices over those of a layer.

    Routed experts are left out.
    """
    kernels = ADAPTER_DISPATCH * len(adapters(model, lora, is_dense))
    if lora.is_quantised:
        kernels += UNPACKED_DISPATCH * len(matrices(model, lora, is_dense))
    return kernels


def _kernels_with_experts(share: Work) -> Floats:
    """Return the kernels of a layer with experts over those of a dense layer."""
    experts = share.model.moe.n_experts if share.model.moe else 0
    is_deepep = share.spec.training.expert_dispatch == "deepep"
    has_few = is_deepep and share.gpu.fp8_flops is None
    routed = DEEPEP_DISPATCH if has_few else MOE_DISPATCH
    return routed + EXPERT_DISPATCH * experts / share.shards.ep


def _awaited_s(share: Work, is_dense: bool) -> Floats:
    """Return the host's seconds in a forward which no kernel runs beside.

    To start the kernels of experts that drop no token the host needs the tokens of
    each, which it waits for (megatron-core, transformer/moe/token_dispatcher.py:
    `tokens_per_expert`). The GPU has nothing left to do then.
    """
    moe, efficiency = share.model.moe, share.gpu.efficiency
    waits = not is_dense and moe is not None and not moe.capacity_factor
    one_s = efficiency.dispatch_s * framework_of(share.spec).layer_dispatch
    one_s *= COMPILED_DISPATCH if share.spec.training.compile else 1
    return waits * (_kernels_with_experts(share) - 1) * one_s


def _residual_s(share: Work) -> Floats:
    """Return the seconds of the residual sums of a layer's forward."""
    passes = share.stream_width * residual_passes(share.spec)
    one_s = share.gpu.stream_s(passes * share.gpu_tokens * share.model.d_model)
    return residual_sums(share.spec) * one_s


def _norm_s(share: Work) -> Floats:
    wide = share.stream_width
    passes = wide * norm_passes(share.spec, wide * share.gpu.element)
    return share.gpu.stream_s(passes * share.gpu_tokens * share.model.d_model)


def _embedding_s(share: Work) -> Floats:
    """Return the seconds of look-up and norm; the backward counts twice.

    Nothing needs the gradients of a frozen table, or of its norm.
    """
    passes = 3 if trains_ends(share.spec) else 1
    look_up_s = share.gpu.stream_s(2 * share.gpu_tokens * share.model.d_model)
    kernels_s = passes * (look_up_s + share.model.embedding_norm * _norm_s(share))
    return kernels_s + share.gpu.efficiency.microbatch_s / 2


def _head_s(share: Work) -> Floats:
    """Return the seconds of final norm, head and loss, forward and backward."""
    gpu, rows = share.gpu, share.model.vocab / share.shards.tp
    moved = loss_bytes_moved(share.spec) / 4
    logits_s = 4 * gpu.stream_s(moved / gpu.element * share.tokens * rows)
    matmul = gpu.fp32_matmul_s if share.is_all_wide else gpu.matmul_s
    matmul_s = matmul(share.tokens, rows, share.model.d_model)
    gradients = 2 if trains_ends(share.spec) else 1
    matmuls_s = (1 + gradients * _slow_down(share)) * matmul_s
    kernels_s = 3 * _norm_s(share) + matmuls_s + logits_s
    return kernels_s + gpu.efficiency.microbatch_s / 2


def _beside_mtp_s(share: Work) -> Floats:
    """Return the seconds of a token's prediction beside a layer, forward and backward.

    They are the embedding of the next token, two norms, a matmul that joins it with the
    stream, and once more the final norm, the head and the loss.
    """
    if not share.model.mtp_layers:
        return np.zeros(len(share.shards))
    gpu, width = share.gpu, share.model.d_model
    joined_s = gpu.linear_s(share.tokens, width / share.shards.tp, 2 * width)
    # Read and written: rows of the table, and both halves of what is joined.
    moved_s = gpu.stream_s((2 + 4) * share.gpu_tokens * width)
    return _head_s(share) + 3 * (joined_s + 2 * _norm_s(share) + moved_s)


def _slow_down(share: Work) -> Floats:
    """Return the slowdown of matmuls that read gradients of the logits.

    Their rows have the length of the vocabulary, which is padded where it is split.
    """
    is_padded = framework_of(share.spec).pads_vocabulary or share.model.vocab % 8 == 0
    return np.where(is_padded | (share.shards.tp > 1), 1.0, MISALIGNED)


class Mlp(NamedTuple):
    """Seconds of one layer's MLP, forward."""

    own_matmuls_s: Floats
    """The matmuls of the MLP, or of router and routed experts."""
    own_activation_s: Floats
    shared_matmuls_s: Floats
    """The matmuls of shared experts."""
    shared_activation_s: Floats
    routing_s: Floats
    """Router scores, and moves of tokens to experts and back inside the GPU."""

    @property
    def matmuls_s(self) -> Floats:
        """Return the seconds of all matmuls."""
        return self.own_matmuls_s + self.shared_matmuls_s

    @property
    def activation_s(self) -> Floats:
        """Return the seconds of all activation functions."""
        return self.own_activation_s + self.shared_activation_s


def dense_mlp(work: Work) -> Mlp:
    """Return the seconds of an MLP of model.d_ff, split over the tensor group."""
    none = np.zeros(len(work.shards))
    if not work.model.d_ff:
        return Mlp(none, none, none, none, none)
    mlp_s = _mlp_s(work, work.tokens, work.model.d_ff / work.shards.tp)
    return Mlp(*mlp_s, none, none, none)


def _mlp_s(work: Work, tokens: Sizes, inner: Sizes) -> tuple[Floats, Floats]:
    """Return the seconds of the matmuls and of the activation function."""
    matmuls_s = _matmuls_s(work, tokens, inner, work.model.d_model, work.gpu.linear_s)
    return matmuls_s, _activation_s(work, tokens * inner)


def _matmuls_s(
    work: Work,
    tokens: Sizes,
    inner: Sizes,
    width: int,
    linear_s: Callable[[Sizes, Sizes, Sizes], Floats],
) -> Floats:
    """Return the seconds of the matmuls of an MLP that reads vectors of `width`."""
    inputs = mlp_inputs(work.model) * inner
    return linear_s(tokens, inputs, width) + linear_s(tokens, width, inner)


def _activation_s(work: Work, numbers: Sizes) -> Floats:
    """Return the seconds to activate inner numbers of MLPs, in one kernel."""
    passes = work.stream_width * activation_passes(work.spec)
    return work.gpu.stream_s(passes * numbers)


def _experts(work: Work, moe: Experts) -> Mlp:
    """Return the seconds of router, routed and shared experts.

    The experts of the fullest GPU get equal shares of the copies of tokens.
    """
    local = moe.n_experts / work.shards.ep
    # All GPUs that split an expert get the tokens of all of them.
    copies = work.gpu_tokens * work.shards.etp
    copies = copies * copies_of_token(work.spec, work.shards)
    width, inner = expert_width(work.model, moe), moe.d_ff / work.shards.etp
    has_grouped = framework_of(work.spec).has_torch_experts
    linear_s = work.gpu.grouped_s if has_grouped else work.gpu.linear_s
    one_matmuls_s = _matmuls_s(work, copies / local, inner, width, linear_s)
    router_s = work.gpu.matmul_s(work.gpu_tokens, moe.n_experts, work.model.d_model)
    # One kernel over the copies of all experts.
    activation_s = _activation_s(work, copies * inner)
    activation_s = activation_s + _unfused_s(work, moe, copies, copies * width)
    shared = np.zeros(len(work.shards)), np.zeros(len(work.shards))
    if moe.shared_d_ff:
        shared = _mlp_s(work, work.tokens, moe.shared_d_ff / work.shards.tp)
    routing_s = _routing_s(work, moe, copies)
    matmuls_s = router_s + local * one_matmuls_s + _latent_s(work, moe)
    return Mlp(matmuls_s, activation_s, *shared, routing_s)


def _unfused_s(work: Work, moe: Experts, copies: Floats, results: Floats) -> Floats:
    """Return the seconds to limit what experts activate, and to add their biases.

    `results` are numbers. Graphs of whole steps have the kernels that do both while
    they multiply, since no graph holds a loop over experts (megatron-core,
    `TEGroupedMLP._apply_bias` and `_is_fused_impl_supported`).
    """
    seconds = np.zeros(len(work.shards))
    if work.spec.training.cuda_graphs is True:
        return seconds
    bias_passes, limit_passes = expert_passes(work.spec)
    if work.model.has_mlp_bias:
        seconds = seconds + work.gpu.stream_s(bias_passes * results)
    if moe.activation_limit is not None and limit_passes:
        limited = copies * moe.d_ff / work.shards.etp
        seconds = seconds + work.gpu.stream_s(limit_passes * limited)
    return seconds


def _latent_s(work: Work, moe: Experts) -> Floats:
    """Return the seconds to project tokens to the width of experts, and back."""
    if not moe.latent_d:
        return np.zeros(len(work.shards))
    wide, tokens = work.model.d_model, work.gpu_tokens
    down_s = work.gpu.linear_s(tokens, moe.latent_d, wide)
    return down_s + work.gpu.linear_s(tokens, wide, moe.latent_d)


WEIGHTING_PASSES = 5
"""Bytes in which results are cast to fp32, multiplied by their weights and cast back,
6, 8 and 6 a number, over those in which they are read and written in 16 bits."""


INDEXED_PASSES = 6.5
"""Passes in which PyTorch adds rows by index, the scatter and the backward of a gather:
B200 took 1.85 ms for 196,608 rows of 2,048 numbers in 16 bits (torchao, pull request
4623), of 7.7 TB/s of which streams reach three quarters."""


def _routing_s(work: Work, moe: Experts, copies: Floats) -> Floats:
    """Return the seconds to choose experts, and to gather and scatter copies of tokens.

    Gather and scatter each read and write every copy once; PyTorch's take longer. If
    copies come from other GPUs for several experts, they are also sorted by expert and
    back (Megatron-LM's all-to-all dispatcher). The router's scores are read and written
    in fp32. To weight results in fp32 by operations of their own is to cast, multiply
    and cast them.
    """
    gpu, shards = work.gpu, work.shards
    scores = work.gpu_tokens * moe.n_experts * FP32_BYTES / gpu.element
    is_sorted = (shards.expert_gpus > 1) & (shards.ep < moe.n_experts)
    scatter_passes = INDEXED_PASSES if sums_by_index(work.spec) else 1
    apart_passes = WEIGHTING_PASSES * weights_experts_apart(work.spec)
    passes = 1 + scatter_passes + 2 * is_sorted + apart_passes
    pass_s = gpu.stream_s(2 * copies * expert_width(work.model, moe))
    return gpu.stream_s(2 * scores) + passes * pass_s


Repeated = dict[int, Floats]
"""Seconds of groups of kernels, by the bits of which any one repeats them."""


def _repeated_s(
    work: Work,
    heads: Attention,
    inner: Mlp,
    loops: LoopSeconds,
    norm_s: Floats,
    recomputed: int,
) -> Repeated:
    """Return the seconds that selective recomputation repeats of a repeated layer.

    `norm_s` is what a norm over the width of the model takes. Of groups that no plan
    repeats there are none.
    """
    if not recomputed:
        return {}
    is_flash = not work.spec.training.stores_scores
    is_dense = not work.model.moe
    cheap = CHEAP * is_flash
    attention_norm, mlp_norm = norm_bits(work.spec, is_dense)
    mlp_or_experts = MLP if is_dense else MOE
    has_two = input_norms(work.model) > 1
    is_latent = work.model.mla is not None
    groups = [
        (CORE_ATTN | CHEAP * (not is_flash), heads.core_s),
        (CORE_ATTN, loops.exchange_s),
        (MLA_UP_PROJ, heads.from_latents_s + is_latent * loops.positions_s),
        (attention_norm | cheap, norm_s),
        (mlp_norm | cheap, has_two * norm_s),
        (mlp_or_experts, inner.own_matmuls_s + inner.routing_s),
        (mlp_or_experts | cheap | MOE_ACT * (not is_dense), inner.own_activation_s),
        (MOE | SHARED_EXPERTS, inner.shared_matmuls_s),
        (MOE | SHARED_EXPERTS | cheap, inner.shared_activation_s),
        (PER_OP, _per_op_s(work, heads, inner, norm_s)),
    ]
    if (lora := work.spec.training.lora) is not None:
        adapters_s = lora_kernels(work, lora, is_dense).mlp_s
        groups.append((MLP if is_dense else MOE | SHARED_EXPERTS, adapters_s))
    result: Repeated = {}
    for bits, seconds in groups:
        if bits & recomputed:
            result[bits] = result.get(bits, 0.0) + seconds
    return result


def repeated_mlp_s(work: Work, inner: Mlp, norm_s: Floats) -> Floats:
    """Return the seconds that recomputing `mlp` repeats of a layer without experts."""
    _, mlp_norm = norm_bits(work.spec, is_dense=True)
    has_norm = bool(mlp_norm & MLP) and input_norms(work.model) > 1
    seconds = inner.matmuls_s + inner.activation_s + has_norm * norm_s
    if (lora := work.spec.training.lora) is not None:
        seconds = seconds + lora_kernels(work, lora, is_dense=True).mlp_s
    return seconds


def _per_op_s(work: Work, heads: Attention, inner: Mlp, norm_s: Floats) -> Floats:
    """Return the seconds repeated by operations: see `repeated_matmuls_s`."""
    norms = input_norms(work.model) + output_norms(work.model)
    streams_s = norms * norm_s + _residual_s(work) + heads.streams_s
    streams_s = streams_s + inner.activation_s + inner.routing_s
    is_dense = work.model.moe is None
    routed_s = 0.0 if is_dense else inner.own_matmuls_s
    return streams_s + repeated_matmuls_s(work, is_dense) + routed_s


def of_bits(repeated: Repeated, bits: Ints) -> Floats:
    """Return the seconds that rows with these bits repeat."""
    result = np.zeros(len(bits))
    for group, seconds in repeated.items():
        result = result + np.where(bits & group > 0, seconds, 0.0)
    return result
