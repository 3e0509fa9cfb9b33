"""How much of the rated hardware real kernels and collectives reach.

These are defaults from published microbenchmarks, the same for every GPU and
framework; they are not fitted to training runs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Efficiency:
    """A handful of numbers between the data sheet and the step time."""

    gemm: float = 0.80
    """Share of the dense peak of a large matmul: the best found by mamf-finder is 87 %
    on A100 and 80 % on H100 (Bekman, ML Engineering, 'Maximum achievable FLOPS')."""

    gemm_half_size: float = 96.0
    """A matmul with one dimension of this size runs at half the rate of a large one,
    a smooth stand-in for tiles of 128 that are partly filled."""

    attention: float = 0.55
    """Share of the dense peak of fused attention: 50-73 % on A100 (Dao 2023,
    FlashAttention-2, section 4.1)."""

    memory: float = 0.85
    """Share of the rated memory bandwidth of element-wise kernels: 80-90 % in STREAM
    like copies."""

    launch_s: float = 4e-6
    """Least time of one kernel: launch latency as CUDA streams hide it."""

    link: float = 0.80
    """Share of a link's rate that collectives reach: 230-240 of 300 GB/s NVLink bus
    bandwidth over 8 A100 in nccl-tests."""

    grad_overlap: float = 0.70
    """Share of gradient and parameter traffic that may hide behind the backward."""

    gather_overlap: float = 0.80
    """Share of ZeRO-3 weight traffic that may hide behind the compute of a layer."""
