"""The table of precisions: bytes and rates of each.

fp8 is as in NVIDIA's Transformer Engine and PyTorch's torchao. Matmuls of weights take
8-bit inputs and return 16 bits. The core of attention, everything between matmuls,
weights, gradients and messages stay in bf16.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.spec.gpu import Precision


class Format(NamedTuple):
    """One precision of training."""

    element: int
    """Bytes of an activation, of a weight in a matmul, of a number in a message."""
    core: Precision
    """Precision whose peak rate holds for attention, router and head."""
    is_mixed: bool
    """Whether an optimizer keeps fp32 weights beside those of `element` bytes."""


FORMATS: dict[Precision, Format] = {
    "fp8": Format(2, "bf16", is_mixed=True),
    "bf16": Format(2, "bf16", is_mixed=True),
    "fp16": Format(2, "fp16", is_mixed=True),
    "tf32": Format(4, "tf32", is_mixed=False),
    "fp32": Format(4, "fp32", is_mixed=False),
}

ELEMENT_BYTES = {precision: form.element for precision, form in FORMATS.items()}
