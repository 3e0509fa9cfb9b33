"""Numbers that everybody in the field works out by hand, met by commands and formulas.

Each test has the arithmetic in its docstring, and the assumptions it rests on.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from meshwright.check.check import check
from meshwright.cost.job import Efficiency, make_job
from meshwright.cost.state import state_bytes
from meshwright.cost.traffic import all_reduce_s, hidden_s
from meshwright.economics.ledger import ledger
from meshwright.economics.training_run import chinchilla, six_nd
from meshwright.loading.load import load_spec
from meshwright.planner.solve import solve
from meshwright.results.comparison import Ledger, LedgerEntry
from meshwright.spec.spec import Spec
from tests.helpers.command import run
from tests.helpers.margin import with_margin

RATED = Efficiency(link=1.0, latency=0.1)
"""Links at what their vendors rate them, and hardly any latency."""


def data_of(name: str, *pins: str, **training: object) -> dict[str, Any]:
    data: dict[str, Any] = load_spec(name, list(pins)).model_dump()
    data["training"] |= training
    return data


def status(data: dict[str, Any], **pins: object) -> str:
    spec = Spec.model_validate(data | {"pins": pins})
    return solve(spec).status


def ledger_of(data: dict[str, Any], efficiency: Efficiency | None = None) -> Ledger:
    spec = Spec.model_validate(data)
    best = solve(spec).best
    assert best is not None
    return ledger(make_job(spec, efficiency), best.plan)


def passed_on(entries: Iterable[LedgerEntry]) -> float:
    """Return the bytes that a GPU passes on in rings, (n - 1) / n of each message."""
    ways = {"all_reduce": 2}
    return sum(
        ways.get(entry.operation, 1)
        * (entry.ranks - 1)
        / entry.ranks
        * entry.bytes
        * entry.count_per_step
        for entry in entries
    )


def calls(entries: Iterable[LedgerEntry], operation: str) -> dict[str, int]:
    """Return the calls of an operation in one layer, by phase."""
    counted: Counter[str] = Counter()
    for entry in entries:
        if (entry.block, entry.operation) == ("layer", operation):
            counted[entry.phase] += entry.count_per_layer
    return dict(counted)


ALONE = {"tp": 1, "pp": 1, "cp": 1, "offload": "none"}


@pytest.mark.parametrize(("stage", "expected"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_13b_on_eight_gpus_of_80_gb_needs_zero_2(stage: int, expected: int) -> None:
    """Of 80 GB, where gradients are summed in fp32 beside those of 2 bytes.

    That is DeepSpeed's bf16 optimizer, which shards the sums from stage 2 on. 13B:
    ZeRO-0 13 (2 + 2 + 4 + 12) = 260 GB, ZeRO-1 13 (2 + 2 + 4 + 12 / 8) = 123.5 GB,
    ZeRO-2 13 (2 + 2 / 8 + 18 / 8) = 58.5 GB, its update with 6 bytes of copies.
    """
    data = data_of("llama2-13b-8xa100", seq_len=2048)
    assert (status(data, **ALONE, zero=stage) == "optimal") == bool(expected)


@pytest.mark.parametrize(("stage", "expected"), [(1, 0), (2, 1)])
def test_without_sums_zero_1_leaves_no_room_for_activations(
    stage: int, expected: int
) -> None:
    """2 + 2 + 12 bytes: ZeRO-1 13 (2 + 2 + 12 / 8) = 71.5 GB, ZeRO-2 48.75 GB.

    Activations of 2,048 tokens are 34 x 2,048 x 5,120 x 40 = 14.3 GB without any
    recomputation (Korthikanti et al. 2022, equation 1): 85.8 GB, and 63.0 GB.
    """
    data = data_of("llama2-13b-8xa100", seq_len=2048, gradients="bf16")
    data["framework"] = "megatron"
    data["limits"] = {"memory_margin": 0.03}
    pins = {**ALONE, "recompute": "none"}
    assert (status(data, **pins, zero=stage) == "optimal") == bool(expected)
    # Recomputed, ZeRO-1 does fit: the stage is a matter of what else is decided.
    assert status(data, **ALONE, zero=stage) == "optimal"


DDP = "llama2-7b-64xh200-ddp"
SUM_BYTES = 7e9 * 2
N = np.array([64])


def summed_s(gb_s: float, sent_bytes: float = SUM_BYTES) -> float:
    none = np.zeros(1)
    whole, s_per_byte = np.array([sent_bytes]), np.array([1 / (gb_s * 1e9)])
    return float(all_reduce_s(whole, N, s_per_byte, none)[0])


def test_7b_over_100_gbit_takes_two_seconds() -> None:
    """14 GB of bf16 gradients on 64 GPUs: 2 x 63 / 64 x 14 GB / 12.5 GB/s = 2.205 s.

    That is 49 % of a step of 4.5 s. At 400 Gbit/s it is 0.551 s, as one bit a gradient
    over 100 Gbit/s 0.138 s; 0.7 of it hidden leave 0.66 s.
    """
    assert summed_s(12.5) == pytest.approx(2.205, abs=1e-3)
    assert summed_s(12.5) / 4.5 == pytest.approx(0.49, abs=1e-3)
    assert summed_s(50) == pytest.approx(0.551, abs=1e-3)
    assert summed_s(12.5, 7e9 / 8) == pytest.approx(0.138, abs=1e-3)
    hidden = hidden_s(np.array([2.205]), np.array([4.5 - 2.205]), 0.7)
    assert 2.205 - float(hidden[0]) == pytest.approx(0.66, abs=2e-3)


def test_the_same_of_the_bundled_spec() -> None:
    """Llama 2 7B has 6.738e9 parameters: 2.205 s x 6.738 / 7 = 2.12 s at full rate.

    Four times the bandwidth takes a quarter; one bit a sixteenth of 16; and what hides
    behind the backward is told by each collective.
    """
    data = data_of(DDP)
    whole = gradient_s(ledger_of(data, RATED))
    assert whole == pytest.approx(2.205 * 6.738 / 7, rel=0.01)
    faster = data_of(DDP)
    faster["cluster"]["topology"]["levels"][1]["gb_s"] = 50.0
    assert gradient_s(ledger_of(faster, RATED)) == pytest.approx(whole / 4, rel=0.02)
    solved = run("solve", DDP, "--profile", "unfitted", "--format", "json")
    told = json.loads(solved.stdout)
    options = {one["scheme"]: one for one in told["run"]["compression"]}
    # Rated links are 0.8 busy at best.
    assert options["1-bit"]["traffic_s"] == pytest.approx(whole / 0.8 / 16, rel=0.03)
    assert options["1-bit"]["step_s"] < told["step_s"] - 1.5
    assert options["fp16"]["share"] == 1
    hidden = exposed_sum(ledger_of(data)) / gradient_s(ledger_of(data))
    assert 0.3 < hidden < 0.9


def gradient_s(told: Ledger) -> float:
    return sum(one.seconds for one in told.of_stage(0) if one.part == "dp")


def exposed_sum(told: Ledger) -> float:
    return sum(one.exposed_s for one in told.of_stage(0) if one.part == "dp")


def test_90_days_of_512_gpus() -> None:
    """512 x 989e12 x 0.4 x 90 x 86,400 = 1.575e24 FLOPs.

    Compute-optimal: N = sqrt(1.58e24 / 120) = 1.147e11 on D = 20 N = 2.29e12 tokens.
    30B get 1.58e24 / (6 x 30e9) = 8.78e12 tokens: 3.8 times as many.
    """
    best = chinchilla(30e9, 1.58e24)
    assert best.params == pytest.approx(1.15e11, rel=0.005)
    assert best.tokens == pytest.approx(2.29e12, rel=0.005)
    assert best.overtrained == pytest.approx(3.8, abs=0.05)
    assert six_nd(best.params, best.tokens) == pytest.approx(1.58e24)


def test_the_optimal_model_is_not_overtrained() -> None:
    """Hoffmann et al. 2022, table 3: 67B for 5.76e23 FLOPs (there 1.5e12 tokens)."""
    best = chinchilla(67e9, 5.76e23)
    assert best.overtrained == pytest.approx(1.0, abs=0.05)
    assert best.params == pytest.approx(67e9, rel=0.05)


def test_the_same_run_as_a_bundled_spec() -> None:
    """MPT-30B has 29.98e9 parameters: 1.147e11 / 29.98e9 = 3.83."""
    result = run("solve", "mpt-30b-512xh100-90days", "--format", "json")
    found = json.loads(result.stdout)["run"]
    assert found["chinchilla"]["params"] == pytest.approx(1.15e11, rel=0.005)
    assert found["chinchilla"]["overtrained"] == pytest.approx(3.8, abs=0.05)
    # It meets its 90 days, where MFU is above 40 %.
    assert found["deadline"]["is_met"] == (found["mfu"] > 0.4)


def test_a_square_matmul_split_four_ways() -> None:
    """4,096 x 4,096 in bf16 are 32 MiB: each of four has 8 MiB of W.

    By columns 4,096 x 1,024, an all-gather of Y; by rows 1,024 x 4,096, an all-reduce;
    on a 2 x 2 grid 2,048 x 2,048, both over two.
    """
    result = run("gemm", "4096", "4096", "4096", "--gpu", "A100-80GB", "--gpus", "4",
                 "--format", "json")  # fmt: skip
    data = json.loads(result.stdout)
    assert data["bytes"]["w"] == 32 * 2**20
    column, row, both = data["splits"]
    assert [one["w"] for one in data["splits"]] == [
        [4096, 1024], [1024, 4096], [2048, 2048]
    ]  # fmt: skip
    assert {one["bytes"]["w"] for one in data["splits"]} == {8 * 2**20}
    rebuilt = [[step["operation"] for step in one["rebuild"]] for one in data["splits"]]
    assert rebuilt == [["all_gather"], ["all_reduce"], ["all_reduce", "all_gather"]]
    assert (column["a"], column["y"]) == ([4096, 4096], [4096, 1024])
    assert (row["a"], row["y"]) == ([4096, 1024], [4096, 4096])
    assert (both["a"], both["y"]) == ([4096, 2048], [4096, 2048])
    assert [step["ranks"] for step in both["rebuild"]] == [2, 2]


@pytest.mark.parametrize("n", [2, 3, 8, 64, 1000])
def test_a_ring_passes_on_two_less_two_nths(n: int) -> None:
    """Of each byte 2 (n - 1) / n, on links of 1 byte a second without latency."""
    one, none = np.ones(1), np.zeros(1)
    took = float(all_reduce_s(one, np.array([n]), one, none)[0])
    assert took == pytest.approx(2 * (n - 1) / n)


def test_links_carry_what_a_ring_passes_on() -> None:
    """2 x 63 / 64 x 2 bytes x 6.738e9 through the NIC of every node: 26.5 GB."""
    spec = load_spec(DDP)
    best = solve(spec).best
    assert best is not None
    loads = check(make_job(spec), best.plan).all_links
    nic = next(load for load in loads if load.link == "nvlink0 -> ethernet0")
    assert nic.gb == pytest.approx(2 * 63 / 64 * 2 * 6.738, rel=1e-3)


def test_zero_3_moves_half_as_much_again() -> None:
    """Three times the parameters in place of two (Rajbhandari et al. 2019, 7.2.2).

    A gather forward, one backward and a reduction, each of 2 bytes, where there is one
    micro-batch; without ZeRO the two halves of an all-reduce.
    """
    data = data_of("llama2-13b-8xa100", gradients="bf16", global_batch=8)
    data["framework"] = "megatron"
    data["limits"]["memory_gib"] = 1000
    moved = []
    for stage in (0, 1, 3):
        shards = {"dp_shard": 8} if stage else {"dp_replicate": 8}
        pins = {**ALONE, **shards, "zero": stage, "micro_batch": 1, "recompute": "none"}
        told = ledger_of(data | {"pins": pins})
        entries = told.of_stage(0)
        assert {entry.part for entry in entries} <= {"dp", "zero"}
        moved.append(passed_on(entries))
    assert moved[1] == pytest.approx(moved[0])
    assert moved[2] == pytest.approx(1.5 * moved[0])
    assert moved[0] == pytest.approx(2 * 7 / 8 * 2 * 13_015_864_320)


def test_tensor_parallelism_has_two_all_reduces_a_layer() -> None:
    """Forward, and as many backward (Shoeybi et al. 2019, section 3, figure 4)."""
    pins = ["tp=8", "sequence_parallel=false", "recompute=none", "micro_batch=1"]
    told = ledger_of(data_of("llama2-13b-8xa100", *pins))
    assert calls(told.of_stage(0), "all_reduce") == {"forward": 2, "backward": 2}
    # Of 4,096 tokens x 5,120 x 2 bytes each.
    layer = [one for one in told.of_stage(0) if one.block == "layer"]
    assert {one.bytes for one in layer} == {4096 * 5120 * 2}


def test_sequence_parallelism_halves_them_into_gathers_and_scatters() -> None:
    """Korthikanti et al. 2022, section 4.2.2: the same bytes on the links."""
    pins = ["tp=8", "pp=1", "recompute=none", "micro_batch=1"]
    name = "llama3-70b-256xh100"
    wholes = []
    for flag in ("true", "false"):
        data = data_of(name, *pins, f"sequence_parallel={flag}")
        data["limits"]["memory_gib"] = 1000
        entries = [one for one in ledger_of(data).of_stage(0) if one.part == "tp"]
        wholes.append(passed_on(entries))
        if flag == "true":
            each = {"forward": 2, "backward": 2}
            assert calls(entries, "all_gather") == each
            assert calls(entries, "reduce_scatter") == each
    assert wholes[0] == pytest.approx(wholes[1])


def test_experts_have_two_all_to_alls_a_layer() -> None:
    """To the experts and back, forward and backward (Lepikhin et al. 2020, 3.2)."""
    told = ledger_of(data_of("mixtral-8x7b-64xh100"))
    for stage in told.stages:
        each = calls(stage.entries, "all_to_all")
        assert each == {"forward": 2, "backward": 2}


def test_70b_need_fourteen_gpus_for_their_state_alone() -> None:
    """70e9 x 16 bytes = 1.12 TB; over 80 GB each 14.0 GPUs, all of their memory."""
    spec = with_margin(load_spec("llama3-70b-16xh100"))
    whole = state_bytes(spec).total * 70e9
    assert whole == 1.12e12
    assert math.ceil(whole / 80e9) == 14
    assert math.ceil(whole / (spec.usable_gib * 2**30)) == 14
    # Llama 3 70B has 70.55e9: 1.129 TB.
    result = run("solve", "llama3-70b-16xh100", "--format", "json")
    found = json.loads(result.stdout)["run"]
    assert found["state_gb"] == pytest.approx(1_129, rel=1e-3)
    # 1,051 GiB, over the 73.3 that an oom_risk of 0.05 leaves of 80 GiB: 14.4.
    assert found["least_gpus"] == 15
