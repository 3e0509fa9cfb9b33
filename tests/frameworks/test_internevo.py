"""InternEvo: each of its rules with a row that holds and one that breaks it."""

from __future__ import annotations

import pytest

from meshwright.spec.plan_fields import FULL, GPIPE, OPTIMIZER, SELECTIVE
from tests.frameworks.cases import EXPERTS, Pair, check, names_broken, own_rules

SHARDED = {"dp_shard": 4, "zero": 1}

CHUNKS = {"pp": 4, "vpp": 3}

FOUR_LEAD = {"moe": EXPERTS["moe"] | {"first_dense_layers": 4}}

CASES: list[tuple[str, Pair]] = [
    # 12 layers: the first of 3 stages has the 4 that lead, the first of 4 has not.
    ("stage_layers", Pair({"pp": 3}, {"pp": 4}, FOUR_LEAD)),
    ("recompute_supported", Pair({"recompute": FULL}, {"recompute": SELECTIVE})),
    ("kv_heads_divisible", Pair({"tp": 4}, {"tp": 8})),
    ("context_parallel_supported", Pair({"cp": 1}, {"cp": 2})),
    ("zero_supported", Pair({**SHARDED, "zero": 3}, {**SHARDED, "zero": 2})),
    ("zero_with_pipeline", Pair({**SHARDED, "pp": 2}, {"pp": 2, "zero": 3})),
    # moe only supports zero1 of size -1.
    (
        "expert_shards_state",
        Pair({**SHARDED, "ep": 4}, {"dp_replicate": 4, "ep": 4}, EXPERTS),
    ),
    (
        "expert_shards_state",
        Pair({**SHARDED, "ep": 4}, {**SHARDED, "zero": 3, "ep": 4}, EXPERTS),
    ),
    # As many as data-parallel ranks, up to the four experts.
    (
        "expert_parallel_fixed",
        Pair({**SHARDED, "ep": 4}, {**SHARDED, "ep": 2}, EXPERTS),
    ),
    (
        "expert_parallel_fixed",
        Pair(
            {"dp_shard": 8, "zero": 1, "ep": 4},
            {"dp_shard": 2, "zero": 1, "ep": 1},
            EXPERTS,
        ),
    ),
    ("expert_tensor_parallel", Pair({}, {"tp": 2}, EXPERTS)),
    ("schedule_supported", Pair({"pp": 2}, {"pp": 2, "schedule": GPIPE})),
    (
        "interleaving_rounds",
        Pair({**CHUNKS, "microbatches": 8}, {**CHUNKS, "microbatches": 6}),
    ),
    ("offload_supported", Pair({}, {"zero": 1, "offload": OPTIMIZER})),
]


@pytest.mark.parametrize(("rule", "pair"), CASES)
def test_rule_holds_and_breaks(rule: str, pair: Pair) -> None:
    check("internevo", rule, pair)


def test_every_rule_has_a_case() -> None:
    found = own_rules("internevo") - {"context_balanced"}
    assert {rule for rule, _ in CASES} == found


@pytest.mark.parametrize(
    "fields",
    [
        {"tp": 2, "sequence_parallel": True},  # tensor.mode msp
        {"dp_shard": 4, "dp_replicate": 2, "zero": 1},  # zero1.size 4 of 8
        {"pp": 2, "vpp": 2},  # num_chunks 2, interleaved_overlap
    ],
)
def test_what_it_may_launch(fields: dict[str, int]) -> None:
    assert names_broken("internevo", Pair({}, {}), fields) == []
