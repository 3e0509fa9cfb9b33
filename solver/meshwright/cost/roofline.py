"""Seconds of one kernel on one GPU, by roofline.

A kernel takes the longest of its FLOPs at the rate its shape reaches, its bytes at
the memory's rate, and the launch floor (Williams et al. 2009, 'Roofline').
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.efficiency import Efficiency
from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.columns import Floats
from meshwright.plans.precision import FORMATS
from meshwright.plans.shards import Shards
from meshwright.spec.gpu import Gpu, Precision
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec

Sizes = NDArray[np.floating[Any]] | float
"""A dimension of a kernel: a column, or the same in every row."""

MISALIGNED = 4
"""How much longer a matmul takes that reads rows of no multiple of 8 numbers, so that
tensor cores are hardly used (NVIDIA, Matrix Multiplication Background, section 'Tensor
Core Requirements')."""

AMPERE_KERNEL_SHARE = 0.63
"""What the instructions of A100 reach of H100's peak (Luo et al. 2024, 'Benchmarking
and dissecting the Nvidia Hopper GPU architecture', mma against wgmma)."""

AMPERE_KERNEL_FLOPS = 5e14
"""GPUs beyond need instructions of their own for their peak: Hopper and data-centre
Blackwell (756e12 and more), and CDNA 3; Ada and workstation Blackwell do not."""


@dataclass(frozen=True)
class Machine:
    """One GPU as kernels see it."""

    attention_flops: float
    """What is open to fused attention of the peak."""
    matmul_flops: float
    """What the best matmul was measured to reach of the peak."""
    memory_bytes_per_s: float
    element: int
    efficiency: Efficiency
    fp8_flops: float | None = None
    """What the best matmul with 8-bit inputs reaches, where those of weights are so."""

    def linear_s(self, m: Sizes, n: Sizes, k: Sizes) -> Floats:
        """Return the seconds of (m, k) inputs times (k, n) weights.

        In fp8 the inputs are cast before, from 2 bytes to two copies of 1 byte, as
        stored and transposed; a backward casts as much for either of its matmuls.
        """
        if self.fp8_flops is None:
            return self.matmul_s(m, n, k)
        moved = (m * k + k * n) / self.element + m * n
        copies = m * k + 2 * m * k / self.element
        flops_s = self._flops_s(m, n, k, self.fp8_flops)
        return np.maximum(flops_s, self.stream_s(moved)) + self.stream_s(copies)

    def matmul_s(self, m: Sizes, n: Sizes, k: Sizes) -> Floats:
        """Return the seconds of an (m, k) x (k, n) matmul of activations."""
        flops_s = self._flops_s(m, n, k, self.matmul_flops)
        return np.maximum(flops_s, self.stream_s(m * k + k * n + m * n))

    def _flops_s(self, m: Sizes, n: Sizes, k: Sizes, best_flops: float) -> Sizes:
        half = self.efficiency.gemm_half_size
        return self.padded_s(m + half, n, k, best_flops)

    def padded_s(self, padded_m: Sizes, n: Sizes, k: Sizes, best_flops: float) -> Sizes:
        """Return the seconds of a matmul's FLOPs, its rows padded as tiles ask.

        A dimension of size s reaches s / (s + gemm_half_size) of the rate: the matmul
        takes as long as one with that much more of each dimension at the full rate.
        """
        half = self.efficiency.gemm_half_size
        flops = 2 * padded_m * (n + half) * (k + half)
        return flops / (best_flops * self.efficiency.gemm)

    def attention_s(self, flops: Floats, elements: Floats) -> Floats:
        """Return the seconds of fused attention."""
        flops_s = flops / (self.attention_flops * self.efficiency.attention)
        return np.maximum(flops_s, self.stream_s(elements))

    def stream_s(self, elements: Sizes) -> Floats:
        """Return the seconds to read and write `elements`, one kernel at least."""
        rate = self.memory_bytes_per_s * self.efficiency.memory
        return np.maximum(elements * self.element / rate, self.efficiency.launch_s)


@dataclass(frozen=True)
class Work:
    """One GPU's share of a micro-batch, a row per set of degrees."""

    spec: Spec
    machine: Machine
    shards: Shards
    tokens: Floats
    """What a tensor-parallel group works on together."""
    own_tokens: Floats
    """What one GPU works on between the group's matmuls."""

    @property
    def model(self) -> Model:
        """Return the shape of the model."""
        return self.spec.model


def machine_of(
    gpu: Gpu, precision: Precision, efficiency: Efficiency, attention_share: float = 1.0
) -> Machine:
    """Return a GPU as kernels of a precision see it, which it must have.

    `attention_share` is what of its peak is open to fused attention.
    """
    form, is_fp8 = FORMATS[precision], precision == "fp8"
    peak_flops = gpu.peak_tflops.flops(form.core)
    return Machine(
        peak_flops * attention_share,
        peak_flops * gpu.matmul_share,
        gpu.memory_gb_s * 1e9,
        form.element,
        efficiency,
        gpu.peak_tflops.flops("fp8") * gpu.matmul_share_fp8 if is_fp8 else None,
    )


def work(spec: Spec, efficiency: Efficiency, shards: Shards) -> Work:
    """Return the work of a spec's micro-batches on its GPU."""
    gpu, precision = spec.cluster.topology.gpu, spec.training.precision
    peak_flops = gpu.peak_tflops.flops(FORMATS[precision].core)
    share = _attention_share(spec, peak_flops)
    machine = machine_of(gpu, precision, efficiency, share)
    tokens = shards.tokens(spec.training.seq_len)
    return Work(spec, machine, shards, tokens, tokens / shards.sequence_shards)


def _attention_share(spec: Spec, peak_flops: float) -> float:
    """Return the share of the peak that is open to kernels of fused attention.

    FlashAttention-2 keeps to A100's instructions (Shah et al. 2024, FlashAttention-3,
    section 1); a framework may have kernels that are written for the GPU instead.
    """
    if framework_of(spec).has_native_attention:
        return 1.0
    # A GPU of a higher peak runs the same instructions no slower.
    reached_flops = max(AMPERE_KERNEL_FLOPS, AMPERE_KERNEL_SHARE * peak_flops)
    return min(1.0, reached_flops / peak_flops)
