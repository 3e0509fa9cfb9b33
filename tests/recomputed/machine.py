"""Seconds of one kernel on one GPU: the longest of its FLOPs, bytes and launch."""

from __future__ import annotations

import math

from meshwright.spec.gpu import Gpu
from tests.recomputed.case import Case

KERNELS = {
    "efficient": (0.45, 18, True),
    "flash1": (0.55, 0, True),
    "triton": (0.67, 0, True),
    "flash2": (1.0, 18, True),
    "flash3": (1.13, 50, False),
    "flash4": (1.19, 50, False),
    "cudnn": (1.0, 50, False),
}
"""Rate over version 2's, width of a head that halves it, whether it is A100's."""


class Machine:
    """One GPU: how long a kernel takes on it."""

    def __init__(self, case: Case) -> None:
        self.case, self.rates, self.element = case, case.rates, case.element
        gpu = self._gpu = case.spec.cluster.topology.gpu
        limit_w, tdp_w = gpu.power_limit_w or 1.0, gpu.tdp_w or 1.0
        self.clock = math.cbrt(limit_w / tdp_w) if gpu.power_limit_w else 1.0
        self.peak = self._peak(gpu, "bf16" if case.precision == "fp8" else None)
        self.matmul_rate = self.peak * gpu.matmul_share * case.rates["gemm"]
        self.fp8_rate = 0.0
        if case.precision == "fp8":
            peak = self._peak(gpu, "fp8")
            self.fp8_rate = peak * gpu.matmul_share_fp8 * case.rates["gemm"]
        self.grouped_rate = 0.0
        in_16_bits = case.element == 2 and not self.fp8_rate
        if case.has_torch_experts and gpu.grouped_matmul_share and in_16_bits:
            self.grouped_rate = self.peak * gpu.grouped_matmul_share
        self.byte_rate = gpu.memory_gb_s * 1e9 * case.rates["memory"]
        lora = case.training.lora
        self.wide = case.stream / case.element
        self.all_wide = lora is not None and lora.upcast and lora.adapters == "fp32"

    def _peak(self, gpu: Gpu, name: str | None) -> float:
        peak = float(getattr(gpu.peak_tflops, name or self.case.precision))
        return peak * 1e12 * self.clock

    def stream(self, numbers: float) -> float:
        return max(numbers * self.element / self.byte_rate, self.rates["launch_s"])

    def norm(self, numbers: float) -> float:
        """RMSNorm as PyTorch operations: casts, and fp32 between them."""
        case = self.case
        if "norm" in case.fused or case.model.norm == "layernorm":
            return self.stream(2 * self.wide * numbers)
        if self.case.stream == 4:
            return self.stream((2 + 1 + 2 + 2) * self.wide * numbers)
        # Squares, their mean, the scaled input; the weight is multiplied last.
        return self.stream((3 + 3 + 2 * (2 + 1 + 2) + 2) * numbers)

    def rotary(self, numbers: float) -> float:
        if "rope" in self.case.fused:
            return self.stream(2 * self.wide * numbers)
        passes = 4 if self.case.stream == 4 else 3 + 4 + 3
        return self.stream(passes * self.wide * numbers)

    def matmul(self, m: float, n: float, k: float, batch: float = 1.0) -> float:
        """Of activations; each dimension pays for tiles that are partly filled."""
        flops_s = batch * self._padded_flops(m, n, k) / self.matmul_rate
        return max(flops_s, self.stream(batch * (m * k + k * n + m * n)))

    def grouped(self, m: float, n: float, k: float) -> float:
        """Of one expert among many, in PyTorch's kernel where that is a slow one."""
        if not self.grouped_rate:
            return self.linear(m, n, k)
        flops_s = self._padded_flops(m, n, k) / self.grouped_rate
        return max(flops_s, self.stream(m * k + k * n + m * n))

    def fp32_matmul(self, m: float, n: float, k: float, batch: float = 1.0) -> float:
        """On units that multiply fp32, by tiles that are 32 wide at least."""
        peak = self._gpu.peak_tflops.fp32
        moved_s = self.stream(batch * 4 / self.element * (m * k + k * n + m * n))
        if peak is None:
            return moved_s
        rate = peak * 1e12 * self.clock * self.rates["gemm"]
        return max(batch * 2 * m * max(n, 32) * max(k, 32) / rate, moved_s)

    def without_tensor_cores(self, flops: float, with_them_s: float) -> float:
        """Return the seconds of fp32 units, of which not every GPU tells."""
        peak = self._gpu.peak_tflops.fp32
        if peak is None:
            return 4 * with_them_s
        rate = peak * 1e12 * self.clock * self.rates["gemm"]
        return max(with_them_s, flops / rate)

    def linear(self, m: float, n: float, k: float) -> float:
        """Of a weight: in fp8 what goes in is cast before, to two copies."""
        if not self.fp8_rate:
            return self.matmul(m, n, k)
        numbers_of_2_bytes = (m * k + k * n) / 2 + m * n
        flops_s = self._padded_flops(m, n, k) / self.fp8_rate
        cast_s = self.stream(m * k + m * k / 2 + m * k / 2)
        return max(flops_s, self.stream(numbers_of_2_bytes)) + cast_s

    def _padded_flops(self, m: float, n: float, k: float) -> float:
        half = self.rates["gemm_half_size"]
        return 2 * (m + half) * (n + half) * (k + half)

    def attention(self, flops: float, numbers: float, length: float) -> float:
        """A kernel by its name: how fast it is, what wide heads add, whose peak it has.

        Those up to version 2 keep to A100's instructions: all of a smaller GPU's peak,
        of a larger one's no less, and no more than on H100. On Blackwell they have a
        number for themselves.
        """
        share, narrow, is_old = KERNELS[self._kernel()]
        rate = rated = self.peak / self.clock
        if is_old:
            rate = min(rated, max(500e12, 0.63 * min(rated, 989e12)))
        width = min(128, self.case.model.head_dim)
        rate *= share * width / 128 * (128 + narrow) / (width + narrow)
        if self.all_wide:
            rate *= 0.12
        elif self._kernel() == "efficient":
            has_room = self._gpu.shared_memory_kib > 128
            rate *= 0.4 if self.case.model.head_dim > (128 if has_room else 64) else 1
        rate *= length / (length + 300)
        rate *= self.clock
        is_blackwells = rated > 2e15 and is_old
        reached = "older_attention" if is_blackwells else "attention"
        return max(flops / (rate * self.rates[reached]), self.stream(numbers))

    def _kernel(self) -> str:
        said, peaks = self.case.training.attention, self._gpu.peak_tflops
        if said != "flash":
            return said
        has_newer = max(peaks.bf16 or 0.0, peaks.fp16 or 0.0) > 500
        is_vendors = self.case.spec.framework in ("megatron", "ideal")
        return "cudnn" if has_newer and is_vendors else "flash2"
