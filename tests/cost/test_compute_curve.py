"""Kernels on a smooth curve: more work takes no less time, and no more per FLOP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.compute import kernels
from meshwright.cost.job import Efficiency
from meshwright.cost.roofline import GpuRates
from meshwright.plans.skeletons import Shards
from meshwright.spec.spec import Spec

TIGHT = 1e-9
"""Room for rounding, relative."""

sizes = st.one_of(
    st.integers(1, 300),
    st.integers(1, 200_000),
    st.integers(1, 1_600).map(lambda tiles: 128 * tiles),
)


@st.composite
def machines(draw: st.DrawFn) -> GpuRates:
    efficiency = Efficiency(
        gemm=draw(st.floats(0.2, 1.0)),
        gemm_half_size=draw(st.floats(1.0, 2_000.0)),
        memory=draw(st.floats(0.05, 1.0)),
        launch_s=draw(st.floats(1e-7, 1e-3)),
    )
    peak_flops = draw(st.floats(1e13, 5e15))
    memory_bytes_per_s = draw(st.floats(1e11, 1e13))
    return GpuRates(peak_flops, peak_flops, memory_bytes_per_s, 2, efficiency)


@given(machines(), sizes, sizes, sizes, st.integers(0, 2))
def test_no_matmul_falls_off_the_curve(
    gpu: GpuRates, m: int, n: int, k: int, longer: int
) -> None:
    """One more row, column or inner element: no faster, and no slower per FLOP."""
    shape = [float(m), float(n), float(k)]
    more = [size + (axis == longer) for axis, size in enumerate(shape)]
    before, after = gpu.matmul_s(*shape), gpu.matmul_s(*more)
    assert after >= before
    assert after / np.prod(more) <= before / np.prod(shape) * (1 + TIGHT)


@given(machines(), sizes, sizes, sizes)
def test_no_matmul_beats_the_peak(gpu: GpuRates, m: int, n: int, k: int) -> None:
    least = 2.0 * m * n * k / (gpu.matmul_flops * gpu.efficiency.gemm)
    assert gpu.matmul_s(float(m), float(n), float(k)) >= least


@given(machines(), sizes, sizes, sizes)
def test_a_matmul_takes_as_long_however_it_is_turned(
    gpu: GpuRates, m: int, n: int, k: int
) -> None:
    """The gradients of input and weight are the forward's three sizes, permuted."""
    forward = gpu.matmul_s(float(m), float(n), float(k))
    for turned in [(m, k, n), (n, k, m)]:
        assert gpu.matmul_s(*map(float, turned)) == pytest.approx(forward, rel=1e-9)


def test_half_size_halves_the_rate() -> None:
    """96 x 8 x 8 with a half size of 96: 2 x 192 x 104 x 104 FLOPs' time at 1e12."""
    efficiency = Efficiency(gemm=1.0, gemm_half_size=96.0, launch_s=1e-7)
    gpu = GpuRates(1e12, 1e12, 1e15, 2, efficiency)
    took = gpu.matmul_s(96.0, 8.0, 8.0)
    assert took == pytest.approx(2 * 192 * 104 * 104 / 1e12, rel=1e-12)


EXPERTS = {"n_experts": 16, "top_k": 4, "d_ff": 96, "shared_d_ff": 128}
LATENT = {"q_rank": 96, "kv_rank": 64, "rope_dim": 16, "nope_dim": 48, "v_dim": 32}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"gated_mlp": True, "n_kv_heads": 2},
    "experts": {"moe": EXPERTS, "qk_norm": True},
    "latent": {"moe": EXPERTS, "mla": LATENT},
}


def spec(model: dict[str, Any], **training: object) -> Spec:
    shape = {
        "n_layers": 4,
        "d_model": 512,
        "n_heads": 8,
        "d_ff": 1_408,
        "vocab": 8_000,
        "bias": "none",
    }
    gpu = {"memory_gib": 80, "memory_gb_s": 3_350, "peak_tflops": {"bf16": 989}}
    levels = [{"name": "l", "size": 8, "gb_s": 450, "latency_us": 1}]
    return Spec.model_validate(
        {
            "model": shape | model,
            "cluster": {"topology": {"gpu": gpu, "levels": levels}},
            "training": {"seq_len": 1_024, "global_batch": 8} | training,
        }
    )


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("attention", ["flash", "plain"])
@pytest.mark.parametrize("degrees", [(1, 1, 1), (2, 1, 2), (4, 2, 8)])
def test_larger_micro_batches_are_never_slower_per_token(
    model: dict[str, Any], attention: str, degrees: tuple[int, int, int]
) -> None:
    batches = np.arange(1, 65)
    tp, cp, ep = (np.full(len(batches), degree) for degree in degrees)
    shards = Shards(tp, cp, ep, 0 * ep + 1, batches, np.full(len(batches), True))
    took = kernels(spec(model, attention=attention), Efficiency(), shards)
    ends = {name: vars(took)[name] for name in ("embedding_s", "head_s")}
    again = {str(bits): seconds for bits, seconds in took.repeated.items()}
    of_layer = {**vars(took.layer), **ends, **again}
    assert (np.diff(of_layer.pop("dispatch_s")) == 0).all()
    for name, seconds in of_layer.items():
        assert seconds.shape == batches.shape
        assert (np.diff(seconds) >= 0).all(), name
        assert (np.diff(seconds / batches) <= TIGHT * seconds[:-1]).all(), name
