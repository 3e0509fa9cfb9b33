"""What a precision means in bytes and rates: the one table of it.

fp8 is what NVIDIA's Transformer Engine and PyTorch's torchao call so: the matmuls of
weights take 8-bit inputs and return 16 bits, the core of attention and everything
between matmuls stay in bf16, and so do weights, gradients and messages.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.spec.gpu import Precision
from meshwright.spec.spec import Framework, Spec


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

KEEPS_FP8: frozenset[Framework] = frozenset({"megatron", "deepspeed", "internevo"})
"""Frameworks whose fp8 is Transformer Engine's, which keeps what it casts.

Of an input it casts two copies, as stored and transposed, which Hopper's 8-bit matmuls
need for gradients of weights; it saves one of them and drops the other
(transformer_engine/pytorch/module/linear.py, `update_usage`). Of a weight it keeps
both from one micro-batch to the next (`is_first_microbatch`). torchao saves inputs in
16 bits and casts them again (torchao/float8/float8_linear.py).
"""

FP8_WEIGHT_COPIES = 2


def fp8_input_bytes(spec: Spec) -> int:
    """Return the bytes of the copy that a matmul saves of a number, 0 without one."""
    return int(spec.training.precision == "fp8" and spec.framework in KEEPS_FP8)


def fp8_weight_bytes(spec: Spec) -> int:
    """Return the bytes of the copies of a layer's weight, 0 without any."""
    return FP8_WEIGHT_COPIES * fp8_input_bytes(spec)
