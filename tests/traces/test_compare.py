"""A modelled trace beside a profiler's: phases, kinds and what is refused."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.api.price import timeline
from meshwright.report.simulation import trace_text
from meshwright.traces.compare import (
    clipped,
    compare_traces,
    kind_of,
    length,
    lengths_in_turn,
    merged,
)
from tests.helpers.command import run
from tests.helpers.kineto import DATA, GPU_PLAN, SLOWER, as_kineto
from tests.helpers.plans import best_of

NAMES = {
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all-gather",
    "ncclKernel_ReduceScatter_RING_LL_Sum_half": "reduce-scatter",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": "all-reduce",
    "ncclDevKernel_SendRecv": "send-recv",
    "c10d::alltoall_base_": "all-to-all",
    "gloo:all_reduce": "all-reduce",
    "record_param_comms": "other",
    "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT": "matmul",
    "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n": "matmul",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>": "matmul",
    "Cijk_Alik_Bljk_BBS_BH_MT128x128": "matmul",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits>": "attention",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80": "attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
    "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>": "elementwise",
    "triton_poi_fused_add_0": "elementwise",
    "void multi_tensor_apply_kernel<AdamFunctor>": "optimizer",
    "aten::addmm": "matmul",
    "aten::gelu": "elementwise",
    "Memcpy HtoD (Pinned -> Device)": "memcpy",
    "Memcpy DtoD (Device -> Device)": "elementwise",
    "CopyHostToDevice": "elementwise",
    "whatever_17": "other",
}


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_a_kernel_has_its_kind(name: str, kind: str) -> None:
    assert kind_of(name, {}) == kind


def test_the_collective_that_a_trace_names_comes_first() -> None:
    told = {"Collective name": "all_to_allv"}
    assert kind_of("ncclDevKernel_SendRecv", told) == "all-to-all"


spans = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda p: (p[0], sum(p))),
    max_size=12,
)


def cells(of: list[tuple[int, int]]) -> set[int]:
    return {cell for start, end in of for cell in range(start, end)}


def array(of: list[tuple[int, int]]) -> Any:
    return np.array(of, dtype=float).reshape(-1, 2)


@given(st.lists(spans, min_size=1, max_size=4))
def test_lengths_are_those_of_sets_of_cells(sets: list[list[tuple[int, int]]]) -> None:
    found = lengths_in_turn([merged(array(phase_times)) for phase_times in sets])
    seen: set[int] = set()
    for phase_times, told in zip(sets, found, strict=True):
        assert told == len(cells(phase_times) - seen)
        seen |= cells(phase_times)


@given(spans, st.integers(0, 40), st.integers(0, 40))
def test_a_window_keeps_what_is_inside(
    phase_times: list[tuple[int, int]], start: int, more: int
) -> None:
    kept = length(clipped(merged(array(phase_times)), start, start + more))
    assert kept == len(cells(phase_times) & set(range(start, start + more)))


@cache
def modelled() -> dict[str, Any]:
    spec = mw.load("llama2-13b-8xa100", pins=list(GPU_PLAN))
    assert isinstance(spec, mw.Spec)
    best = best_of(spec)
    assert best is not None
    found: dict[str, Any] = json.loads(trace_text(timeline(spec, best.plan)))
    return found


@pytest.fixture
def own_trace(tmp_path: Path) -> Path:
    path = tmp_path / "modelled.json"
    path.write_text(json.dumps(modelled()))
    return path


def written(path: Path, trace: Any) -> Path:
    path.write_text(json.dumps(trace))
    return path


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("stage", [0, 1])
def test_the_model_measured_is_the_model(
    own_trace: Path, tmp_path: Path, stage: int, steps: int
) -> None:
    real = written(tmp_path / "real.json", as_kineto(modelled(), stage, steps=steps))
    told = compare_traces(own_trace, real, stage=stage)
    assert (told.steps, told.stage, told.is_gpu) == (steps, stage, True)
    for phase_times in told.phases:
        assert phase_times.measured_s == pytest.approx(
            phase_times.modelled_s, abs=1e-6
        ), phase_times.phase
    phases = sum(phase_times.measured_s for phase_times in told.phases)
    assert phases == pytest.approx(told.measured_s, rel=1e-9)


@pytest.mark.parametrize(
    ("part", "phase"),
    [("pp", "send-recv"), ("tp", "collectives"), ("compute", "compute")],
)
def test_the_part_that_is_slower_is_the_phase_that_is_off(
    own_trace: Path, tmp_path: Path, part: str, phase: str
) -> None:
    real = written(tmp_path / "real.json", as_kineto(modelled(), 0, {part: 4.0}))
    told = compare_traces(own_trace, real, stage=0)
    assert told.worst.phase == phase
    off = told.worst.measured_s - told.worst.modelled_s
    assert off == pytest.approx(told.measured_s - told.modelled_s, abs=1e-6)


def test_what_hides_behind_compute_is_not_seen(own_trace: Path, tmp_path: Path) -> None:
    kernels = [("gemm", 0.0, 100.0), ("ncclDevKernel_AllReduce_Sum", 50.0, 80.0)]
    events = [
        {"ph": "X", "cat": "kernel", "name": n, "ts": t, "dur": d, "pid": 0, "tid": i}
        for i, (n, t, d) in enumerate(kernels)
    ]
    real = written(tmp_path / "real.json", {"traceEvents": events})
    found = {
        phase_times.phase: phase_times
        for phase_times in compare_traces(own_trace, real).phases
    }
    assert found["compute"].measured_s == pytest.approx(100e-6)
    assert found["collectives"].measured_s == pytest.approx(30e-6)
    assert found["collectives"].busy_s == pytest.approx(80e-6)
    assert found["idle"].measured_s == pytest.approx(0.0)


def test_the_synthetic_gpu_says_what_was_done_to_it(own_trace: Path) -> None:
    told = compare_traces(own_trace, DATA / "kineto-gpu.json", stage=0)
    for phase_times in told.phases:
        factor = {"compute": SLOWER["compute"], "send-recv": SLOWER["pp"]}
        expected = phase_times.modelled_s * factor.get(phase_times.phase, 1.0)
        assert phase_times.measured_s == pytest.approx(expected, rel=0.02), (
            phase_times.phase
        )


def test_a_real_trace_of_a_cpu_adds_up(own_trace: Path) -> None:
    path = DATA / "kineto-cpu.json"
    told = compare_traces(own_trace, path)
    assert (told.steps, told.is_gpu) == (2, False)
    kinds = {phase_times.kind: phase_times for phase_times in told.kernels}
    assert {"matmul", "attention", "elementwise", "optimizer"} <= set(kinds)
    phases = sum(phase_times.measured_s for phase_times in told.phases)
    assert phases == pytest.approx(told.measured_s, rel=1e-9)
    # What operators spend themselves adds up to what the outermost of them take.
    events = json.loads(path.read_bytes())["traceEvents"]
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    whole = 0.0
    for thread in {e["tid"] for e in events if e["cat"] == "cpu_op"}:
        ops = [
            (e["ts"], e["ts"] + e["dur"])
            for e in events
            if e["cat"] == "cpu_op" and e["tid"] == thread
        ]
        whole += length(merged(np.array(ops)))
    seconds = sum(phase_times.seconds for phase_times in told.kernels) * len(steps)
    assert seconds == pytest.approx(whole / 1e6, rel=0.01)


def test_an_archive_is_read_as_the_file(own_trace: Path, tmp_path: Path) -> None:
    packed = tmp_path / "real.json.gz"
    packed.write_bytes(gzip.compress((DATA / "kineto-gpu.json").read_bytes()))
    plain = compare_traces(own_trace, DATA / "kineto-gpu.json", stage=0)
    assert compare_traces(own_trace, packed, stage=0) == plain


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "no JSON"),
        (b"[1, 2]", "no event has a duration"),
        (b'{"traceEvents": 3}', "no traceEvents"),
        (b'{"traceEvents": [{"ph": "X", "ts": "a"}]}', "no event has a duration"),
        (b'[{"ph": "X", "ts": 1, "dur": NaN, "name": "x"}]', "no event has a duration"),
        (b'[{"ph": "X", "ts": 1, "dur": 5, "name": "x"}]', "has no work in it"),
        (b"\x1f\x8bnonsense", "an archive of gzip"),
    ],
)
def test_other_files_are_refused(own_trace: Path, content: bytes, told: str) -> None:
    real = own_trace.with_name("real.json")
    real.write_bytes(content)
    result = run("compare-trace", str(own_trace), str(real))
    assert (result.code, result.stdout) == (2, "")
    assert told in result.stderr


def test_the_first_trace_must_be_the_model(own_trace: Path) -> None:
    real = str(DATA / "kineto-gpu.json")
    result = run("compare-trace", real, real)
    assert result.code == 2
    assert "not a modelled trace" in result.stderr
    assert run("compare-trace", str(own_trace), real, "--stage", "7").code == 2
