"""The bytes of one matmul, Y = A W, and of what comes with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from meshwright.cost.state import ADAMW_BYTES
from meshwright.frameworks.base.framework import CONTEXT_GIB
from meshwright.plans.precision import ELEMENT_BYTES, FORMATS
from meshwright.results.gemm import Matrices, Overhead, Training
from meshwright.spec.gpu import Precision
from meshwright.spec.units import GIB

MIB = 2**20

WORKSPACE = 32 * MIB
"""What PyTorch gives cuBLAS on Hopper; 8.125 MiB elsewhere (aten/src/ATen/cuda/
CublasHandlePool.cpp, `parseChosenWorkspaceSize`)."""

CONTEXT = round(CONTEXT_GIB * GIB)
"""Bytes of a CUDA context."""

FP32_BYTES = 4


@dataclass(frozen=True)
class Matmul:
    """(m, k) inputs times (k, n) weights."""

    m: int
    k: int
    n: int
    dtype: Precision
    split_k: int = 1
    """Parts of k that are added up at the end."""
    bias: bool = False
    residual: bool = False
    context: int = CONTEXT
    """Bytes of the CUDA context; 0 where the budget is what it has left."""

    @property
    def element(self) -> int:
        """Return the bytes of a number of A or W."""
        return 1 if self.dtype == "fp8" else ELEMENT_BYTES[self.dtype]

    @property
    def output(self) -> int:
        """Return the bytes of a number of Y: 8-bit matmuls return 16 bits."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def bytes(self) -> Matrices:
        """Return the bytes of the three matrices."""
        a, w = self.m * self.k * self.element, self.k * self.n * self.element
        return Matrices(a=a, w=w, y=self.m * self.n * self.output)

    def shard(self, parts_of_k: int, parts_of_n: int) -> Matmul:
        """Return the largest shard where k and n are cut."""
        return replace(self, k=-(-self.k // parts_of_k), n=-(-self.n // parts_of_n))


def overhead(own: Matmul, more: Iterable[int] = ()) -> Overhead:
    """Return what takes memory beside the matrices, and beside `more` tensors."""
    bias = own.bias * own.n * own.output
    residual = own.residual * own.bytes.y
    partial = own.split_k * own.m * own.n * FP32_BYTES if own.split_k > 1 else 0
    tensors = (own.bytes.a, own.bytes.w, own.bytes.y, bias, residual, partial, *more)
    rounded = sum(reserved(size) - size for size in tensors)
    return Overhead(
        context=own.context,
        workspace=WORKSPACE,
        split_k=partial,
        bias=bias,
        residual=residual,
        fragmentation=rounded,
        total=own.context + WORKSPACE + partial + bias + residual + rounded,
    )


def reserved(size: int) -> int:
    """Return the bytes that PyTorch reserves for a tensor that comes alone.

    Up to 1 MiB are cut from 2 MiB, less than 10 MiB from 20 MiB, and more is rounded
    up to 2 MiB (c10/cuda/CUDACachingAllocator.cpp, `get_allocation_size`).
    """
    if size <= MIB:
        return 2 * MIB * (size > 0)
    return 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB


def needed(own: Matmul) -> int:
    """Return the bytes of A, W, Y and overhead."""
    return own.bytes.a + own.bytes.w + own.bytes.y + overhead(own).total


def training(own: Matmul, usable: int) -> Training:
    """Return what a step of training holds: gradients, and AdamW's state of W.

    Gradients are in the precision of Y. A mixed precision keeps fp32 weights beside
    the two moments (Rajbhandari et al. 2019, section 3.1).
    """
    per_weight = ADAMW_BYTES + FP32_BYTES * FORMATS[own.dtype].is_mixed
    grads = (own.m * own.k, own.k * own.n, own.m * own.n)
    grad_a, grad_w, grad_y = (count * own.output for count in grads)
    optimizer = own.k * own.n * per_weight
    more = overhead(own, (grad_a, grad_w, grad_y, optimizer)).total
    matrices = own.bytes.a + own.bytes.w + own.bytes.y
    whole = matrices + grad_a + grad_w + grad_y + optimizer + more
    return Training(
        saved_input=own.bytes.a,
        grad_a=grad_a,
        grad_w=grad_w,
        grad_y=grad_y,
        optimizer=optimizer,
        overhead=more,
        needed=whole,
        fits=whole <= usable,
    )
