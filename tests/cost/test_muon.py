"""Muon: its state, and the matmuls of its update, by numbers of the papers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.cost.blocks import Matrix, orthogonalised_s
from meshwright.cost.job import Efficiency, make_job
from meshwright.cost.price import price
from meshwright.cost.roofline import gpu_rates
from meshwright.cost.saved import Split
from meshwright.planner.rows import build_lattice
from meshwright.spec.spec import Spec
from tests.helpers.plans import best_of
from tests.helpers.rows import row


def spec_of(optimizer: str, **fields: Any) -> Spec:
    training = {"seq_len": 2048, "global_batch": 16, "optimizer": optimizer}
    spec = {
        "model": "llama3-8b",
        "cluster": {"topology": "dgx-h100"},
        "training": training | fields.pop("training", {}),
        "pins": {"tp": 1, "pp": 1, "cp": 1, "zero": 1, "dp_replicate": 1},
    }
    return mw.load(spec | fields, Spec)


def optimizer_bytes(spec: Spec) -> float:
    job = make_job(spec)
    lattice = build_lattice(job)
    rows, _ = lattice.on_meshes(np.arange(1), None)
    return float(price(job, rows).memory.layer["optimizer"][0])


def test_matrices_have_a_momentum_and_vectors_two_moments() -> None:
    # Of a layer of Llama 3 8B 218,103,808 weights in matrices and 8,192 in norms,
    # over the eight ranks: fp32 weights, and 4 or 8 bytes beside them.
    assert optimizer_bytes(spec_of("muon")) == (218_103_808 * 8 + 8_192 * 12) / 8
    assert optimizer_bytes(spec_of("adamw")) == (218_103_808 + 8_192) * 12 / 8


def test_an_update_has_no_more_flops_than_its_author_says() -> None:
    """6 n m m FLOPs an iteration (Jordan et al. 2024, 'Runtime analysis')."""
    perfect = Efficiency(
        gemm=1.0, memory=1.0, launch_s=1e-7, gemm_half_size=1.0, dispatch_s=1e-6
    )
    job = make_job(spec_of("muon"), perfect)
    lattice = build_lattice(job)
    rows, _ = lattice.on_meshes(np.arange(1), None)
    gpu = job.spec.cluster.topology.gpu
    rate = gpu.peak_tflops.flops("bf16") * gpu.matmul_share
    shapes = [(4096, 4096)] * 2 + [(1024, 4096)] * 2 + [(4096, 14336)] * 3
    most = sum(5 * 6 * m * m * n for m, n in shapes) / 8
    least = sum(5 * (4 * m * m * n + 2 * m**3) for m, n in shapes) / 8
    seconds = float(np.asarray(orthogonalised_s(job, rows, True))[0])
    assert least / rate <= seconds <= 1.02 * most / rate


@pytest.mark.parametrize("framework", ["torchtitan", "fsdp", "internevo"])
def test_frameworks_without_it_say_so(framework: str) -> None:
    conflict = mw.explain(spec_of("muon", framework=framework, pins={})).conflict
    assert conflict is not None
    assert "muon_supported" in {rule.rule for rule in conflict.rules}


def test_shards_of_weights_break_matrices() -> None:
    spec = spec_of("muon", pins={"zero": 2})
    assert best_of(spec) is None


def test_it_is_refused_beside_adapters() -> None:
    with pytest.raises(mw.SpecError, match=r"training\.optimizer"):
        spec_of("muon", training={"lora": {}})


def test_tensor_parallelism_of_experts_halves_their_matrices_alone() -> None:
    spec = spec_of("muon")
    gpu = gpu_rates(spec.cluster.topology.gpu, "bf16", Efficiency())

    def update_s(outputs: int, split: Split, etp: int) -> float:
        matrix = Matrix(outputs, 4096, split)
        return float(matrix.seconds(gpu, row(etp=etp), spec.model)[0])

    assert update_s(1024, "routed inner", 2) == update_s(512, "sequence", 1)
    assert update_s(1024, "sequence", 2) == update_s(1024, "sequence", 1)
