"""Seconds of the kernels that selective recomputation repeats.

Kernels stand in groups; a recomputed layer repeats each group of which its bits
(`plans.recomputation`) name at least one. What Megatron-LM repeats of a module is all
of its forward (megatron-core 0.19.2, core/tensor_parallel/random.py:
CheckpointFunction, CheckpointWithoutOutput).
"""

from __future__ import annotations

import numpy as np

from meshwright.cost.activations import norm_bits
from meshwright.cost.adapters import lora_kernels
from meshwright.cost.attention import Attention
from meshwright.cost.elementwise import residual_passes, residual_sums
from meshwright.cost.every_other_matmul import repeated_matmuls_s
from meshwright.cost.mlp import Mlp
from meshwright.cost.parameters_and_flops import input_norms, output_norms
from meshwright.cost.roofline import Work
from meshwright.plans.columns import Floats, Ints
from meshwright.plans.recomputation import (
    CHEAP,
    CORE_ATTN,
    MLA_UP_PROJ,
    MLP,
    MOE,
    MOE_ACT,
    PER_OP,
    SHARED_EXPERTS,
)

Repeated = dict[int, Floats]
"""Seconds of groups of kernels, by the bits of which any one repeats them."""


def repeated_s(work: Work, heads: Attention, inner: Mlp, norm_s: Floats) -> Repeated:
    """Return what selective recomputation repeats of a repeated layer.

    `norm_s` is what a norm over the width of the model takes.
    """
    is_flash = not work.spec.training.stores_scores
    is_dense = not work.model.moe
    cheap = CHEAP * is_flash
    attention_norm, mlp_norm = norm_bits(work.spec, is_dense)
    own = MLP if is_dense else MOE
    has_two = input_norms(work.model) > 1
    groups = [
        (CORE_ATTN | CHEAP * (not is_flash), heads.core_s),
        (MLA_UP_PROJ, heads.from_latents_s),
        (attention_norm | cheap, norm_s),
        (mlp_norm | cheap, has_two * norm_s),
        (own, inner.own_matmuls_s + inner.routing_s),
        (own | cheap | MOE_ACT * (not is_dense), inner.own_activation_s),
        (MOE | SHARED_EXPERTS, inner.shared_matmuls_s),
        (MOE | SHARED_EXPERTS | cheap, inner.shared_activation_s),
        (PER_OP, _per_op_s(work, heads, inner, norm_s)),
    ]
    if (lora := work.spec.training.lora) is not None:
        adapters_s = lora_kernels(work, lora, is_dense).mlp_s
        groups.append((MLP if is_dense else MOE | SHARED_EXPERTS, adapters_s))
    result: Repeated = {}
    for bits, seconds in groups:
        result[bits] = result.get(bits, 0.0) + seconds
    return result


def repeated_mlp_s(work: Work, inner: Mlp, norm_s: Floats) -> Floats:
    """Return what recomputing `mlp` repeats of a layer without experts."""
    _, mlp_norm = norm_bits(work.spec, is_dense=True)
    has_norm = bool(mlp_norm & MLP) and input_norms(work.model) > 1
    seconds = inner.matmuls_s + inner.activation_s + has_norm * norm_s
    if (lora := work.spec.training.lora) is not None:
        seconds = seconds + lora_kernels(work, lora, is_dense=True).mlp_s
    return seconds


def _per_op_s(work: Work, heads: Attention, inner: Mlp, norm_s: Floats) -> Floats:
    """Return what recomputation by operations repeats: see `every_other_matmul`."""
    norms = input_norms(work.model) + output_norms(work.model)
    passes = residual_passes(work.spec)
    residual_s = work.gpu.stream_s(passes * work.gpu_tokens * work.model.d_model)
    residual_s = residual_sums(work.spec) * residual_s
    streams_s = norms * norm_s + residual_s + heads.streams_s
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
