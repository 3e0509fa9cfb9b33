"""Seconds of one layer's kernels on one GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cost.attention import Attention, attention
from meshwright.cost.efficiency import Efficiency
from meshwright.cost.mlp import FP32_BYTES, Mlp, dense_mlp, mlp
from meshwright.cost.roofline import MISALIGNED, Work, work
from meshwright.cost.transformer import input_norms, output_norms
from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.columns import Columns, Floats
from meshwright.plans.shards import Shards
from meshwright.spec.spec import Spec

MOE_DISPATCH = 3
"""Kernels of a layer with experts against those of a dense one: router, permutation
and a matmul for every local expert come on top."""


@dataclass(frozen=True)
class LayerKernels(Columns):
    """Seconds of one layer's kernels per micro-batch on one GPU, (rows,)."""

    forward_s: Floats
    backward_s: Floats
    attention_s: Floats
    """Of the forward, the core of attention."""
    attention_backward_s: Floats
    weight_s: Floats
    """Of the backward, the matmuls of weight gradients."""
    wait_s: Floats
    """Of the forward, what the GPU waits for a slower host."""
    wait_backward_s: Floats


@dataclass(frozen=True)
class Kernels(Columns):
    """Seconds per layer and micro-batch on one GPU, and of the ends of the model."""

    layer: LayerKernels
    dense: LayerKernels
    """A leading dense layer; as all layers where there are no experts."""
    selective_s: Floats
    """What selective recomputation runs again."""
    embedding_s: Floats
    head_s: Floats
    """Final norm, head and loss, forward and backward."""


def kernels(spec: Spec, efficiency: Efficiency, shards: Shards) -> Kernels:
    """Return the kernel times of a layer."""
    share = work(spec, efficiency, shards)
    heads, experts = attention(share), mlp(share)
    layer = leading = _layer_s(share, heads, experts)
    if spec.model.moe is not None:
        leading = _layer_s(share, heads, dense_mlp(share))
    return Kernels(
        layer=layer,
        dense=leading,
        selective_s=_selective_s(share, heads, experts),
        embedding_s=_embedding_s(share),
        head_s=_head_s(share),
    )


def _selective_s(share: Work, heads: Attention, inner: Mlp) -> Floats:
    """Return the seconds of what selective recomputation runs again in a layer."""
    spec, own = share.spec, framework_of(share.spec).selective
    # Norms before a matmul run again, no others.
    cheap_s = input_norms(spec.model) * _norm_s(share) + inner.activation_s
    if own is None:
        return heads.core_s if spec.training.attention == "plain" else cheap_s
    matmuls_s = own.matmul_share * (heads.matmuls_s + inner.matmuls_s)
    return cheap_s + matmuls_s + own.repeats_attention * heads.core_s


def _layer_s(share: Work, heads: Attention, inner: Mlp) -> LayerKernels:
    """Return the seconds of a layer.

    Kernels queue up behind the host: the slower of the two sets the pace.
    """
    model, dispatch_s = share.model, share.machine.efficiency.dispatch_s
    if inner.routing_s.any():
        dispatch_s *= MOE_DISPATCH
    norms = input_norms(model) + output_norms(model)
    residual_s = 2 * share.machine.stream_s(3 * share.own_tokens * model.d_model)
    streams_s = norms * _norm_s(share) + residual_s + heads.streams_s
    once_s = heads.matmuls_s + inner.matmuls_s + streams_s
    once_s = once_s + inner.activation_s + inner.routing_s
    passes_s = once_s + heads.core_s, 2 * once_s + heads.core_backward_s
    forward_s = np.maximum(passes_s[0], dispatch_s)
    backward_s = np.maximum(passes_s[1], 2 * dispatch_s)
    return LayerKernels(
        forward_s=forward_s,
        backward_s=backward_s,
        attention_s=heads.core_s,
        attention_backward_s=heads.core_backward_s,
        # Each matmul takes the FLOPs and the shape of its forward.
        weight_s=heads.matmuls_s + inner.matmuls_s,
        wait_s=forward_s - passes_s[0],
        wait_backward_s=backward_s - passes_s[1],
    )


def _norm_s(share: Work) -> Floats:
    return share.machine.stream_s(2 * share.own_tokens * share.model.d_model)


def _embedding_s(share: Work) -> Floats:
    """Return the seconds of look-up and a norm after it, forward and twice backward."""
    kernels_s = (1 + share.model.embedding_norm) * 3 * _norm_s(share)
    return kernels_s + share.machine.efficiency.microbatch_s / 2


def _head_s(share: Work) -> Floats:
    """Return the seconds of final norm, head and loss, forward and backward."""
    machine, rows = share.machine, share.model.vocab / share.shards.tp
    # The loss reads and writes the logits in fp32 forward and backward.
    logits_s = 4 * machine.stream_s(FP32_BYTES / machine.element * share.tokens * rows)
    matmul_s = machine.matmul_s(share.tokens, rows, share.model.d_model)
    matmuls_s = (1 + 2 * _slow_down(share)) * matmul_s
    kernels_s = 3 * _norm_s(share) + matmuls_s + logits_s
    return kernels_s + machine.efficiency.microbatch_s / 2


def _slow_down(share: Work) -> Floats:
    """Return how much longer matmuls take that read gradients of the logits.

    Their rows are as long as the vocabulary, which is padded where it is split.
    """
    is_padded = framework_of(share.spec).pads_vocabulary or share.model.vocab % 8 == 0
    return np.where(is_padded | (share.shards.tp > 1), 1.0, MISALIGNED)
