"""What a framework changes about kernels: its attention, and its vocabulary.

The GPU does 1e12 FLOP/s, a newer one 600 or 1,000 times that, and moves 1e14 bytes/s.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.cost.compute import kernels
from meshwright.cost.job import Efficiency
from meshwright.plans.skeletons import Shards
from meshwright.spec.spec import Spec
from meshwright.spec.training import Training

IDEAL = Efficiency(
    gemm=1.0, gemm_half_size=1.0, attention=1.0, memory=1.0, launch_s=1e-7
)
SEQ, WIDTH = 4_096, 512
OLDER, NEWER = 1, 600
FLASH_2, VENDORS_64 = ((64 / (64 + w)) / (128 / (128 + w)) for w in (18, 50))
VENDORS = VENDORS_64 / FLASH_2
"""What heads of 64 cost kernels of the GPU's vendor beside FlashAttention-2."""


def spec(framework: str, peak: int, vocab: int = 8_000) -> Spec:
    gpu = {"memory_gib": 80, "memory_gb_s": 1e5, "peak_tflops": {"bf16": peak}}
    gpu |= {"matmul_share": 1}
    levels = [{"name": "l", "size": 8, "gb_s": 450, "latency_us": 1}]
    shape = {"n_layers": 4, "d_model": WIDTH, "n_heads": 8, "d_ff": 2_048}
    return Spec.model_validate(
        {
            "model": {**shape, "vocab": vocab, "bias": "none"},
            "cluster": {"topology": {"gpu": gpu, "levels": levels}},
            "training": {"seq_len": SEQ, "global_batch": 8, "attention": "flash"}
            | {"fused": ["norm", "loss"]},
            "framework": framework,
        }
    )


def shards(tp: int) -> Shards:
    one, found = np.array([1]), np.array([tp])
    return Shards(found, one, one, one, one, np.array([False]))


@pytest.mark.parametrize(
    ("framework", "peak", "share"),
    [
        ("megatron", OLDER, 1.0),
        ("megatron", NEWER, VENDORS),
        ("fsdp", OLDER, 1.0),
        ("fsdp", NEWER, 500 / 600),
        ("fsdp", 900, 0.63),
        ("torchtitan", 900, 0.63),
        ("torchtitan", 2_000, 0.63 * 989 / 2_000),
    ],
)
def test_flash_attention_2_keeps_to_the_instructions_of_a100(
    framework: str, peak: int, share: float
) -> None:
    """Two matmuls of 2 x 4,096^2 x 512 FLOPs, of which half are masked.

    Above the peak of A100's instructions, 5e14, no GPU is slower for its higher peak,
    and none is faster than H100. Heads are 64 wide.
    """
    took = kernels(spec(framework, peak), IDEAL, shards(1))
    share *= SEQ / (SEQ + 300) * FLASH_2
    assert took.layer.attention_s[0] == pytest.approx(
        2 * SEQ**2 * WIDTH / (peak * 1e12 * share)
    )


def head_matmuls_s(framework: str, vocab: int, tp: int) -> float:
    """Return the head's seconds without what it moves: norms and fp32 logits."""
    took = kernels(spec(framework, OLDER, vocab), IDEAL, shards(tp)).head_s[0]
    norms_s = 3 * IDEAL.launch_s  # 2 x 4,096 x 512 x 2 bytes take less
    logits_s = 4 * SEQ * vocab / tp * 4 / 1e14
    return float(took - norms_s - logits_s - IDEAL.microbatch_s / 2)


@pytest.mark.parametrize(
    ("framework", "vocab", "tp", "times"),
    [
        ("fsdp", 8_000, 1, 3),
        ("fsdp", 8_001, 1, 1 + 2 * 4),
        ("deepspeed", 8_001, 1, 1 + 2 * 4),
        ("megatron", 8_001, 1, 3),
        ("deepspeed", 8_001, 2, 3),
    ],
)
def test_gradients_of_odd_vocabularies_are_read_slowly(
    framework: str, vocab: int, tp: int, times: int
) -> None:
    """The forward reads 512 wide rows only; both matmuls of the backward read rows as
    long as the vocabulary, unless it is padded."""
    matmul_s = 2 * (SEQ + 1) * (vocab / tp + 1) * (WIDTH + 1) / 1e12
    found = head_matmuls_s(framework, vocab, tp)
    assert found == pytest.approx(times * matmul_s, rel=1e-9)


@pytest.mark.parametrize(
    ("framework", "training", "leaves_out"),
    [
        ("fsdp", {}, True),
        ("fsdp", {"reentrant": True}, False),
        ("fsdp", {"lora": {"rank": 8}}, False),
        ("fsdp", {"lora": {"rank": 8, "targets": ["attention"]}}, True),
        ("torchtitan", {}, False),
        ("torchtitan", {"compile": True}, True),
        ("megatron", {}, False),
        ("deepspeed", {"compile": True}, False),
    ],
)
def test_recomputation_stops_before_the_last_matmul_that_nothing_needs(
    framework: str, training: dict[str, Any], leaves_out: bool
) -> None:
    asked = spec(framework, OLDER)
    changed = Training.model_validate(asked.training.model_dump() | training)
    found = kernels(asked.model_copy(update={"training": changed}), IDEAL, shards(1))
    d_ff, flops_per_s = asked.model.d_ff, OLDER * 1e12
    matmul_s = 2 * (SEQ + 1) * (WIDTH + 1) * (d_ff + 1) / flops_per_s
    expected = matmul_s if leaves_out else 0.0
    assert found.layer.unneeded_s == pytest.approx(expected)
