"""Whether one matmul fits on a GPU, how fast it can be, and how to split it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from meshwright.cost.job import Efficiency
from meshwright.cost.roofline import gpu_rates
from meshwright.cost.state import ADAMW_BYTES
from meshwright.frameworks.base.framework import CONTEXT_GIB
from meshwright.results.gemm import (
    GemmAnswer,
    GemmSplit,
    Matrices,
    Overhead,
    Rebuild,
    Roofline,
    TrainingMemory,
)
from meshwright.spec.gpu import ELEMENT_BYTES, FORMATS, Gpu, Precision
from meshwright.spec.units import GIB

MIB = 2**20

WORKSPACE = 32 * MIB
"""Workspace that PyTorch gives cuBLAS on Hopper; 8.125 MiB on other GPUs
(aten/src/ATen/cuda/CublasHandlePool.cpp, `parseChosenWorkspaceSize`)."""

CONTEXT = round(CONTEXT_GIB * GIB)
"""Bytes of a CUDA context."""


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


def answer(
    matmul: Matmul,
    gpu: Gpu | None,
    memory_gib: float,
    headroom: float,
    gpus: int | None,
) -> GemmAnswer:
    """Return the answer for a named GPU, or for this much memory of any GPU.

    `headroom` is the share of the memory that stays free. `gpus` asks for splits over
    that many GPUs; with None, the matmul is split only if it does not fit on one.
    """
    memory = round(memory_gib * GIB)
    usable = int(memory * (1 - headroom))
    held = needed(matmul)
    fits = held <= usable
    is_split = gpus is not None or not fits
    return GemmAnswer(
        m=matmul.m,
        k=matmul.k,
        n=matmul.n,
        dtype=matmul.dtype,
        gpu=gpu.name if gpu else "",
        fits=fits,
        bytes=matmul.bytes,
        overhead=overhead(matmul),
        needed=held,
        budget="memory" if matmul.context else "usable",
        memory=memory,
        headroom=headroom,
        usable=usable,
        training=training(matmul, usable),
        roofline=roofline(matmul, gpu) if gpu else None,
        splits=tuple(splits(matmul, usable, gpus)) if is_split else (),
    )


def roofline(matmul: Matmul, gpu: Gpu) -> Roofline:
    """Return how fast a matmul can be on a GPU (Williams et al. 2009, 'Roofline')."""
    flops = 2.0 * matmul.m * matmul.k * matmul.n
    moved = matmul.bytes.a + matmul.bytes.w + matmul.bytes.y
    peak, memory = gpu.peak_tflops.flops(matmul.dtype), gpu.memory_gb_s * 1e9
    machine = gpu_rates(gpu, matmul.dtype, Efficiency())
    sizes = (np.array([float(size)]) for size in (matmul.m, matmul.n, matmul.k))
    return Roofline(
        flops=flops,
        moved_bytes=moved,
        intensity=flops / moved,
        ridge=peak / memory,
        side="compute" if flops / moved >= peak / memory else "memory",
        bound_s=max(flops / peak, moved / memory),
        expected_s=float(machine.linear_s(*sizes)[0]),
    )


FP32_BYTES = 4


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


MOST_GPUS = 65_536

USUAL_GPUS = 8
"""GPUs of the splits that are shown where none fits: those of one node."""

SplitKind = Literal["column", "row", "2d"]

KINDS: tuple[SplitKind, ...] = ("column", "row", "2d")


def splits(matmul: Matmul, usable: int, gpus: int | None) -> list[GemmSplit]:
    """Return a split of each kind over `gpus`, or over the fewest GPUs that suffice.

    A kind that fits on no number of GPUs is shown on as many as another kind needs.
    """
    if gpus is None:
        grids = {kind: _smallest_grid(matmul, kind, usable) for kind in KINDS}
        counts = [math.prod(grid) for grid in grids.values() if grid]
        gpus = min(counts, default=USUAL_GPUS)
    else:
        grids = dict.fromkeys(KINDS)
    found = ((kind, grids[kind] or _even_grid(matmul, kind, gpus)) for kind in KINDS)
    return [_split(matmul, kind, grid, usable) for kind, grid in found if grid]


def _even_grid(matmul: Matmul, kind: SplitKind, gpus: int) -> tuple[int, int] | None:
    """Return the parts of k and of n, as equal as can be; None if impossible."""
    if kind != "2d":
        grid = (1, gpus) if kind == "column" else (gpus, 1)
    else:
        rows = next(r for r in range(math.isqrt(gpus), 0, -1) if gpus % r == 0)
        grid = (rows, gpus // rows)
    is_2d = grid[0] > 1 and grid[1] > 1
    fits = grid[0] <= matmul.k and grid[1] <= matmul.n
    return grid if fits and is_2d == (kind == "2d") else None


def _smallest_grid(
    matmul: Matmul, kind: SplitKind, usable: int
) -> tuple[int, int] | None:
    """Return the grid over the fewest GPUs on which a kind of split fits."""
    if not _can_fit(matmul, kind, usable):
        return None
    for gpus in range(2, MOST_GPUS + 1):
        grid = _even_grid(matmul, kind, gpus)
        if grid is not None and needed(matmul.shard(*grid)) <= usable:
            return grid
    return None


def _can_fit(matmul: Matmul, kind: SplitKind, usable: int) -> bool:
    """Return whether the smallest shards of a kind fit."""
    parts_of_k = 1 if kind == "column" else matmul.k
    parts_of_n = 1 if kind == "row" else matmul.n
    return needed(matmul.shard(parts_of_k, parts_of_n)) <= usable


def _split(
    matmul: Matmul, kind: SplitKind, grid: tuple[int, int], usable: int
) -> GemmSplit:
    """Return what a GPU of a split holds, and the collectives that make Y whole.

    A part of k gives a partial sum of Y, which an all-reduce over the parts adds up; a
    part of n gives columns of Y, which an all-gather joins (Shoeybi et al. 2019,
    section 3; both: van de Geijn and Watts 1997, SUMMA, without its broadcasts).
    """
    shard = matmul.shard(*grid)
    held, rest = needed(shard), matmul.bytes.y - shard.bytes.y
    reduce = Rebuild(operation="all_reduce", ranks=grid[0], bytes=shard.bytes.y)
    gather = Rebuild(operation="all_gather", ranks=grid[1], bytes=matmul.bytes.y)
    whole = reserved(matmul.bytes.y) if rest else 0
    return GemmSplit(
        kind=kind,
        gpus=grid[0] * grid[1],
        grid=grid,
        a=(shard.m, shard.k),
        w=(shard.k, shard.n),
        y=(shard.m, shard.n),
        bytes=shard.bytes,
        needed=held,
        fits=held <= usable,
        rebuild=tuple(step for step in (reduce, gather) if step.ranks > 1),
        fits_rebuilt=held + whole <= usable,
    )
