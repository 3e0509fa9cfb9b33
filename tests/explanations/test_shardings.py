"""What eight GPUs hold of each part of memory: by laws, and by hand."""

from __future__ import annotations

import math
from functools import cache
from statistics import fmean
from typing import Any

import pytest

import meshwright as mw
from meshwright.cost.profile import Profile
from meshwright.explanations.compare import compare, in_full
from meshwright.loading.plan_text import read_plan
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.results.comparison import ComparedPlan, PartSharding
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.spec import Spec

LAYERS, WIDTH, VOCAB, SEQ_LEN = 8, 512, 8000, 1024

DENSE: dict[str, Any] = {
    "n_layers": LAYERS, "d_model": WIDTH, "n_heads": 8, "d_ff": 4 * WIDTH,
    "vocab": VOCAB, "tied_embeddings": False,
}  # fmt: skip

EXPERTS = DENSE | {"moe": {"n_experts": 4, "top_k": 2, "d_ff": WIDTH}}

STATE = ("weights", "gradients", "optimizer")

GIB = 2**30

PLANS = (
    "megatron: tp=2,pp=2,dp_shard=2,zero=1,recompute=none,vpp=2,layers=[4,4]",
    "megatron: tp=2,pp=2,cp=2,zero=1,recompute=full,vpp=1",
    "megatron: tp=2,pp=4,dp=1,zero=1,recompute=none,vpp=1,sequence_parallel=true",
    "fsdp: dp_shard=2,dp_replicate=4,zero=3,recompute=full",
    "fsdp: tp=2,cp=2,dp_shard=2,zero=3,recompute=none",
    "experts: ep=2,dp_shard=4,pp=2,vpp=1,zero=1,tp=1,recompute=full",
    "experts: ep=2,dp_shard=2,pp=2,vpp=1,zero=1,tp=2,recompute=full",
)
"""Frameworks with plans; `experts` is Megatron-LM with a model that has experts."""

AXES = ("tp", "pp", "cp", "ep", "dp_shard", "dp_replicate")


def spec_of(kind: str, gpus: int) -> Spec:
    link = {"name": "link", "size": gpus, "gb_s": 50, "latency_us": 1}
    gpu = {"memory_gib": 80, "memory_gb_s": 900, "peak_tflops": {"bf16": 100}}
    fields = {
        "model": EXPERTS if kind == "experts" else DENSE,
        "cluster": {"topology": {"gpu": gpu, "levels": [link]}},
        "framework": "fsdp" if kind == "fsdp" else "megatron",
        "training": {"seq_len": SEQ_LEN, "global_batch": 16},
        "pins": {"micro_batch": 1, "offload": "none"},
    }
    return mw.load(fields, Spec)


@cache
def told(plan: str, gpus: int = 8) -> ComparedPlan:
    kind, words = plan.split(": ")
    spec, pins = spec_of(kind, gpus), read_plan(words)
    found = compare(spec, [(plan, pins)], lambda given: solve(given, Options()))
    (compared,) = in_full(spec, found, Profile()).plans
    return compared


def priced(plan: str) -> PricedPlan:
    found = told(plan).plan
    assert found is not None
    return found


def held(plan: str) -> dict[str, PartSharding]:
    return {one.part: one for one in told(plan).holdings}


def alone(plan: str) -> dict[str, PartSharding]:
    """Return what one GPU holds that recomputes as much, in the same stage of ZeRO."""
    kind, found = plan.split(": ")[0], priced(plan).plan
    one = told(f"{kind}: recompute={found.recompute},zero={found.zero}", 1)
    return {holding.part: holding for holding in one.holdings}


def divisor(holding: PartSharding) -> float:
    return math.prod(holding.divided_by.values())


@pytest.mark.parametrize("plan", PLANS)
def test_what_gpus_hold_is_what_one_would_hold_divided(plan: str) -> None:
    """Of the mean over stages: the first of a pipeline saves more than the last."""
    whole = alone(plan)
    for part in (*STATE, "activations"):
        found = held(plan)[part]
        assert fmean(found.gib) * divisor(found) == pytest.approx(whole[part].gib[0])
    logits = held(plan)["logits"]
    assert logits.gib[-1] * divisor(logits) == pytest.approx(whole["logits"].gib[0])
    assert not any(logits.gib[:-1])


@pytest.mark.parametrize("plan", PLANS)
def test_copies_are_the_gpus_that_share_a_part_by_what_divides_it(plan: str) -> None:
    """All share the state, and those that work on a micro-batch at once what it saves.

    Copies of the state times its bytes on one GPU are the bytes on all of them.
    """
    found = priced(plan).plan
    for part in STATE:
        holding = held(plan)[part]
        assert holding.copies is not None
        assert holding.copies * divisor(holding) == pytest.approx(8)
        whole = holding.copies * alone(plan)[part].gib[0]
        assert 8 * fmean(holding.gib) == pytest.approx(whole)
    for part in ("activations", "logits"):
        holding = held(plan)[part]
        assert holding.copies is not None
        by_stages = holding.divided_by.get("pp", 1.0)
        shared = holding.copies * divisor(holding) / by_stages
        assert shared == pytest.approx(found.tp * found.cp)


@pytest.mark.parametrize("plan", PLANS)
def test_an_axis_divides_by_no_more_than_its_degree(plan: str) -> None:
    found = priced(plan).plan
    degrees = {axis: getattr(found, axis) for axis in AXES}
    assert math.prod(by for axis, by in degrees.items() if axis != "ep") == 8
    for holding in told(plan).holdings:
        assert not holding.is_offloaded
        for axis, by in holding.divided_by.items():
            assert 1 < by <= degrees[axis] * (1 + 1e-9)


@pytest.mark.parametrize("plan", PLANS)
def test_parts_that_hold_something_are_told_once_in_the_order_of_stages(
    plan: str,
) -> None:
    stages = priced(plan).stages
    parts = [one.part for one in told(plan).holdings]
    assert parts == [name for name in stages[0].parts if name in parts]
    for name in stages[0].parts:
        gib = tuple(stage.parts[name] for stage in stages)
        assert (name in parts) or not any(gib)
        assert name not in parts or held(plan)[name].gib == gib
    buffers = {*parts} - {*STATE, "activations", "logits"}
    assert "overhead" in buffers
    for name in buffers:
        assert (held(plan)[name].copies, held(plan)[name].divided_by) == (None, {})


PARAMS = 2 * VOCAB * WIDTH + LAYERS * (12 * WIDTH**2 + 13 * WIDTH) + 2 * WIDTH
"""Table and head; per layer four and eight squares of the width, 4 + 4 + 1 widths of
biases, and two norms with biases; and a norm at the end."""

REPEATED = LAYERS * (4 * WIDTH + 2 * WIDTH) + 2 * WIDTH
"""Norms, and the biases of outputs, which each of two ranks of tensors has."""

HALVED = 2 * PARAMS / (PARAMS + REPEATED)
"""By how much two ranks of tensors divide the parameters."""


@pytest.mark.parametrize(
    ("plan", "width", "part", "divided_by"),
    [
        (PLANS[0], 2, "weights", {"tp": HALVED, "pp": 2}),
        (PLANS[0], 4, "gradients", {"tp": HALVED, "pp": 2}),
        (PLANS[0], 12, "optimizer", {"dp_shard": 2, "tp": HALVED, "pp": 2}),
        (PLANS[1], 12, "optimizer", {"cp": 2, "tp": HALVED, "pp": 2}),
        (PLANS[3], 4, "weights", {"dp_shard": 2}),
        (PLANS[3], 8, "optimizer", {"dp_shard": 2}),
        (PLANS[4], 4, "gradients", {"dp_shard": 2, "cp": 2, "tp": HALVED}),
    ],
)
def test_state_is_divided_as_by_hand(
    plan: str, width: int, part: str, divided_by: dict[str, float]
) -> None:
    """Megatron-LM has 2 + 4 + 12 bytes a parameter, and FSDP 4 + 4 + 8."""
    found = held(plan)[part]
    assert found.divided_by == pytest.approx(divided_by)
    shards = math.prod(divided_by.values())
    assert fmean(found.gib) == pytest.approx(PARAMS * width / shards / GIB)
    assert found.copies == pytest.approx(8 / shards)


@pytest.mark.parametrize(
    ("plan", "divided_by", "copies"),
    [
        # Two micro-batches of four layers, and one: 6 of 8 on average.
        (PLANS[1], {"cp": 2, "pp": 8 / 6}, 2),
        # 4 + 3 + 2 + 1 micro-batches of two layers on four stages: 5 of 8.
        (PLANS[2], {"tp": 2, "pp": 8 / 5}, 1),
        (PLANS[3], {}, 1),
        (PLANS[5], {"pp": 8 / 6}, 1),
        # Parallel sequences with experts: Megatron-LM allows no other way.
        (PLANS[6], {"tp": 2, "pp": 8 / 6}, 1),
    ],
)
def test_what_layers_save_is_divided_as_by_hand(
    plan: str, divided_by: dict[str, float], copies: float
) -> None:
    """Fully recomputed layers save their inputs alone, which no tensors divide."""
    found = held(plan)["activations"]
    assert found.divided_by == pytest.approx(divided_by)
    assert found.copies == pytest.approx(copies)


def test_two_chunks_a_stage_have_as_much_in_flight_as_one_gpu_has_layers() -> None:
    """Chunks of two layers: five in flight on the first stage, three on the last."""
    found = held(PLANS[0])["activations"]
    assert "pp" not in found.divided_by
    assert found.gib[0] / found.gib[1] == pytest.approx(5 / 3)
    assert fmean(found.gib) * found.divided_by["tp"] == pytest.approx(
        alone(PLANS[0])["activations"].gib[0]
    )


def test_experts_are_divided_by_their_ranks_and_all_else_is_not() -> None:
    """A layer has 4 experts of two matrices from WIDTH to WIDTH, with biases."""
    experts = LAYERS * 4 * 2 * (WIDTH**2 + WIDTH)
    params = alone(PLANS[5])["weights"].gib[0] * GIB / 2
    found = held(PLANS[5])["weights"]
    divided = params / (params - experts / 2)
    assert found.divided_by == pytest.approx({"ep": divided, "pp": 2})
    assert found.copies == pytest.approx(8 / divided / 2)
