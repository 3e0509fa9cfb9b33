"""One matmul: bytes, the fit, the roofline and the splits, worked out by hand."""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import pytest

import meshwright as mw
from meshwright.cli.rare_verbs import Dtype
from meshwright.cost.job import Efficiency
from meshwright.cost.roofline import work
from meshwright.economics.gemm import Matmul, needed, reserved, splits
from meshwright.plans.skeletons import Shards
from meshwright.spec.gpu import PRECISIONS
from tests.helpers.command import Result, run

MIB, GIB = 2**20, 2**30


def told(*arguments: str, code: int = 0) -> dict[str, Any]:
    result = run("gemm", *arguments, "--format", "json")
    assert (result.code, result.stderr) == (code, ""), result
    data: dict[str, Any] = json.loads(result.stdout)
    return data


def refusal(*arguments: str) -> str:
    result = run("gemm", *arguments)
    assert (result.code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
    return result.stderr


def test_bytes_of_the_three_matrices() -> None:
    """A 1,000 x 2,000, W 2,000 x 3,000, Y 1,000 x 3,000, 2 bytes each."""
    data = told("1000", "2000", "3000", "--gpu", "A100-80GB")
    assert data["bytes"] == {"a": 4_000_000, "w": 12_000_000, "y": 6_000_000}
    # fp32 is twice that; fp8 has inputs of 1 byte, and puts out 2.
    data = told("1000", "2000", "3000", "--gpu", "h100", "--dtype", "fp32")
    assert data["bytes"] == {"a": 8_000_000, "w": 24_000_000, "y": 12_000_000}
    data = told("1000", "2000", "3000", "--gpu", "h100", "--dtype", "fp8")
    assert data["bytes"] == {"a": 2_000_000, "w": 6_000_000, "y": 6_000_000}


def test_what_the_allocator_reserves() -> None:
    """2 MiB for up to 1 MiB, 20 MiB below 10 MiB, else multiples of 2 MiB."""
    sizes = [0, 1, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1]
    assert [reserved(size) / MIB for size in sizes] == [0, 2, 2, 20, 20, 10, 12]


def test_overhead_is_itemised_and_adds_up() -> None:
    plain = told("4096", "4096", "4096", "--vram", "40GiB")["overhead"]
    assert plain.pop("total") == sum(plain.values())
    # CUDA and its kernels take 1.1 GiB at least.
    assert plain["context"] == round(1.1 * 2**30)
    # 32 MiB a matrix are whole pages: nothing is rounded.
    assert plain["fragmentation"] == plain["bias"] == plain["residual"] == 0
    more = ("--bias", "--residual", "--split-k", "4")
    full = told("4096", "4096", "4096", "--vram", "40GiB", *more)["overhead"]
    assert full["bias"] == 4096 * 2
    assert full["residual"] == 4096 * 4096 * 2
    assert full["split_k"] == 4 * 4096 * 4096 * 4
    assert full["fragmentation"] == 2 * MIB - 4096 * 2
    assert full.pop("total") == sum(full.values())


def test_the_fit_turns_where_the_inequality_does() -> None:
    """Needed <= memory x (1 - headroom): one side fits, the other does not."""
    need = needed(Matmul(65536, 8192, 65536, "bf16"))
    sizes = ("65536", "8192", "65536")
    for headroom in ("0", "0.03", "0.5"):
        enough = need / (1 - float(headroom)) / GIB
        above = (*sizes, "--vram", f"{enough * 1.0001:.6f}", "--headroom", headroom)
        below = (*sizes, "--vram", f"{enough * 0.9999:.6f}", "--headroom", headroom)
        assert told(*above)["fits"] is True
        assert told(*below, code=1)["fits"] is False


@pytest.mark.parametrize(("dtype", "per_weight"), [("bf16", 12), ("fp32", 8)])
def test_training_adds_gradients_and_optimizer_state(
    dtype: str, per_weight: int
) -> None:
    """Mixed: fp32 weights and two moments, 12 bytes a weight; fp32: two moments."""
    data = told("8192", "4096", "16384", "--gpu", "h100", "--dtype", dtype)
    element, training = (2 if dtype == "bf16" else 4), data["training"]
    assert training["saved_input"] == training["grad_a"] == 8192 * 4096 * element
    assert training["grad_w"] == 4096 * 16384 * element
    assert training["grad_y"] == 8192 * 16384 * element
    assert training["optimizer"] == 4096 * 16384 * per_weight
    gradients = training["grad_a"] + training["grad_w"] + training["grad_y"]
    held = sum(data["bytes"].values()) + gradients + training["optimizer"]
    assert training["needed"] == held + training["overhead"]


def test_a_usable_budget_has_context_and_reserves_behind_it() -> None:
    """1 GiB for 3 x 320 MiB and 32 MiB of workspace, and nothing besides.

    Of 1 GiB of a GPU's memory the context alone would leave too little.
    """
    sizes = ("12800", "12800", "12800", "--usable")
    data = told(*sizes, "1GiB")
    over = data["overhead"]
    assert over["context"] == 0
    assert over["total"] == over["fragmentation"] + 32 * MIB
    assert data["needed"] == 3 * 2 * 12800 * 12800 + over["total"]
    assert (data["budget"], data["headroom"]) == ("usable", 0.0)
    assert data["usable"] == data["memory"] == GIB
    assert told(*sizes, f"{data['needed'] / GIB + 1e-6:.9f}")["fits"]
    assert not told(*sizes, f"{data['needed'] / GIB - 1e-6:.9f}", code=1)["fits"]
    whole = told(*sizes[:3], "--vram", "1GiB", code=1)
    assert (whole["budget"], whole["headroom"]) == ("memory", 0.03)
    assert whole["needed"] - data["needed"] == whole["overhead"]["context"] > 0


def test_shards_have_their_context_behind_them_too() -> None:
    sizes = ("65536", "65536", "65536", "--gpus", "8")
    answer, whole = (
        told(*sizes, option, "5GiB", code=1) for option in ("--usable", "--vram")
    )
    for one, other in zip(answer["splits"], whole["splits"], strict=True):
        assert other["needed"] - one["needed"] == whole["overhead"]["context"]


def test_the_answer_says_which_budget_was_given() -> None:
    answer = run("gemm", "64", "64", "64", "--gpu", "h100", "--usable", "1GiB").stdout
    assert "on h100-sxm-80gb with 1 GiB usable" in answer
    assert "1.00 GiB usable, the CUDA context and all reserves taken off" in answer
    assert "Roofline" in answer
    whole = run("gemm", "64", "64", "64", "--vram", "4GiB").stdout
    assert "= 4.00 GiB x (1 - 0.03 headroom)" in whole
    for option, value in (("--vram", "2GiB"), ("--headroom", "0")):
        told_so = refusal("64", "64", "64", "--usable", "1GiB", option, value)
        assert f"--usable: given beside {option}; accepted: either" in told_so
    assert "--usable '1GX': " in refusal("64", "64", "64", "--usable", "1GX")


def test_training_may_not_fit_where_inference_does() -> None:
    """W is 16 GiB; its AdamW state 96 GiB, of 77.6 GiB usable."""
    data = told("1024", "65536", "131072", "--gpu", "A100-80GB")
    assert data["bytes"]["w"] == 16 * GIB
    assert data["training"]["optimizer"] == 96 * GIB
    assert (data["fits"], data["training"]["fits"]) == (True, False)


def test_roofline_of_a_square_matmul() -> None:
    """2 x 4096^3 FLOPs over 3 x 4096^2 x 2 bytes are 4096 / 3 per byte.

    An A100 has 312e12 FLOP/s and 2.039e12 B/s: it turns at 153.0. 440.5 us at peak.
    """
    answer = told("4096", "4096", "4096", "--gpu", "A100-80GB")["roofline"]
    assert answer["intensity"] == pytest.approx(4096 / 3)
    assert answer["ridge"] == pytest.approx(312e12 / 2.039e12)
    assert answer["side"] == "compute"
    assert answer["bound_s"] == pytest.approx(440.5e-6, rel=1e-4)
    assert answer["bound_s"] < answer["expected_s"] < 2 * answer["bound_s"]


def test_a_matrix_and_a_vector_are_bound_by_memory() -> None:
    """One row: 2 x 8192^2 FLOPs over about 2 x 8192^2 bytes, one FLOP a byte."""
    answer = told("1", "8192", "8192", "--gpu", "h100")["roofline"]
    assert answer["intensity"] == pytest.approx(1.0, rel=1e-3)
    assert answer["side"] == "memory"
    assert answer["bound_s"] == pytest.approx(2 * 8192**2 / 3.35e12, rel=1e-3)


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_roofline_is_that_of_training(dtype: str) -> None:
    """A matmul takes what a layer of a spec would pay for it."""
    spec = mw.load("llama3-8b-2xh100-nvlink", mw.Spec).at(dtype)  # type: ignore[arg-type]
    one = np.ones(1, dtype=np.int64)
    gpu = work(spec, Efficiency(), Shards(one, one, one, one, one, one == 0)).gpu
    column = np.array([4096.0])
    answer = told("4096", "8192", "1024", "--gpu", "h100", "--dtype", dtype)
    expected = gpu.linear_s(column, 1024.0, 8192.0)[0]
    assert answer["roofline"]["expected_s"] == pytest.approx(float(expected), rel=1e-12)


def test_without_a_gpu_there_is_no_roofline() -> None:
    data = told("64", "64", "64", "--vram", "1.5GiB")
    assert data["roofline"] is None
    assert data["usable"] == int(1.5 * GIB * 0.97)


def test_memory_of_a_gpu_can_be_replaced() -> None:
    data = told("64", "64", "64", "--gpu", "h100", "--vram", "40GiB")
    assert (data["gpu"], data["memory"]) == ("h100-sxm-80gb", 40 * GIB)


def test_the_fewest_gpus_are_found() -> None:
    """16 GiB of W on GPUs with room for 6: no fewer GPUs of any kind of split do."""
    answer = Matmul(1024, 65536, 131072, "bf16")
    usable = 6 * GIB
    for split in splits(answer, usable, None):
        assert split.needed <= usable
        assert split.fits
        fewer = splits(answer, usable, split.gpus - 1)
        assert not any(less.fits for less in fewer if less.kind == split.kind)


def test_a_kind_that_never_fits_is_told_of() -> None:
    """Columns leave all of A on every GPU, rows all of Y: 64 GiB of 38.8."""
    sizes = ("262144", "131072", "131072")
    data = told(*sizes, "--vram", "40GiB", code=1)
    fits = {split["kind"]: split["fits"] for split in data["splits"]}
    assert fits == {"column": False, "row": False, "2d": True}


def test_ragged_shards_are_the_largest_ones() -> None:
    """10 columns over 4 GPUs: the largest has 3."""
    column, row = splits(Matmul(8, 10, 10, "bf16"), GIB, 4)[:2]
    assert (column.w, column.y) == ((10, 3), (8, 3))
    assert (row.a, row.w, row.y) == ((8, 3), (3, 10), (8, 10))


def test_every_precision_is_offered() -> None:
    assert {*get_args(Dtype)} == set(PRECISIONS)


def test_wrong_input_is_refused_in_one_line() -> None:
    sizes = ("64", "64", "64")
    assert "--gpu: missing" in refusal(*sizes)
    assert "did you mean" in refusal(*sizes, "--gpu", "H1000")
    assert "unknown unit 'GX'" in refusal(*sizes, "--vram", "40GX")
    assert "expected a number from 0.001" in refusal(*sizes, "--vram", "-1")
    message = refusal(*sizes, "--gpu", "v100")
    assert "--dtype bf16: v100-sxm-16gb has no peak for it" in message
    assert "fp16" in message
    for wrong in (("0", "64", "64"), ("64", "x", "64"), ("64", "64")):
        assert refusal(*wrong, "--gpu", "h100")


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_the_text_has_the_inequality_and_the_splits(form: str) -> None:
    result: Result = run(
        "gemm", "131072", "65536", "131072", "--gpu", "rtx-4090", "--format", form
    )
    assert result.code == 1
    for piece in ("Does not fit.", "headroom", "Splits", "all-reduce", "all-gather"):
        assert piece in result.stdout
