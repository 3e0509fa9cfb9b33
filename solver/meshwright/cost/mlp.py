"""Seconds of an MLP or of experts on one GPU, forward."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.cost.elementwise import activation_passes
from meshwright.cost.parameters_and_flops import expert_width, mlp_inputs
from meshwright.cost.roofline import Sizes, Work
from meshwright.plans.columns import Floats
from meshwright.spec.model_parts import Experts

FP32_BYTES = 4


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


def mlp(work: Work) -> Mlp:
    """Return the seconds of a repeating layer's MLP or experts."""
    if work.model.moe is None:
        return dense_mlp(work)
    return _experts(work, work.model.moe)


def dense_mlp(work: Work) -> Mlp:
    """Return the seconds of an MLP of model.d_ff, split over the tensor group."""
    none = np.zeros(len(work.shards))
    if not work.model.d_ff:
        return Mlp(none, none, none, none, none)
    own = _mlp_s(work, work.tokens, work.model.d_ff / work.shards.tp)
    return Mlp(*own, none, none, none)


def _mlp_s(
    work: Work, tokens: Sizes, inner: Sizes, width: int | None = None
) -> tuple[Floats, Floats]:
    """Return the seconds of the matmuls and of the activation function.

    The MLP reads vectors of `width`, those of the residual stream by default.
    """
    width, inputs = width or work.model.d_model, mlp_inputs(work.model)
    passes = activation_passes(work.spec)
    matmuls_s = work.gpu.linear_s(tokens, inputs * inner, width)
    matmuls_s = matmuls_s + work.gpu.linear_s(tokens, width, inner)
    return matmuls_s, work.gpu.stream_s(passes * tokens * inner)


def _experts(work: Work, moe: Experts) -> Mlp:
    """Return the seconds of router, routed and shared experts.

    Routing is balanced: the experts on a GPU get as many copies of tokens as the GPU
    sends out, in equal shares, padded to their capacity if they have one.
    """
    local = moe.n_experts / work.shards.ep
    copies = work.gpu_tokens * moe.top_k * (moe.capacity_factor or 1.0)
    width = expert_width(work.model, moe)
    one_matmuls_s, _ = _mlp_s(work, copies / local, moe.d_ff, width)
    router_s = work.gpu.matmul_s(work.gpu_tokens, moe.n_experts, work.model.d_model)
    # One kernel over the copies of all experts.
    _, activation_s = _mlp_s(work, copies, moe.d_ff, width)
    shared = np.zeros(len(work.shards)), np.zeros(len(work.shards))
    if moe.shared_d_ff:
        shared = _mlp_s(work, work.tokens, moe.shared_d_ff / work.shards.tp)
    routing_s = _routing_s(work, moe, copies)
    matmuls_s = router_s + local * one_matmuls_s + _latent_s(work, moe)
    return Mlp(matmuls_s, activation_s, *shared, routing_s)


def _latent_s(work: Work, moe: Experts) -> Floats:
    """Return the seconds to project tokens to the width of experts, and back."""
    if not moe.latent_d:
        return np.zeros(len(work.shards))
    wide, tokens = work.model.d_model, work.gpu_tokens
    down_s = work.gpu.linear_s(tokens, moe.latent_d, wide)
    return down_s + work.gpu.linear_s(tokens, wide, moe.latent_d)


def _routing_s(work: Work, moe: Experts, copies: Floats) -> Floats:
    """Return the seconds to choose experts, and to gather and scatter copies of tokens.

    Gather and scatter each read and write every copy once. If copies come from other
    GPUs for several experts, they are also sorted by expert and back (Megatron-LM's
    all-to-all dispatcher). The router's scores are read and written in fp32.
    """
    gpu, ep = work.gpu, work.shards.ep
    scores = work.gpu_tokens * moe.n_experts * FP32_BYTES / gpu.element
    passes = 2 + 2 * ((ep > 1) & (ep < moe.n_experts))
    pass_s = gpu.stream_s(2 * copies * expert_width(work.model, moe))
    return gpu.stream_s(2 * scores) + passes * pass_s
