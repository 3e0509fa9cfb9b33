"""Seconds of one kernel on one GPU, by roofline (Williams et al. 2009, 'Roofline').

Element-wise operations move memory once as one kernel, and several times as several
kernels of PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.job import SUSTAINED, Efficiency
from meshwright.cost.state import stream_bytes
from meshwright.frameworks.base.registry import fused_of
from meshwright.plans.columns import Floats
from meshwright.plans.skeletons import Shards
from meshwright.spec.gpu import FORMATS, Gpu, Precision
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec

Sizes = NDArray[np.floating[Any]] | float
"""A dimension of a kernel: a column, or one number for all rows."""

FP32_BYTES = 4

FP32_TILE = 32
"""The narrowest tile of a matmul in fp32, which thin matrices fill in part."""

MISALIGNED = 4
"""Slowdown of a large matmul whose rows are not a multiple of 8 numbers, so that tensor
cores are hardly used (NVIDIA, Matrix Multiplication Background, section 'Tensor Core
Requirements')."""


@dataclass(frozen=True)
class GpuRates:
    """The rates that kernels reach on one GPU."""

    attention_flops: float
    """The peak of fused attention."""
    matmul_flops: float
    """The rate of the best measured matmul."""
    memory_bytes_per_s: float
    element: int
    """Bytes of a number."""
    efficiency: Efficiency
    fp8_flops: float | None = None
    """The rate of the best measured fp8 matmul, where matmuls of weights are in fp8."""
    fp32_flops: float | None = None
    """The peak of matmuls in fp32, where known: tensor cores have no part in them."""
    grouped_flops: float | None = None
    """The rate of PyTorch's matmul of many experts, where it is slower than others."""

    def linear_s(self, m: Sizes, n: Sizes, k: Sizes) -> Floats:
        """Return the seconds of (m, k) inputs times (k, n) weights.

        In fp8 the inputs are first cast from 2 bytes to two copies of 1 byte, one as
        stored and one transposed; a backward casts as much for each of its matmuls.
        """
        if self.fp8_flops is None:
            return self.matmul_s(m, n, k)
        moved = (m * k + k * n) / self.element + m * n
        copies = m * k + 2 * m * k / self.element
        flops_s = self._flops_s(m, n, k, self.fp8_flops)
        return np.maximum(flops_s, self.stream_s(moved)) + self.stream_s(copies)

    def grouped_s(self, m: Sizes, n: Sizes, k: Sizes) -> Floats:
        """Return the seconds of one expert's inputs in PyTorch's matmul of many.

        At a rate far below that of others, power does not slow it down further.
        """
        if self.grouped_flops is None:
            return self.linear_s(m, n, k)
        flops_s = self._flops_s(m, n, k, self.grouped_flops / self.efficiency.gemm)
        return np.maximum(flops_s, self.stream_s(_elements(m, n, k)))

    def matmul_s(self, m: Sizes, n: Sizes, k: Sizes, count: Sizes = 1.0) -> Floats:
        """Return the seconds of `count` (m, k) x (k, n) matmuls in one kernel."""
        flops_s = count * self._flops_s(m, n, k, self.matmul_flops)
        return np.maximum(flops_s, self.stream_s(count * _elements(m, n, k)))

    def misaligned_s(self, m: Sizes, n: Sizes, k: Sizes, count: Sizes = 1.0) -> Floats:
        """Return the seconds of matmuls of heads, rows no multiple of 8 numbers long.

        Tensor cores read rows in pieces of 16 bytes (NVIDIA, cuBLAS, section 'Tensor
        Core Usage'); without them a matmul runs at the rate of fp32.
        """
        aligned_s = self.matmul_s(m, n, k, count)
        if self.fp32_flops is None:
            return MISALIGNED * aligned_s
        flops_s = count * 2 * m * n * k / (self.fp32_flops * self.efficiency.gemm)
        return np.maximum(aligned_s, flops_s)

    def _flops_s(self, m: Sizes, n: Sizes, k: Sizes, best_flops: float) -> Sizes:
        half = self.efficiency.gemm_half_size
        return self.padded_s(m + half, n, k, best_flops)

    def padded_s(self, padded_m: Sizes, n: Sizes, k: Sizes, best_flops: float) -> Sizes:
        """Return the seconds of a matmul's FLOPs, its rows padded to whole tiles.

        A dimension of size s reaches s / (s + gemm_half_size) of the rate: the matmul
        takes as long as one with that much more of each dimension at the full rate.
        """
        half = self.efficiency.gemm_half_size
        flops = 2 * padded_m * (n + half) * (k + half)
        return flops / (best_flops * self.efficiency.gemm)

    def attention_s(
        self, flops: Floats, elements: Floats, share: Sizes = 1.0
    ) -> Floats:
        """Return the seconds of a kernel of fused attention.

        `share` is its rate over that of the best kernel for the GPU.
        """
        flops_s = flops / (self.attention_flops * self.efficiency.attention * share)
        return np.maximum(flops_s, self.stream_s(elements))

    def fp32_matmul_s(self, m: Sizes, n: Sizes, k: Sizes, count: Sizes = 1.0) -> Floats:
        """Return the seconds of a matmul of numbers in fp32, without tensor cores.

        PyTorch takes no TF32 unless asked (`torch.backends.cuda.matmul.allow_tf32`).
        """
        moved = count * _elements(m, n, k)
        wide_s = self.stream_s(FP32_BYTES / self.element * moved)
        if self.fp32_flops is None:
            return wide_s
        flops = 2 * count * m * np.maximum(n, FP32_TILE) * np.maximum(k, FP32_TILE)
        rate = self.fp32_flops * self.efficiency.gemm
        return np.maximum(flops / rate, wide_s)

    def stream_s(self, elements: Sizes) -> Floats:
        """Return the seconds of one kernel that reads and writes `elements` numbers."""
        rate = self.memory_bytes_per_s * self.efficiency.memory
        return np.maximum(elements * self.element / rate, self.efficiency.launch_s)


def _elements(m: Sizes, n: Sizes, k: Sizes) -> Sizes:
    """Return the numbers of a matmul's inputs, weights and outputs."""
    weights: Sizes = k * n
    return m * k + weights + m * n


@dataclass(frozen=True)
class Work:
    """The work of one GPU on a micro-batch, one row per set of shards."""

    spec: Spec
    gpu: GpuRates
    shards: Shards
    tokens: Floats
    """Tokens that a tensor-parallel group works on together."""
    gpu_tokens: Floats
    """Tokens that one GPU works on between the matmuls of the group."""

    @property
    def model(self) -> Model:
        """Return the shape of the model."""
        return self.spec.model

    @property
    def stream_width(self) -> float:
        """Return the bytes of a number between matmuls over those of one in them."""
        return stream_bytes(self.spec) / self.gpu.element

    @property
    def is_all_wide(self) -> bool:
        """Return whether attention and head are in fp32, since nothing narrows them."""
        lora = self.spec.training.lora
        return lora is not None and lora.is_all_wide


def gpu_rates(gpu: Gpu, precision: Precision, efficiency: Efficiency) -> GpuRates:
    """Return the rates of a GPU in a precision that it has."""
    form, is_fp8 = FORMATS[precision], precision == "fp8"
    fp32 = gpu.peak_tflops.fp32
    peak_flops = gpu.peak_tflops.flops(form.core) * gpu.clock_share
    fp8_flops, grouped_flops = None, None
    # Factors of matmuls are those of GPUs that power and heat slow down.
    sustained = SUSTAINED if gpu.holds_clocks else 1.0
    if is_fp8:
        fp8_flops = gpu.peak_tflops.flops("fp8") * gpu.clock_share
        fp8_flops *= gpu.matmul_share_fp8 / sustained
    elif gpu.grouped_matmul_share is not None and form.element < FP32_BYTES:
        grouped_flops = peak_flops * gpu.grouped_matmul_share
    return GpuRates(
        peak_flops,
        peak_flops * gpu.matmul_share / sustained,
        gpu.memory_gb_s * 1e9,
        form.element,
        efficiency,
        fp8_flops,
        None if fp32 is None else fp32 * 1e12 * gpu.clock_share,
        grouped_flops,
    )


def work(spec: Spec, efficiency: Efficiency, shards: Shards) -> Work:
    """Return the work of a spec's micro-batches on its GPU."""
    gpu, precision = spec.cluster.topology.gpu, spec.training.precision
    rates = gpu_rates(gpu, precision, efficiency)
    tokens = shards.tokens(spec.training.seq_len)
    return Work(spec, rates, shards, tokens, tokens / shards.sequence_shards)


ONE_KERNEL = 2
"""A kernel reads and writes a number once."""

WIDE = 4
"""Bytes of a number that needs no cast to fp32."""


def norm_passes(spec: Spec, element: float) -> int:
    """Return the passes of a norm; layer norm is one kernel of PyTorch.

    RMSNorm casts to fp32 (3), squares (4), averages (2), scales (4), casts back (3) and
    multiplies by its weight (2).
    """
    if "norm" in fused_of(spec) or spec.model.norm != "rmsnorm":
        return ONE_KERNEL
    return 18 if element < WIDE else 7


def rotary_passes(spec: Spec, element: float) -> int:
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
    fused = fused_of(spec)
    has_dropout = spec.model.dropout and "dropout" not in fused
    return 3 - ("residual" in fused) + 2 * has_dropout


def residual_sums(spec: Spec) -> int:
    """Return the residual sums of a layer: one after its mixer, one after its MLP."""
    model = spec.model
    has_mlp = model.moe is not None or model.d_ff > 0
    return (model.mixer != "none") + has_mlp


def softmax_passes(spec: Spec) -> int:
    """Return the passes over plain scores: written, softmax, read by the next matmul.

    Scale and mask are separate kernels where they are not fused into softmax, which
    then writes fp32, cast back by another kernel (transformers 4.35,
    modeling_llama.py: `LlamaAttention.forward`).
    """
    return 4 + 8 * ("softmax" not in fused_of(spec))


def loss_bytes_moved(spec: Spec) -> int:
    """Return the bytes that the loss reads and writes per logit, both passes.

    It reads and writes fp32 forward and backward. As several kernels it first casts the
    logits, and in the end their gradients. One that writes the gradient over the logits
    keeps their 16 bits: it reads them twice and writes once.
    """
    if "loss" in fused_of(spec) and spec.training.loss_bytes == 0:
        return 6
    return 16 + 12 * ("loss" not in fused_of(spec))
