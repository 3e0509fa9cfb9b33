"""Seconds of one layer's kernels on one GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cost.adapters import lora_kernels
from meshwright.cost.attention import Attention, attention
from meshwright.cost.elementwise import (
    loss_bytes_moved,
    norm_passes,
    residual_passes,
    residual_sums,
)
from meshwright.cost.hardware_efficiency import Efficiency
from meshwright.cost.mlp import Mlp, dense_mlp, mlp
from meshwright.cost.parameters_and_flops import input_norms, output_norms
from meshwright.cost.repeated import Repeated, repeated_mlp_s, repeated_s
from meshwright.cost.roofline import MISALIGNED, Work, work
from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.columns import Columns, Floats
from meshwright.plans.skeletons import Shards
from meshwright.spec.spec import Spec

MOE_DISPATCH = 3
"""Number of kernels of a layer with experts over that of a dense layer: router,
permutation and a matmul for every local expert are added."""


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


def kernels(spec: Spec, efficiency: Efficiency, shards: Shards) -> Kernels:
    """Return the kernel times of the blocks of a model."""
    share = work(spec, efficiency, shards)
    heads, experts = attention(share), mlp(share)
    layer = leading = _layer_s(share, heads, experts, spec.model.moe is None)
    if spec.model.moe is not None:
        leading = _layer_s(share, heads, dense_mlp(share), True)
    return Kernels(
        layer=layer,
        dense=leading,
        repeated=repeated_s(share, heads, experts, _norm_s(share)),
        repeated_dense_s=repeated_mlp_s(share, dense_mlp(share), _norm_s(share)),
        embedding_s=_embedding_s(share),
        head_s=_head_s(share),
    )


def _layer_s(share: Work, heads: Attention, inner: Mlp, is_dense: bool) -> LayerKernels:
    """Return the seconds of a layer.

    Frozen matrices have no matmul of weight gradients, but adapters have.
    """
    model = share.model
    norms = input_norms(model) + output_norms(model)
    passes = residual_passes(share.spec)
    residual_s = share.gpu.stream_s(passes * share.gpu_tokens * model.d_model)
    residual_s = residual_sums(share.spec) * residual_s
    streams_s = norms * _norm_s(share) + residual_s + heads.streams_s
    once_s = heads.matmuls_s + inner.matmuls_s + streams_s
    once_s = once_s + inner.activation_s + inner.routing_s
    forward_s, backward_s = once_s + heads.core_s, 2 * once_s + heads.core_backward_s
    # A matmul of weight gradients has the FLOPs and the shape of its forward.
    matmuls_s = heads.matmuls_s + inner.matmuls_s
    weight_s, matmuls_backward_s = matmuls_s, 2 * matmuls_s
    if (lora := share.spec.training.lora) is not None:
        own = lora_kernels(share, lora, is_dense)
        forward_s, backward_s = (
            forward_s + own.forward_s,
            backward_s - weight_s + own.backward_s,
        )
        weight_s, matmuls_backward_s = own.weight_s, matmuls_s
    return LayerKernels(
        forward_s=forward_s,
        backward_s=backward_s,
        attention_s=heads.core_s,
        attention_backward_s=heads.core_backward_s,
        matmuls_s=matmuls_s,
        matmuls_backward_s=matmuls_backward_s,
        weight_s=weight_s,
        dispatch_s=_dispatch_s(share, has_experts=bool(inner.routing_s.any())),
    )


def _dispatch_s(share: Work, has_experts: bool) -> Floats:
    """Return the host's seconds for a forward of a layer, but for whole graphs.

    Graphs of all but the experts leave it what a layer with experts has beyond others.
    """
    one_s = share.gpu.efficiency.dispatch_s * framework_of(share.spec).layer_dispatch
    one_s *= COMPILED_DISPATCH if share.spec.training.compile else 1
    kernels = MOE_DISPATCH if has_experts else 1
    if share.spec.training.cuda_graphs == "outside_experts":
        kernels -= 1
    return np.full(len(share.shards), kernels * one_s)


def _norm_s(share: Work) -> Floats:
    passes = norm_passes(share.spec, share.gpu.element)
    return share.gpu.stream_s(passes * share.gpu_tokens * share.model.d_model)


def _embedding_s(share: Work) -> Floats:
    """Return the seconds of look-up and norm; the backward counts twice.

    Nothing needs the gradients of a frozen table, or of its norm.
    """
    passes = 3 if share.spec.training.lora is None else 1
    look_up_s = share.gpu.stream_s(2 * share.gpu_tokens * share.model.d_model)
    kernels_s = passes * (look_up_s + share.model.embedding_norm * _norm_s(share))
    return kernels_s + share.gpu.efficiency.microbatch_s / 2


def _head_s(share: Work) -> Floats:
    """Return the seconds of final norm, head and loss, forward and backward."""
    gpu, rows = share.gpu, share.model.vocab / share.shards.tp
    moved = loss_bytes_moved(share.spec) / 4
    logits_s = 4 * gpu.stream_s(moved / gpu.element * share.tokens * rows)
    matmul_s = gpu.matmul_s(share.tokens, rows, share.model.d_model)
    gradients = 2 if share.spec.training.lora is None else 1
    matmuls_s = (1 + gradients * _slow_down(share)) * matmul_s
    kernels_s = 3 * _norm_s(share) + matmuls_s + logits_s
    return kernels_s + gpu.efficiency.microbatch_s / 2


def _slow_down(share: Work) -> Floats:
    """Return the slowdown of matmuls that read gradients of the logits.

    Their rows have the length of the vocabulary, which is padded where it is split.
    """
    is_padded = framework_of(share.spec).pads_vocabulary or share.model.vocab % 8 == 0
    return np.where(is_padded | (share.shards.tp > 1), 1.0, MISALIGNED)
