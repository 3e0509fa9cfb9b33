"""Seconds of an MLP, or of the experts in its place, on one GPU, forward."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.cost.roofline import Sizes, Work
from meshwright.cost.transformer import mlp_inputs
from meshwright.plans.columns import Floats
from meshwright.spec.model import Experts

FP32_BYTES = 4


class Mlp(NamedTuple):
    """Seconds of one layer's MLP, forward."""

    matmuls_s: Floats
    activation_s: Floats
    routing_s: Floats
    """What moves tokens to experts and back inside the GPU."""


def mlp(work: Work) -> Mlp:
    """Return the seconds of a repeating layer's MLP or experts."""
    if work.model.moe is None:
        return dense_mlp(work)
    return _experts(work, work.model.moe)


def dense_mlp(work: Work) -> Mlp:
    """Return the seconds of an MLP of model.d_ff, split over the tensor group."""
    no_routing = np.zeros(len(work.shards))
    return Mlp(*_mlp_s(work, work.tokens, work.model.d_ff / work.shards.tp), no_routing)


def _mlp_s(work: Work, tokens: Sizes, inner: Sizes) -> tuple[Floats, Floats]:
    """Return the seconds of the matmuls and of the activation function."""
    width, inputs = work.model.d_model, mlp_inputs(work.model)
    matmuls_s = work.machine.linear_s(tokens, inputs * inner, width)
    matmuls_s = matmuls_s + work.machine.linear_s(tokens, width, inner)
    return matmuls_s, work.machine.stream_s((inputs + 1) * tokens * inner)


def _experts(work: Work, moe: Experts) -> Mlp:
    """Return the seconds of router, routed and shared experts.

    Routing is balanced: the experts on a GPU see as many copies as it sends out,
    padded to their capacity where they have one, each its share of them.
    """
    local = moe.n_experts / work.shards.ep
    copies = work.own_tokens * moe.top_k * (moe.capacity_factor or 1.0)
    one_matmuls_s, _ = _mlp_s(work, copies / local, moe.d_ff)
    router_s = work.machine.matmul_s(work.own_tokens, moe.n_experts, work.model.d_model)
    matmuls_s = router_s + local * one_matmuls_s
    # One kernel over the copies of all experts.
    _, activation_s = _mlp_s(work, copies, moe.d_ff)
    if moe.shared_d_ff:
        shared = _mlp_s(work, work.tokens, moe.shared_d_ff / work.shards.tp)
        matmuls_s, activation_s = matmuls_s + shared[0], activation_s + shared[1]
    return Mlp(matmuls_s, activation_s, _routing_s(work, moe, copies))


def _routing_s(work: Work, moe: Experts, copies: Floats) -> Floats:
    """Return the seconds of the choice of experts, and to gather and scatter copies.

    Each reads and writes every copy once; where copies come from other GPUs for more
    than one expert, they are put in order by expert and back again (Megatron-LM's
    all-to-all dispatcher). The router's scores are read and written in fp32.
    """
    machine, ep = work.machine, work.shards.ep
    scores = work.own_tokens * moe.n_experts * FP32_BYTES / machine.element
    passes = 2 + 2 * ((ep > 1) & (ep < moe.n_experts))
    pass_s = machine.stream_s(2 * copies * work.model.d_model)
    return machine.stream_s(2 * scores) + passes * pass_s
