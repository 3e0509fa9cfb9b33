"""DeepSpeed: each of its rules with a row that holds and one that breaks it."""

from __future__ import annotations

import pytest

from meshwright.spec.plan_fields import (
    FULL,
    GPIPE,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    SELECTIVE,
)
from tests.frameworks.cases import EXPERTS, Pair, check, names_broken, own_rules

DRIVES = {"offload_to": "nvme"}

FOUR_LEAD = {"moe": EXPERTS["moe"] | {"first_dense_layers": 4}}

CASES: list[tuple[str, Pair]] = [
    # 12 layers: the first of 3 stages has the 4 that lead, the first of 4 has not.
    ("stage_layers", Pair({"pp": 3}, {"pp": 4}, FOUR_LEAD)),
    ("recompute_supported", Pair({"recompute": FULL}, {"recompute": SELECTIVE})),
    # 4 KV heads: AutoTP leaves four of eight ranks without attention.
    ("kv_heads_divisible", Pair({"tp": 4}, {"tp": 8})),
    ("kv_heads_divisible", Pair({"tp": 8, "pp": 2}, {"tp": 8})),
    # 24 heads, 4 KV heads: 12 ranks have 2 and a third of one, 6 cut them.
    ("context_splits_heads", Pair({"cp": 12}, {"cp": 6})),
    ("context_splits_heads", Pair({"cp": 2}, {"cp": 5})),
    ("context_stands_alone", Pair({"cp": 2}, {"cp": 2, "tp": 2})),
    ("context_stands_alone", Pair({"cp": 2}, {"cp": 2, "pp": 2})),
    (
        "hybrid_sharding_supported",
        Pair({"dp_shard": 8, "zero": 1}, {"dp_shard": 4, "dp_replicate": 2, "zero": 1}),
    ),
    (
        "zero_with_pipeline",
        Pair({"dp_shard": 4, "pp": 2, "zero": 1}, {"dp_shard": 4, "pp": 2, "zero": 2}),
    ),
    (
        "sequence_parallel_supported",
        Pair({"tp": 2}, {"tp": 2, "sequence_parallel": True}),
    ),
    (
        "expert_parallel_shards",
        Pair(
            {"dp_shard": 4, "zero": 3, "ep": 4},
            {"dp_shard": 2, "cp": 2, "zero": 3, "ep": 4},
            EXPERTS,
        ),
    ),
    ("expert_tensor_parallel", Pair({"tp": 1}, {"tp": 2}, EXPERTS)),
    ("schedule_supported", Pair({"pp": 2}, {"pp": 2, "schedule": GPIPE})),
    ("interleaving_supported", Pair({"pp": 2}, {"pp": 2, "vpp": 2})),
    # ZeRO-Offload's classic case: stages on a single GPU.
    ("offload_supported", Pair({"zero": 1, "offload": 1}, {"offload": OPTIMIZER})),
    (
        "offload_supported",
        Pair({"zero": 2, "offload": 2}, {"zero": 1, "offload": GRADIENTS}),
    ),
    (
        "offload_supported",
        Pair({"zero": 3, "offload": 3}, {"zero": 2, "offload": PARAMETERS}),
    ),
    (
        "offload_fraction_supported",
        Pair(
            {"zero": 3, "offload": GRADIENTS},
            {"zero": 2, "offload": GRADIENTS},
            training={"offload_fraction": 0.5},
        ),
    ),
    (
        "drives_supported",
        Pair(
            {"zero": 3, "offload": OPTIMIZER},
            {"zero": 2, "offload": OPTIMIZER},
            training=DRIVES,
        ),
    ),
]


@pytest.mark.parametrize(("rule", "pair"), CASES)
def test_rule_holds_and_breaks(rule: str, pair: Pair) -> None:
    if rule == "context_splits_heads":
        # One sequence of as many tokens as any of the degrees divides.
        pair = pair._replace(training={"seq_len": 960})
    check("deepspeed", rule, pair)


def test_every_rule_has_a_case() -> None:
    found = own_rules("deepspeed") - {"context_balanced"}
    assert {rule for rule, _ in CASES} == found


def test_ulysses_needs_no_two_chunks_a_rank() -> None:
    """1,020 tokens on 4 ranks: 255 each, whose heads see all."""
    assert names_broken("deepspeed", Pair({}, {}), {"cp": 4}) == []


def test_plain_experts_are_sharded_by_zero_3() -> None:
    """At ep 1 experts are parameters like any others."""
    sharded = {"dp_shard": 4, "zero": 3}
    assert names_broken("deepspeed", Pair({}, {}, EXPERTS), sharded) == []
