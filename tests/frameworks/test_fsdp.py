"""accelerate: each of its rules with a row that holds and one that breaks it."""

from __future__ import annotations

import pytest

from meshwright.spec.plan_fields import FULL, OPTIMIZER, PARAMETERS, SELECTIVE
from tests.frameworks.cases import EXPERTS, Pair, check, own_rules

SHARDED = {"dp_shard": 4, "zero": 2}
NF4 = {"lora": {"weights": "nf4"}}
OFFLOADED = {**SHARDED, "offload": PARAMETERS}

CASES: list[tuple[str, Pair]] = [
    ("recompute_supported", Pair({"recompute": FULL}, {"recompute": SELECTIVE})),
    ("kv_heads_divisible", Pair({**SHARDED, "tp": 4}, {**SHARDED, "tp": 8})),
    ("pipeline_supported", Pair({"pp": 1}, {"pp": 2})),
    ("context_balanced", Pair({"cp": 2, "zero": 2}, {"cp": 4, "zero": 2})),
    (
        "replicas_supported",
        Pair(
            {"dp_replicate": 2, "dp_shard": 2, "zero": 2, "cp": 2},
            {"dp_replicate": 2, "zero": 2, "cp": 2},
        ),
    ),
    ("zero_supported", Pair(SHARDED, {**SHARDED, "zero": 1})),
    ("context_shards_state", Pair({"cp": 2, "zero": 3}, {"cp": 2})),
    ("tensor_parallel_shards", Pair({**SHARDED, "tp": 2}, {"tp": 2})),
    ("tensor_parallel_shards", Pair({**SHARDED, "tp": 2}, {"tp": 2, "zero": 3})),
    ("quantised_tensor_parallel", Pair(SHARDED, {**SHARDED, "tp": 2}, training=NF4)),
    (
        "sequence_parallel_supported",
        Pair({**SHARDED, "tp": 2}, {**SHARDED, "tp": 2, "sequence_parallel": True}),
    ),
    ("expert_parallel_supported", Pair(SHARDED, {**SHARDED, "ep": 2}, EXPERTS)),
    ("expert_tensor_parallel", Pair(SHARDED, {**SHARDED, "tp": 2}, EXPERTS)),
    ("offload_supported", Pair(OFFLOADED, {**SHARDED, "offload": OPTIMIZER})),
    ("offload_supported", Pair({"zero": 2, "offload": 3}, {"offload": PARAMETERS})),
    ("drives_supported", Pair({}, OFFLOADED, training={"offload_to": "nvme"})),
]


@pytest.mark.parametrize(("rule", "pair"), CASES)
def test_rule_holds_and_breaks(rule: str, pair: Pair) -> None:
    check("fsdp", rule, pair)


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, _ in CASES} == own_rules("fsdp")
