"""The bytes of one matmul, Y = A W, with its overhead and its training step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from meshwright.cost.state import ADAMW_BYTES
from meshwright.frameworks.base.framework import CONTEXT_GIB
from meshwright.plans.precision import ELEMENT_BYTES, FORMATS
from meshwright.results.gemm import Matrices, Overhead, TrainingMemory
from meshwright.spec.gpu import Precision
from meshwright.spec.units import GIB

MIB = 2**20

WORKSPACE = 32 * MIB
"""Workspace that PyTorch gives cuBLAS on Hopper; 8.125 MiB on other GPUs
(aten/src/ATen/cuda/CublasHandlePool.cpp, `parseChosenWorkspaceSize`)."""

CONTEXT = round(CONTEXT_GIB * GIB)
"""Bytes of a CUDA context."""

FP32_BYTES = 4


@dataclass(frozen=True)
class Matmul:
    """A matmul of (m, k) inputs and (k, n) weights."""

    m: int
    k: int
    n: int
    dtype: Precision
    split_k: int = 1
    """Parts of k that are computed apart and then added up."""
    bias: bool = False
    residual: bool = False
    context: int = CONTEXT
    """Bytes of the CUDA context; 0 if the budget excludes it already."""

    @property
    def element(self) -> int:
        """Return the bytes of one element of A or W."""
        return 1 if self.dtype == "fp8" else ELEMENT_BYTES[self.dtype]

    @property
    def output(self) -> int:
        """Return the bytes of one element of Y; 8-bit matmuls return 16 bits."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def bytes(self) -> Matrices:
        """Return the bytes of the three matrices."""
        a, w = self.m * self.k * self.element, self.k * self.n * self.element
        return Matrices(a=a, w=w, y=self.m * self.n * self.output)

    def shard(self, parts_of_k: int, parts_of_n: int) -> Matmul:
        """Return the largest shard when k and n are split into this many parts."""
        return replace(self, k=-(-self.k // parts_of_k), n=-(-self.n // parts_of_n))


def overhead(matmul: Matmul, more: Iterable[int] = ()) -> Overhead:
    """Return the memory needed beside the matrices and `more` tensors.

    `more` is the bytes of further tensors, whose fragmentation is counted here.
    """
    bias = matmul.bias * matmul.n * matmul.output
    residual = matmul.residual * matmul.bytes.y
    partial = (
        matmul.split_k * matmul.m * matmul.n * FP32_BYTES if matmul.split_k > 1 else 0
    )
    tensors = (
        matmul.bytes.a,
        matmul.bytes.w,
        matmul.bytes.y,
        bias,
        residual,
        partial,
        *more,
    )
    rounded = sum(reserved(size) - size for size in tensors)
    return Overhead(
        context=matmul.context,
        workspace=WORKSPACE,
        split_k=partial,
        bias=bias,
        residual=residual,
        fragmentation=rounded,
        total=matmul.context + WORKSPACE + partial + bias + residual + rounded,
    )


def reserved(size: int) -> int:
    """Return the bytes that PyTorch reserves for a tensor allocated alone.

    Up to 1 MiB comes from a block of 2 MiB, less than 10 MiB from one of 20 MiB, and
    more is rounded up to 2 MiB (c10/cuda/CUDACachingAllocator.cpp,
    `get_allocation_size`).
    """
    if size <= MIB:
        return 2 * MIB * (size > 0)
    return 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB


def needed(matmul: Matmul) -> int:
    """Return the bytes of A, W, Y and overhead."""
    return matmul.bytes.a + matmul.bytes.w + matmul.bytes.y + overhead(matmul).total


def training(matmul: Matmul, usable: int) -> TrainingMemory:
    """Return the memory of a training step: gradients, and AdamW's state of W.

    Gradients are in the precision of Y. A mixed precision keeps fp32 weights beside
    the two moments (Rajbhandari et al. 2019, section 3.1).
    """
    per_weight = ADAMW_BYTES + FP32_BYTES * FORMATS[matmul.dtype].is_mixed
    grads = (matmul.m * matmul.k, matmul.k * matmul.n, matmul.m * matmul.n)
    grad_a, grad_w, grad_y = (count * matmul.output for count in grads)
    optimizer = matmul.k * matmul.n * per_weight
    more = overhead(matmul, (grad_a, grad_w, grad_y, optimizer)).total
    matrices = matmul.bytes.a + matmul.bytes.w + matmul.bytes.y
    whole = matrices + grad_a + grad_w + grad_y + optimizer + more
    return TrainingMemory(
        saved_input=matmul.bytes.a,
        grad_a=grad_a,
        grad_w=grad_w,
        grad_y=grad_y,
        optimizer=optimizer,
        overhead=more,
        needed=whole,
        fits=whole <= usable,
    )
