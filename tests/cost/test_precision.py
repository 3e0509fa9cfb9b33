"""fp8: what runs at its peak, what is kept in it, and what stays in 16 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import meshwright as mw
from meshwright import catalog
from meshwright.cost.activations import saved_bytes
from meshwright.cost.compute import kernels
from meshwright.cost.job import Efficiency, make_job
from meshwright.cost.memory import memory_costs
from meshwright.cost.roofline import GpuRates, gpu_rates, work
from meshwright.cost.traffic import hidden_bytes
from meshwright.planner.rows import build_lattice
from meshwright.plans.skeletons import CHEAP, Shards
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.spec.spec import Spec

H, FF, HEADS, SEQ = 4096, 14336, 32, 8192
KEYS = H // 4
FP8, BF16 = 2000e12, 1000e12
EVERY = Efficiency(
    gemm=1.0, gemm_half_size=1.0, attention=1.0, memory=1.0, launch_s=1e-7
)


def llama(precision: str, framework: str = "megatron", **training: object) -> Spec:
    peaks = {"fp8": FP8 / 1e12, "bf16": BF16 / 1e12, "fp32": 50}
    gpu = {"memory_gib": 500, "memory_gb_s": 4000, "peak_tflops": peaks}
    gpu |= {"matmul_share": 1, "matmul_share_fp8": 1}
    link = {"name": "l", "size": 2, "gb_s": 300, "latency_us": 1}
    return Spec.model_validate(
        {
            "model": {
                "n_layers": 2, "d_model": H, "n_heads": HEADS, "n_kv_heads": 8,
                "d_ff": FF, "vocab": 1024, "gated_mlp": True, "norm": "rmsnorm",
                "bias": "none",
            },
            "framework": framework,
            "cluster": {"topology": {"gpu": gpu, "levels": [link]}},
            "training": {
                "seq_len": SEQ, "global_batch": 2, "precision": precision, **training,
            },
        }
    )  # fmt: skip


def one() -> Shards:
    column = np.array([1])
    return Shards(column, column, column, column, column, np.array([False]))


def saved(spec: Spec, selective: bool = False) -> float:
    return float(saved_bytes(spec, one(), CHEAP * selective)[0])


def test_transformer_engine_saves_inputs_in_a_byte() -> None:
    """Two norms' outputs and the MLP's, 1 byte less each of h, h and ff.

    Attention's output stays for the core's backward, and is cast beside: 1 byte more.
    """
    assert saved(llama("bf16")) - saved(llama("fp8")) == 2 * H + FF - H
    more = saved(llama("fp8"), True) - saved(llama("bf16"), True)
    assert more == H


def test_plain_attention_keeps_its_output_for_a_matmul_alone() -> None:
    bf16, fp8 = (saved(llama(p, attention="plain")) for p in ("bf16", "fp8"))
    assert bf16 - fp8 == 2 * H + FF + H


@pytest.mark.parametrize("framework", ["torchtitan", "fsdp"])
def test_torchao_saves_inputs_in_16_bits(framework: str) -> None:
    assert saved(llama("fp8", framework)) == saved(llama("bf16", framework))


@pytest.mark.parametrize("framework", ["megatron", "deepspeed", "torchtitan", "fsdp"])
@pytest.mark.parametrize("attention", ["flash", "plain"])
def test_lower_precision_never_saves_more(framework: str, attention: str) -> None:
    order = [
        saved(llama(p, framework, attention=attention)) for p in ("fp8", "bf16", "fp32")
    ]
    assert order == sorted(order)


def test_transformer_engine_keeps_two_copies_of_weights() -> None:
    """2 bytes of every weight of a layer, none under ZeRO-3 and none with torchao."""
    layer = H * (H + 2 * KEYS) + H * H + 3 * H * FF + 2 * H
    for framework, copies in (("megatron", 2), ("torchtitan", 0)):
        weights = []
        for precision in ("bf16", "fp8"):
            job = make_job(llama(precision, framework))
            rows = build_lattice(job).rows
            held = memory_costs(job, rows).layer["weights"]
            weights.append(held * np.where(rows.zero < 3, 1, 0) * rows.tp)
        tp1 = (rows.tp == 1) & (rows.zero < 3)
        more = (weights[1] - weights[0])[tp1]
        np.testing.assert_allclose(more, copies * layer, rtol=1e-12)


def test_a_linear_layer_takes_its_flops_and_its_casts() -> None:
    """2 m n k at the fp8 peak, plus m k numbers read in 2 bytes and written twice."""
    gpu = work(llama("fp8"), EVERY, one()).gpu
    m, n, k = 8192.0, 28672.0, 4096.0
    matmul_s = 2 * (m + 1) * (n + 1) * (k + 1) / FP8
    cast_s = m * k * (2 + 1 + 1) / 4e12
    assert gpu.linear_s(m, n, k) == pytest.approx(matmul_s + cast_s, rel=1e-12)


def test_a_linear_layer_of_few_tokens_reads_a_byte_a_weight() -> None:
    gpu = work(llama("fp8"), EVERY, one()).gpu
    m, n, k = 1.0, 28672.0, 4096.0
    moved_s = (m * k + k * n + 2 * m * n) / 4e12
    assert gpu.linear_s(m, n, k) == pytest.approx(moved_s + 1e-7, rel=1e-12)


def test_attention_and_head_stay_at_the_16_bit_peak() -> None:
    fp8, bf16 = (kernels(llama(p), EVERY, one()) for p in ("fp8", "bf16"))
    assert fp8.layer.attention_s == bf16.layer.attention_s
    assert fp8.head_s == bf16.head_s
    params = H * (H + 2 * KEYS) + H * H + 3 * H * FF
    inputs = H + H + H + FF
    expected = SEQ * params * 2 / FP8 + SEQ * inputs * 4 / 4e12
    assert fp8.layer.weight_s[0] == pytest.approx(expected, rel=0.01)
    assert bf16.layer.weight_s[0] == pytest.approx(SEQ * params * 2 / BF16, rel=0.01)


def test_16_bit_matmuls_are_all_alike() -> None:
    gpu = GpuRates(BF16, BF16, 4e12, 2, EVERY)
    assert gpu.linear_s(64, 64, 64) == gpu.matmul_s(64, 64, 64)


def test_gpus_that_hold_their_clocks_sustain_the_best_matmul() -> None:
    """Factors of matmuls are over a tenth less, which power and heat take."""
    gpu = llama("fp8").cluster.topology.gpu
    held = gpu.model_copy(update={"holds_clocks": True})
    usual, fast = (gpu_rates(one, "fp8", EVERY) for one in (gpu, held))
    assert fast.matmul_flops == pytest.approx(usual.matmul_flops / 0.9)
    assert fast.fp8_flops == pytest.approx((usual.fp8_flops or 0) / 0.9)
    assert fast.attention_flops == usual.attention_flops


def test_messages_stay_in_16_bits() -> None:
    jobs = [make_job(llama(p)) for p in ("fp8", "bf16")]
    fp8, bf16 = (hidden_bytes(job, build_lattice(job).rows) for job in jobs)
    np.testing.assert_array_equal(fp8, bf16)


TWICE = {
    "h100-sxm-80gb", "h100-pcie-80gb", "h100-nvl-94gb", "h200-sxm-141gb", "l4-24gb",
    "l40s-48gb", "rtx-4090", "rtx-5090-32gb", "b200-sxm-180gb", "b300-sxm-288gb",
    "gb200-186gb", "gb300-288gb", "mi300x-192gb", "mi325x-256gb", "mi355x-288gb",
    "rtx-6000-ada-48gb", "h20-sxm-96gb", "h800-sxm-80gb", "h200-nvl-141gb",
    "gh200-96gb", "gh200-144gb", "gb10-128gb", "l40-48gb", "mi300a-128gb",
    "rtx-pro-6000-96gb", "rtx-pro-6000-max-q-96gb", "rtx-pro-6000-server-96gb",
}  # fmt: skip


AS_FAST = {"gaudi3-128gb"}
"""Its matrix engines have one rate for both (Intel, Gaudi 3 white paper)."""


@pytest.mark.parametrize("name", catalog.names("topologies/gpus"))
def test_8_bit_matmuls_run_twice_as_fast_since_hopper_ada_and_cdna_3(name: str) -> None:
    file = catalog.locate("topologies/gpus", name, Path())
    peaks = read_yaml(file).data["peak_tflops"]
    assert ("fp8" in peaks) == (name in TWICE or name in AS_FAST)
    if name in AS_FAST:
        assert peaks["fp8"] == peaks["bf16"]
    elif name in TWICE:
        assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=0.013)


def test_a_gpu_without_fp8_is_named() -> None:
    data = mw.load("llama2-13b-8xa100", mw.Spec).model_dump()
    data["training"]["precision"] = "fp8"
    with pytest.raises(ValueError, match=r"has no peak on a100.*; accepted: bf16"):
        Spec.model_validate(data)
