"""torchtitan: each of its rules with a row that holds and one that breaks it."""

from __future__ import annotations

import pytest

from meshwright.spec.plan_fields import (
    DUALPIPE_V,
    GPIPE,
    OPTIMIZER,
    PARAMETERS,
    SELECTIVE,
    ZERO_BUBBLE_H1,
)
from tests.frameworks.cases import (
    EXPERTS,
    MLP,
    Pair,
    check,
    names_broken,
    own_rules,
)

SHARDED = {"dp_shard": 4, "zero": 2}
SPLIT = {"tp": 2, "sequence_parallel": True}
BUBBLE = {"pp": 4, "schedule": ZERO_BUBBLE_H1}
IN_V = {"pp": 4, "vpp": 2, "schedule": DUALPIPE_V}
CHUNKS = {"pp": 4, "vpp": 3}
OFFLOADED = {**SHARDED, "offload": PARAMETERS}

CASES: list[tuple[str, Pair]] = [
    (
        "recompute_supported",
        Pair(
            {"recompute": SELECTIVE},
            {"recompute": SELECTIVE, "recompute_modules": MLP},
        ),
    ),
    # Columns of wk and wv: 2 takes whole heads, 8 half heads.
    ("kv_heads_divisible", Pair({"tp": 2}, {"tp": 8})),
    ("tied_embeddings_supported", Pair({}, {"pp": 2}, {"tied_embeddings": True})),
    ("context_balanced", Pair({"cp": 2, "zero": 2}, {"cp": 4, "zero": 2})),
    ("zero_supported", Pair(SHARDED, {**SHARDED, "zero": 1})),
    ("context_shards_state", Pair({"cp": 2, "zero": 3}, {"cp": 2})),
    # 1,020 = 4 x 255: tp 4 alone, or tp 2 and two chunks for one rank, not for two.
    (
        "sequence_chunks",
        Pair(
            {"tp": 4, "sequence_parallel": True},
            {**SPLIT, "cp": 2, "zero": 2},
        ),
    ),
    # Replicas are outside of the groups of experts.
    (
        "expert_parallel_folds",
        Pair(
            {"dp_shard": 2, "dp_replicate": 2, "zero": 2, "ep": 2},
            {"dp_shard": 2, "dp_replicate": 2, "zero": 2, "ep": 4},
            EXPERTS,
        ),
    ),
    # tp 4 and ep 2 leave each expert twice, which fully_shard takes apart.
    (
        "expert_shards_state",
        Pair({**SPLIT, "ep": 2}, {**SPLIT, "tp": 4, "ep": 2}, EXPERTS),
    ),
    ("expert_tensor_parallel", Pair({**SPLIT, "ep": 2}, SPLIT, EXPERTS)),
    ("expert_tensor_parallel", Pair({**SPLIT, "ep": 2}, {"tp": 2, "ep": 2}, EXPERTS)),
    (
        "microbatches_fill_pipeline",
        Pair({"pp": 4, "microbatches": 4}, {"pp": 4, "microbatches": 3}),
    ),
    # Two rounds of 5 on four ranks; 9 do not split into two.
    (
        "zero_bubble_rounds",
        Pair({**BUBBLE, "microbatches": 10}, {**BUBBLE, "microbatches": 9}),
    ),
    # Two rounds of 5, and one of 3; 14 and 13 do not split into three.
    (
        "interleaving_rounds",
        Pair({**CHUNKS, "microbatches": 10}, {**CHUNKS, "microbatches": 14}),
    ),
    (
        "interleaving_rounds",
        Pair({**CHUNKS, "microbatches": 3}, {**CHUNKS, "microbatches": 13}),
    ),
    (
        "dualpipe_v_batches",
        Pair({**IN_V, "microbatches": 8}, {**IN_V, "microbatches": 7}),
    ),
    ("offload_supported", Pair(OFFLOADED, {**SHARDED, "offload": OPTIMIZER})),
    ("offload_supported", Pair({"zero": 2, "offload": 3}, {"offload": PARAMETERS})),
    ("drives_supported", Pair({}, OFFLOADED, training={"offload_to": "nvme"})),
]


@pytest.mark.parametrize(("rule", "pair"), CASES)
def test_rule_holds_and_breaks(rule: str, pair: Pair) -> None:
    check("torchtitan", rule, pair)


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, _ in CASES} == own_rules("torchtitan")


def test_gpipe_takes_fewer_microbatches_than_stages() -> None:
    few = {"pp": 4, "microbatches": 2, "schedule": GPIPE}
    assert names_broken("torchtitan", Pair({}, {}), few) == []


def test_sequence_parallelism_is_a_choice() -> None:
    """`parallelism.enable_sequence_parallel` of 0.3.0."""
    assert names_broken("torchtitan", Pair({}, {}), {"tp": 2}) == []
