"""Memory traffic of element-wise operations, as one kernel or as several of PyTorch.

All counts are numbers that are read or written per number of the operation's input,
forward. Those of several kernels follow the operations of Llama in PyTorch, which
computes norms and rotary positions in fp32 between 16-bit tensors: a cast counts 3, an
operation in fp32 4 (transformers, models/llama/modeling_llama.py; torchtitan, models/
common/rope.py).
"""

from __future__ import annotations

from meshwright.frameworks.base.registry import fused_of
from meshwright.spec.spec import Spec

ONE_KERNEL = 2
"""A kernel reads and writes a number once."""

WIDE = 4
"""Bytes of a number that needs no cast to fp32."""


def norm_passes(spec: Spec, element: int) -> int:
    """Return the passes of a norm; layer norm is one kernel of PyTorch.

    RMSNorm casts to fp32 (3), squares (4), averages (2), scales (4), casts back (3) and
    multiplies by its weight (2).
    """
    if "norm" in fused_of(spec) or spec.model.norm != "rmsnorm":
        return ONE_KERNEL
    return 18 if element < WIDE else 7


def rotary_passes(spec: Spec, element: int) -> int:
    """Return the passes of rotary positions: a cast, a product in fp32, a cast back."""
    if "rope" in fused_of(spec):
        return ONE_KERNEL
    return 10 if element < WIDE else 4


def activation_passes(spec: Spec) -> int:
    """Return the passes of an activation function over its inner width.

    A gated one reads gate and value; as several kernels it also writes the activated
    gate and reads it again.
    """
    gated = spec.model.gated_mlp
    return 2 + gated + 2 * (gated and "activation" not in fused_of(spec))


def residual_passes(spec: Spec) -> int:
    """Return the passes of a residual sum, with dropout before it."""
    return 3 + 2 * (spec.model.dropout and "dropout" not in fused_of(spec))


def residual_sums(spec: Spec) -> int:
    """Return the residual sums of a layer: one after its mixer, one after its MLP."""
    model = spec.model
    has_mlp = model.moe is not None or model.d_ff > 0
    return (model.mixer != "none") + has_mlp


def softmax_passes(spec: Spec) -> int:
    """Return the passes over plain scores: written, softmax, read by the next matmul.

    Scale and mask are kernels of their own where they are not fused into softmax.
    """
    return 4 + 4 * ("softmax" not in fused_of(spec))


def loss_bytes_moved(spec: Spec) -> int:
    """Return the bytes that the loss reads and writes per logit, both passes.

    It reads and writes fp32 forward and backward. As several kernels it first casts the
    logits, and in the end their gradients.
    """
    return 16 + 12 * ("loss" not in fused_of(spec))
