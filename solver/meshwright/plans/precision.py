"""What a precision means in bytes and rates: the one table of it.

fp8 is what NVIDIA's Transformer Engine and PyTorch's torchao call so: the matmuls of
weights take 8-bit inputs and return 16 bits, the core of attention and everything
between matmuls stay in bf16, and so do weights, gradients and messages.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.spec.gpu import Precision


class Format(NamedTuple):
    """One precision of training."""

    element: int
    """Bytes of an activation, of a weight in a matmul, of a number in a message."""
    core: Precision
    """Whose peak attention, router and head reach."""
    is_mixed: bool
    """Whether an optimizer keeps fp32 weights beside those in `element`."""


FORMATS: dict[Precision, Format] = {
    "fp8": Format(2, "bf16", is_mixed=True),
    "bf16": Format(2, "bf16", is_mixed=True),
    "fp16": Format(2, "fp16", is_mixed=True),
    "tf32": Format(4, "tf32", is_mixed=False),
    "fp32": Format(4, "fp32", is_mixed=False),
}

ELEMENT_BYTES = {precision: form.element for precision, form in FORMATS.items()}
