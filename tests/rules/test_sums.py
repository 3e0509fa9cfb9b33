"""Rules on sums: every row of a lattice keeps them, and wrong numbers break them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import meshwright as mw
from meshwright.cost.job import make_job
from meshwright.planner.mixed_clusters import arrangements
from meshwright.planner.rows import build_lattice
from meshwright.planner.solve import solve
from meshwright.plans.plan import Plan
from meshwright.plans.rule import BrokenRule, broken, holding
from meshwright.rules.sums import (
    SPLIT_RULES,
    part_degree_rules,
    part_mesh_rules,
    row_rules,
    split_rules,
)
from meshwright.spec.cluster import StagedCluster
from meshwright.spec.plan_fields import AXES, GPIPE, Pins
from meshwright.spec.spec import Spec
from tests.helpers.rows import row
from tests.helpers.strategies import specs
from tests.helpers.unlike import mixed, part

MANY = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

DENSE = "llama2-13b-8xa100"  # 8 GPUs, 64 sequences, 40 layers
EXPERTS = "mixtral-8x7b-64xh100"  # 64 GPUs, 512 sequences, 8 experts


@MANY
@given(specs(most_layers=4))
def test_every_row_of_a_lattice_keeps_them(spec: Spec) -> None:
    rows = build_lattice(make_job(spec)).rows
    assert np.all(holding(row_rules(spec), spec, rows))


@pytest.mark.parametrize(
    ("name", "fields", "told"),
    [
        (DENSE, {"tp": 8, "pp": 2}, "tp 8 x pp 2 = 16, the cluster has 8"),
        (DENSE, {"tp": 8, "ep": 4}, "ep 4, the model is dense"),
        (DENSE, {"tp": 8, "zero": 4, "cp": 1}, "zero 4 > 3"),
        (
            DENSE,
            {"tp": 4, "dp_replicate": 2, "zero": 1},
            "zero 1, dp_shard 1, dp_replicate 2",
        ),
        (DENSE, {"dp_shard": 8}, "zero 0, dp_shard 8"),
        (DENSE, {"pp": 8, "vpp": 3}, "40 layers, pp 8 x vpp 3 = 24 chunks"),
        (DENSE, {"tp": 8, "vpp": 2}, "vpp 2, pp 1, schedule 1f1b"),
        (DENSE, {"tp": 8, "schedule": 1}, "schedule gpipe, pp 1"),
        (DENSE, {"pp": 8, "sequence_parallel": True}, "sequence_parallel true, tp 1"),
        (EXPERTS, {"tp": 64, "ep": 3}, "8 experts mod ep 3 = 2"),
        (EXPERTS, {"tp": 4, "pp": 16, "ep": 8}, "ep 8 x etp 1 > 4 GPUs"),
        (DENSE, {"tp": 8, "etp": 8}, "etp 8, the model is dense"),
        (EXPERTS, {"tp": 4, "etp": 2}, "etp 2, tp 4, width 14336"),
        (EXPERTS, {"tp": 6, "ep": 4}, "6 GPUs mod ep x etp 4 = 2"),
    ],
)
def test_wrong_numbers_are_told(name: str, fields: dict[str, Any], told: str) -> None:
    spec = mw.load(name, mw.Spec)
    rules = broken(row_rules(spec), spec, row(**fields))
    assert told in [rule.arithmetic for rule in rules]
    assert all(f"({rule.arithmetic})" in rule.sentence for rule in rules)


INTERLEAVED = "interleaving_needs_pipeline"


@pytest.mark.parametrize(
    ("name", "framework", "fields", "names"),
    [
        (EXPERTS, "megatron", {"tp": 4, "pp": 16, "ep": 8}, ["experts_fit"]),
        (EXPERTS, "megatron", {"tp": 8, "pp": 8, "ep": 8}, []),
        (
            EXPERTS,
            "megatron",
            {"tp": 2, "cp": 3, "dp_replicate": 2, "ep": 8},
            ["experts_share_ranks"],
        ),
        (EXPERTS, "megatron", {"tp": 2, "cp": 2, "dp_replicate": 2, "ep": 8}, []),
        (DENSE, "torchtitan", {"pp": 7, "vpp": 3}, []),
        (DENSE, "torchtitan", {"pp": 128}, []),
        (DENSE, "torchtitan", {"pp": 4, "vpp": 2, "schedule": GPIPE}, [INTERLEAVED]),
        (DENSE, "torchtitan", {"pp": 7, "vpp": 4}, ["chunks_even"]),
        (DENSE, "torchtitan", {"pp": 7, "vpp": 6}, ["chunks_even"]),
        (DENSE, "deepspeed", {"pp": 7, "vpp": 3}, ["chunks_even"]),
        (DENSE, "deepspeed", {"pp": 4, "vpp": 5}, []),
        (DENSE, "torchtitan", {"pp": 4, "vpp": 2, "schedule": 3}, []),
        (DENSE, "torchtitan", {"pp": 4, "schedule": 3}, ["v_has_two_chunks"]),
        (DENSE, "generic", {"pp": 4, "vpp": 10}, []),
    ],
)
def test_only_what_is_wrong_is_told(
    name: str, framework: str, fields: dict[str, Any], names: list[str]
) -> None:
    spec = mw.load(name, mw.Spec).model_copy(update={"framework": framework})
    rules = broken(row_rules(spec), spec, row(**fields))
    assert [rule.rule for rule in rules if rule.rule != "world_size"] == names


@pytest.mark.parametrize(
    ("pins", "fields", "told"),
    [
        (
            {"micro_batch": 3},
            {"dp_replicate": 8, "micro_batch": 3},
            "64 sequences / (dp 8 x micro_batch 3) = 2.667",
        ),
        (
            {"micro_batch": 4, "microbatches": 3},
            {"dp_replicate": 8, "micro_batch": 4, "microbatches": 3},
            "dp 8 x micro_batch 4 x microbatches 3 = 96, the batch has 64 sequences",
        ),
        ({"layers": [20, 21]}, {"pp": 8}, "layers of 2 stages, pp 8"),
        ({"layers": [20, 21]}, {"pp": 2}, "20 + 21 = 41, the model has 40"),
        (
            {"dp": 4, "dp_shard": 2, "dp_replicate": 4},
            {"dp_shard": 2, "dp_replicate": 4},
            "dp_replicate 4 x dp_shard 2 = 8, dp is 4",
        ),
    ],
)
def test_wrong_pins_are_told(
    pins: dict[str, Any], fields: dict[str, Any], told: str
) -> None:
    spec = mw.load(DENSE, mw.Spec)
    pinned = spec.model_copy(update={"pins": Pins.model_validate(pins)})
    rules = broken(row_rules(pinned), pinned, row(**fields))
    assert told in [rule.arithmetic for rule in rules]


def test_pinned_layers_allow_more_chunks_than_layers() -> None:
    """Every chunk of 6 then holds a layer, or the loss."""
    spec = mw.load(DENSE, mw.Spec).model_copy(update={"framework": "torchtitan"})
    pins = Pins(layers=(6, 6, 6, 6, 6, 5, 5))
    changed = spec.model_copy(update={"pins": pins})
    for one, names in ((changed, []), (spec, ["chunks_even"])):
        rules = broken(row_rules(one), one, row(pp=7, vpp=6))
        assert [rule.rule for rule in rules if rule.rule != "world_size"] == names


SIXES = [6, 6, 6, 6, 6, 6, 4]
"""The 40 layers of `DENSE` on seven stages."""


@pytest.mark.parametrize(
    ("framework", "layers", "fields", "names"),
    [
        ("torchtitan", SIXES, {"vpp": 2}, []),
        ("torchtitan", SIXES, {"vpp": 3}, []),
        ("torchtitan", SIXES, {"vpp": 6}, ["chunks_even"]),
        ("torchtitan", [6, 6, 6, 6, 6, 7, 3], {"vpp": 2}, ["chunks_even"]),
        ("torchtitan", [6, 6, 6, 6, 6, 7, 3], {"vpp": 1}, []),
        ("internevo", [10] * 4, {"vpp": 2}, []),
        ("internevo", [10] * 4, {"vpp": 3}, ["chunks_even"]),
        ("internevo", SIXES, {"vpp": 2}, ["chunks_even", "stage_layers"]),
        ("megatron", [10] * 4, {"recompute": "full", "again": [3] * 4}, []),
        (
            "megatron",
            [10] * 4,
            {"recompute": "full", "again": [3, 3, 3, 4]},
            ["recompute_scope"],
        ),
        ("megatron", [10] * 4, {"recompute": "none", "again": [0] * 4}, []),
    ],
)
def test_splits_of_stages_are_told(
    framework: str, layers: list[int], fields: dict[str, Any], names: list[str]
) -> None:
    spec = mw.load(DENSE, mw.Spec).model_copy(update={"framework": framework})
    assert split_names(spec, layers, **fields) == names


@pytest.mark.parametrize(
    ("framework", "layers", "told"),
    [
        ("torchtitan", SIXES, "equally many layers, or one less: [6, 6, 6"),
        ("internevo", [10] * 4, "equally many layers, in every chunk: [10, 10"),
    ],
)
def test_chunks_are_told_how_equal_the_framework_wants_them(
    framework: str, layers: list[int], told: str
) -> None:
    spec = mw.load(DENSE, mw.Spec).model_copy(update={"framework": framework})
    (rule,) = broken_splits(spec, layers, vpp=6)
    assert told in rule.sentence


@pytest.mark.parametrize(
    ("pins", "layers", "names"),
    [
        ([6, 6, 6, 6, 6, 7, 3], [6, 6, 6, 6, 6, 7, 3], []),
        ([6, 6, 6, 6, 6, 7, 3], [6, 6, 6, 6, 6, 3, 7], ["chunks_even"]),
        ([6, 6, 6, 6, 7, 8, 1], [6, 6, 6, 6, 7, 8, 1], []),
        ([1, 6, 6, 6, 6, 7, 8], [1, 6, 6, 6, 6, 7, 8], []),
        ([6, 6, 6, 6, 1, 7, 8], [6, 6, 6, 6, 1, 7, 8], ["chunks_even"]),
    ],
)
def test_only_pinned_stages_have_any_layers(
    pins: list[int], layers: list[int], names: list[str]
) -> None:
    spec = mw.load(DENSE, mw.Spec).model_copy(
        update={"framework": "torchtitan", "pins": Pins(layers=tuple(pins))}
    )
    assert split_names(spec, layers, vpp=2) == names


def split_names(
    spec: Spec, layers: list[int], again: list[int] | None = None, **fields: Any
) -> list[str]:
    """Return the names of the rules on splits that a plan of these stages breaks."""
    return [rule.rule for rule in broken_splits(spec, layers, again, **fields)]


def broken_splits(
    spec: Spec, layers: list[int], again: list[int] | None = None, **fields: Any
) -> list[BrokenRule]:
    """Return the rules on splits that a plan of these stages breaks."""
    counts = zip(layers, again or [0] * len(layers), strict=True)
    stages = [{"layers": n, "recompute_layers": m} for n, m in counts]
    axes = dict.fromkeys(("tp", "cp", "dp_replicate", "dp_shard"), (1,))
    plain = {
        **dict.fromkeys(("tp", "dp_replicate", "dp_shard", "micro_batch"), 1),
        **{"pp": len(layers), "microbatches": 64, "zero": 0, "schedule": "1f1b"},
        **{"sequence_parallel": False, "recompute": "none", "offload": "none"},
        **{"precision": "bf16", "stages": stages, "mesh": {**axes, "pp": (8,)}},
    }
    found = split_rules(spec, Plan.model_validate({**plain, **fields}))
    return [rule for rule in found if rule.rule in SPLIT_RULES]


def test_plans_of_another_job_are_told() -> None:
    spec = mw.load(DENSE, mw.Spec)
    best = solve(spec).best
    assert best is not None
    assert split_rules(spec, best.plan) == []
    two = mw.load("gpt-1.3b-2xa100-pcie", mw.Spec)
    told = {rule.rule: rule.arithmetic for rule in split_rules(two, best.plan)}
    assert set(told) >= {"world_size", "batch", "layers_placed"}
    assert told["world_size"].endswith("the cluster has 2")
    assert told["layers_placed"].endswith("the model has 24")


def four_gpus_beside_two() -> Spec:
    every = arrangements(mixed(part(4, 50, 40), part(2, 75, 40)))
    specs = (one.spec for one in every)
    return next(spec for spec in specs if isinstance(spec.cluster, StagedCluster))


@pytest.mark.parametrize(
    ("pp", "fills"), [(1, False), (2, False), (3, True), (4, False), (6, True)]
)
def test_parts_hold_whole_stages(pp: int, fills: bool) -> None:
    """Of three stages the parts hold two and one."""
    spec = four_gpus_beside_two()
    (rule,) = part_degree_rules(spec)
    assert rule.holds(spec, row(pp=pp)).tolist() == [fills]


@pytest.mark.parametrize(
    ("pp", "inside", "between", "is_apart"),
    [(3, 1, 3, True), (3, 3, 1, False), (6, 2, 3, True), (6, 3, 2, False)],
)
def test_no_host_has_stages_of_two_parts(
    pp: int, inside: int, between: int, is_apart: bool
) -> None:
    """The parts hold four and two of six stages: two may share a host, three not."""
    spec = four_gpus_beside_two()
    mesh = np.ones((1, len(AXES), 2), dtype=np.int64)
    mesh[0, AXES.index("pp")] = inside, between
    (rule,) = part_mesh_rules(spec, mesh)
    assert rule.holds(spec, row(pp=pp)).tolist() == [is_apart]
