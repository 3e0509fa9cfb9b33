"""Bytes of state per parameter: framework x precision x optimizer x ZeRO, by hand.

w weights, g gradients, m the optimizer's fp32 copy of a weight, d = 8 GPUs that shard.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from meshwright.cost.state import (
    fp8_weight_bytes,
    layer_state,
    sharded_bytes,
    state_bytes,
)
from meshwright.plans.skeletons import Sharding
from meshwright.spec.spec import Spec

D, WIDTH = 8, 4096
GPU = {
    "memory_gib": 80,
    "memory_gb_s": 2000,
    "peak_tflops": dict.fromkeys(("fp8", "bf16", "fp16", "tf32", "fp32"), 100),
}
LINK = {"name": "l", "size": D, "gb_s": 300, "latency_us": 1}
MODEL = {"n_layers": 4, "d_model": WIDTH, "n_heads": 32, "d_ff": 16384, "vocab": 1024}

MOMENTS = {
    "adamw": 8.0,
    "adamw-8bit": 2 + 2 * 4 / 256,
    "sgd": 4.0,
    "adafactor": 4 * (WIDTH + WIDTH) / WIDTH**2,
}


def spec(framework: str, **training: object) -> Spec:
    return Spec.model_validate(
        {
            "model": MODEL,
            "framework": framework,
            "cluster": {"topology": {"gpu": GPU, "levels": [LINK]}},
            "training": {"seq_len": 1024, "global_batch": 8, **training},
        }
    )


def held(framework: str, zero: int, **training: object) -> float:
    state = state_bytes(spec(framework, **training))
    parts = sharded_bytes(state, Sharding(np.array([zero]), np.array([D])))
    return float(sum(part[0] for part in parts))


@pytest.mark.parametrize(("optimizer", "moments"), MOMENTS.items())
@pytest.mark.parametrize(
    ("framework", "precision", "fixed", "zeros"),
    [
        # Megatron-LM: 2 w + 4 g + 4 m; 12 of 18 bytes are the optimizer's with AdamW.
        ("megatron", "bf16", (2, 4, 4), (6, 6, 2, 0)),
        # Beside fp16 it adds gradients up in 16 bits.
        ("megatron", "fp16", (2, 2, 4), (4, 4, 2, 0)),
        ("megatron", "fp8", (2, 4, 4), (6, 6, 2, 0)),
        # DeepSpeed fp16: 2 w + 2 g + 4 m and 6 of flat and fp32 gradients.
        ("deepspeed", "fp16", (2, 2, 10), (4, 4, 2, 0)),
        # The same in InternEvo without the flat copy; moments are counted below.
        ("internevo", "bf16", (2, 2, 8), (4, 4, 2, 0)),
        # FSDP: fp32 parameters and gradients. All in fp32: so too, anywhere.
        ("fsdp", "bf16", (4, 4, 0), (8, 8, 4, 0)),
        ("torchtitan", "bf16", (4, 4, 0), (8, 8, 4, 0)),
        ("megatron", "fp32", (4, 4, 0), (8, 8, 4, 0)),
        ("deepspeed", "tf32", (4, 4, 0), (8, 8, 4, 0)),
    ],
)
def test_bytes_per_parameter(
    framework: str,
    precision: str,
    fixed: tuple[int, int, int],
    zeros: tuple[int, int, int, int],
    optimizer: str,
    moments: float,
) -> None:
    """What is whole, and a share of all else."""
    # InternEvo's update has the root and the quotient of its moments beside them.
    known = moments * (2 if framework == "internevo" else 1)
    for zero, whole in enumerate(zeros):
        rest = sum(fixed) + known - whole
        expected = whole + rest / (D if zero else 1)
        got = held(framework, zero, precision=precision, optimizer=optimizer)
        assert got == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("zero", "expected"),
    # Sums in fp32 beside 2 w + 2 g, whole; from stage 2 on copies as in fp16.
    [(0, 20), (1, 8 + 12 / D), (2, 2 + 20 / D), (3, 22 / D)],
)
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_deepspeed_adds_bf16_gradients_up_in_fp32(
    zero: int, expected: float, precision: str
) -> None:
    assert held("deepspeed", zero, precision=precision) == expected


def test_where_gradients_are_added_up_can_be_said() -> None:
    """NeMo: 2 + 2 + 12 instead of 18 bytes, and half of them on the links."""
    usual, asked = (state_bytes(spec("megatron", gradients=g)) for g in (None, "bf16"))
    assert (usual.total, usual.reduced) == (18, 4)
    assert (asked.total, asked.reduced) == (16, 2)
    assert held("deepspeed", 1, gradients="bf16") == 4 + 18 / D
    fsdp = state_bytes(spec("fsdp", gradients="bf16"))
    assert (fsdp.total, fsdp.reduced) == (16, 2)


FRAMEWORKS = ["megatron", "deepspeed", "internevo", "torchtitan", "fsdp"]
CASES = list(itertools.product(FRAMEWORKS, range(4), ["fp32", "fp16", "bf16", "fp8"]))


@pytest.mark.parametrize(("framework", "zero", "precision"), CASES)
def test_smaller_states_never_need_more(
    framework: str, zero: int, precision: str
) -> None:
    """Less precise moments, gradients in 16 bits, a higher ZeRO stage."""
    job: dict[str, Any] = {"precision": precision}
    order = ["adafactor", "adamw-8bit", "sgd", "adamw"]
    by_optimizer = [held(framework, zero, optimizer=o, **job) for o in order]
    assert by_optimizer == sorted(by_optimizer)
    if zero:
        sums = ("bf16", "fp32")
        less, more = (held(framework, zero, gradients=g, **job) for g in sums)
        assert less <= more
        assert held(framework, zero, **job) <= held(framework, zero - 1, **job)


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        # 2 w + 4 g + (4 m + 4 moments) / d
        ({"moments": "bf16"}, 2 + 4 + 8 / D),
        # 2 w + 4 g + (2 m + 8 moments) / d
        ({"master_weights": "remainders"}, 2 + 4 + 10 / D),
        # DeepSeek-V3 in Megatron Bridge, in bf16: 2 w + 2 g + (2 m + 4 moments) / d
        (
            {"moments": "bf16", "master_weights": "remainders", "gradients": "bf16"},
            2 + 2 + 6 / D,
        ),
    ],
)
def test_the_precision_aware_optimizer_keeps_less(
    training: dict[str, str], expected: float
) -> None:
    assert held("megatron", 1, **training) == pytest.approx(expected)


@pytest.mark.parametrize("framework", ["fsdp", "torchtitan", "generic", "deepspeed"])
def test_pure_bf16_has_eight_bytes(framework: str) -> None:
    """2 w + 2 g + 4 moments, and 2 of a momentum alone; one byte each in 8 bits."""
    assert held(framework, 0, master_weights="none") == 8
    assert held(framework, 3, master_weights="none") == 8 / D
    assert held(framework, 0, master_weights="none", optimizer="sgd") == 6
    small = held(framework, 0, master_weights="none", optimizer="adamw-8bit")
    assert small == 4 + 2 * (1 + 4 / 256)


def test_frozen_weights_may_stay_in_fp32() -> None:
    """They are gathered in 16 bits, as matmuls read them."""
    wide = spec("fsdp", lora={"weights": "fp32"})
    state = layer_state(wide)
    assert (state.weights, state.gathered, state.optimizer) == (4, 2, 0)


def test_primary_fp8_weights_beside_16_bits_of_the_optimizer() -> None:
    """1 w + 2 g, of each rank; 2 of what the update renews and 4 of moments, shared."""
    state = {"precision": "fp8", "fp8_weights": "primary", "master_weights": "none"}
    assert held("generic", 0, **state) == 1 + 2 + 6
    assert held("generic", 1, **state) == 1 + 2 + 6 / D


def test_primary_fp8_weights_take_what_16_bits_take() -> None:
    """Two copies of a byte instead of 16 bits and two copies."""
    copies = spec("megatron", precision="fp8")
    primary = spec("megatron", precision="fp8", fp8_weights="primary")
    assert (fp8_weight_bytes(copies), fp8_weight_bytes(primary)) == (2, 0)
    assert state_bytes(copies) == state_bytes(primary)
