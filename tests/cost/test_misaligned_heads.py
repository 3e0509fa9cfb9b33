"""Heads of a width that tensor cores cannot read, in plain attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.cost.attention import attention
from meshwright.cost.job import Efficiency
from meshwright.cost.roofline import MISALIGNED, GpuRates, work
from meshwright.plans.skeletons import Shards
from meshwright.spec.spec import Spec

TENSOR_TFLOPS, FP32_TFLOPS = 312.0, 19.5
EVERY = Efficiency(gemm=1.0, memory=1.0, gemm_half_size=1.0)


def spec(head_dim: int, attention: str, fp32: float | None = FP32_TFLOPS) -> Spec:
    peaks: dict[str, Any] = {"bf16": TENSOR_TFLOPS, "fp32": fp32}
    gpu = {"memory_gib": 80, "memory_gb_s": 1e6, "peak_tflops": peaks}
    levels = [{"name": "l", "size": 8, "gb_s": 300, "latency_us": 1}]
    shape = {"n_layers": 4, "d_model": 512, "n_heads": 8, "d_ff": 2_048, "vocab": 8_000}
    return Spec.model_validate(
        {
            "model": {**shape, "head_dim": head_dim},
            "cluster": {"topology": {"gpu": gpu, "levels": levels}},
            "training": {"seq_len": 2_048, "global_batch": 8, "attention": attention},
        }
    )


def core_s(head_dim: int, attends: str, fp32: float | None = FP32_TFLOPS) -> float:
    one = np.ones(1, int)
    shards = Shards(one, one, one, one, one, np.array([False]))
    seconds = attention(work(spec(head_dim, attends, fp32), EVERY, shards))
    return float(seconds.core_s[0])


def test_heads_that_no_8_divides_have_the_rate_of_fp32() -> None:
    """Two matmuls of 2,048 x 2,048 x 108 for each of 8 heads."""
    flops = 8 * 2 * 2 * 2_048 * 2_048 * 108
    assert core_s(108, "plain") > flops / (FP32_TFLOPS * 1e12)
    assert core_s(104, "plain") < flops / (FP32_TFLOPS * 1e12) / 4


def test_fused_attention_pads_its_heads() -> None:
    assert core_s(104, "flash2") < core_s(108, "flash2") < core_s(112, "flash2")


@pytest.mark.parametrize("fp32", [1.0, 10.0, 500.0])
def test_never_faster_than_with_tensor_cores(fp32: float) -> None:
    peak = TENSOR_TFLOPS * 1e12
    gpu = GpuRates(peak, peak, 1e15, 2, EVERY, fp32_flops=fp32 * 1e12)
    with_them_s = gpu.matmul_s(2_048.0, 2_048.0, 108.0)
    without_s = gpu.misaligned_s(2_048.0, 2_048.0, 108.0)
    assert without_s >= with_them_s
    assert without_s >= 2 * 2_048 * 2_048 * 108 / (fp32 * 1e12) * (1 - 1e-9)


def test_a_gpu_whose_rate_of_fp32_is_unknown() -> None:
    peak = TENSOR_TFLOPS * 1e12
    gpu = GpuRates(peak, peak, 1e15, 2, EVERY)
    with_them_s = gpu.matmul_s(2_048.0, 2_048.0, 108.0)
    assert gpu.misaligned_s(2_048.0, 2_048.0, 108.0) == MISALIGNED * with_them_s
    assert core_s(108, "plain", fp32=None) > 3 * core_s(104, "plain", fp32=None)
