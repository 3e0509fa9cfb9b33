"""Nanotron: each of its rules with a row that holds and one that breaks it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.cost.state import loss_peak, sharded_bytes, state_bytes
from meshwright.frameworks.base.registry import framework, framework_published_as
from meshwright.planner.solve import solve
from meshwright.plans.rule import broken
from meshwright.plans.skeletons import Sharding
from meshwright.rules.legality import degree_rules, plan_rules
from meshwright.spec.plan_fields import (
    FULL,
    GPIPE,
    OPTIMIZER,
    SELECTIVE,
    ZERO_BUBBLE_H1,
)
from meshwright.spec.spec import Spec
from tests.helpers.rows import row


def spec(**training: object) -> Spec:
    gpu = {"memory_gib": 40, "memory_gb_s": 2_000, "peak_tflops": {"bf16": 300}}
    level = {"name": "node", "size": 8, "gb_s": 300, "latency_us": 5}
    host = {"memory_gib": 512, "memory_gb_s": 200, "pcie_gb_s": 25}
    shape = {"n_layers": 12, "d_model": 1536, "n_heads": 24, "n_kv_heads": 4}
    return Spec.model_validate(
        {
            "model": {**shape, "d_ff": 4096, "vocab": 1000},
            "cluster": {"topology": {"gpu": gpu, "levels": [level], "host": host}},
            "training": {"seq_len": 1024, "global_batch": 48, **training},
            "framework": "nanotron",
        }
    )


SHARDED = {"dp_shard": 4, "zero": 1}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # rule: (a row that holds, a row that breaks it)
    # 4 KV heads: 8 would repeat each of them, which Nanotron does not.
    "kv_heads_divisible": ({"tp": 4}, {"tp": 8}),
    "context_balanced": ({"cp": 4}, {"cp": 1024}),
    "hybrid_sharding_supported": (
        {"dp_shard": 4},
        {"dp_shard": 2, "dp_replicate": 2},
    ),
    "zero_supported": ({"dp_shard": 4, "zero": 0}, SHARDED),
    "expert_parallel_supported": ({"ep": 1}, {"ep": 2}),
    "recompute_supported": ({"recompute": FULL}, {"recompute": SELECTIVE}),
    "schedule_supported": (
        {"pp": 2, "schedule": GPIPE},
        {"pp": 2, "schedule": ZERO_BUBBLE_H1},
    ),
    "interleaving_supported": ({"pp": 2, "vpp": 1}, {"pp": 2, "vpp": 2}),
    "microbatches_fill_pipeline": (
        {"pp": 4, "microbatches": 3},
        {"pp": 4, "microbatches": 2},
    ),
    # The head makes a share more than a layer, so that twelve stages get none each.
    "stage_layers": ({"pp": 4, "microbatches": 4}, {"pp": 12, "microbatches": 12}),
    "offload_supported": ({}, {"offload": OPTIMIZER}),
}


def names_broken(given: Spec, **fields: object) -> list[str]:
    rules = [*degree_rules(given), *plan_rules(given)]
    return [rule.rule for rule in broken(rules, given, row(**fields))]


def test_every_rule_has_a_case() -> None:
    framework_found = framework("nanotron")
    assert {
        rule.name for rule in framework_found.degree_rules + framework_found.plan_rules
    } == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_rule_holds_and_breaks(name: str) -> None:
    holds, breaks = CASES[name]
    assert names_broken(spec(), **holds) == []
    assert names_broken(spec(), **breaks) == [name]


def test_gpipe_asks_for_no_number_of_micro_batches() -> None:
    assert names_broken(spec(), pp=4, microbatches=2, schedule=GPIPE) == []


def test_zero_1_needs_gradients_in_16_bits() -> None:
    assert names_broken(spec(gradients="bf16"), **SHARDED) == []
    assert names_broken(spec(gradients="bf16"), **SHARDED | {"zero": 2}) == [
        "zero_supported"
    ]


@pytest.mark.parametrize(
    ("gradients", "zero", "expected"),
    [
        # 2 of the weight, fp32 sum, weight and two moments: gradients in 16 bits come
        # as activations go.
        ("fp32", 0, 2 + 4 + 12),
        (None, 0, 2 + 4 + 12),
        # Moments of 2 bytes beside 16-bit weights; stage 1 shards them over 8.
        ("bf16", 0, 2 + 4 + 4),
        ("bf16", 1, 2 + 4 + 4 / 8),
    ],
)
def test_bytes_per_parameter(gradients: str | None, zero: int, expected: float) -> None:
    state = state_bytes(spec(gradients=gradients))
    parts = sharded_bytes(state, Sharding(np.array([zero]), np.array([8])))
    assert sum(part[0] for part in parts) == expected


def test_the_loss_holds_two_fp32_copies_of_the_logits() -> None:
    assert loss_peak(spec()) == (8, 8)


def test_it_is_solved_and_known_by_its_name() -> None:
    assert solve(spec()).status == "optimal"
    assert framework_published_as("Nanotron 0.4 (1F1B)") == "nanotron"
