"""Megatron-LM: each of its rules with a row that holds and one that breaks it."""

from __future__ import annotations

import pytest

from meshwright.spec.gpu import PRECISIONS
from meshwright.spec.plan_fields import GPIPE, GRADIENTS, OPTIMIZER, SELECTIVE
from tests.frameworks.cases import (
    EXPERTS,
    MLA_UP_PROJ,
    MLP,
    NORMS,
    WHOLE_MOE,
    Pair,
    check,
    names_broken,
    own_rules,
)

FSDP = {"dp_shard": 4, "zero": 3}
OFFLOADED = {"dp_shard": 4, "zero": 1, "offload": OPTIMIZER}

CHUNKS = {"pp": 4, "vpp": 3}

MLP_AGAIN = {"recompute": SELECTIVE, "recompute_modules": MLP}
MOE_AGAIN = {"recompute": SELECTIVE, "recompute_modules": WHOLE_MOE}
NORMS_AGAIN = {"recompute": SELECTIVE, "recompute_modules": NORMS}
UP_PROJECTION = {"recompute_modules": MLA_UP_PROJ}
IN_FP8 = {"precision": PRECISIONS.index("fp8")}

CASES: list[tuple[str, Pair]] = [
    # 4 KV heads: 12 repeats each of them 3 times, 6 would split them in 2/3.
    ("kv_heads_divisible", Pair({"tp": 2}, {"tp": 3}, {"d_ff": 4128})),
    ("kv_heads_divisible", Pair({"tp": 12}, {"tp": 6}, {"d_ff": 4128})),
    # 1,020 = 2 x 2 x 255: two chunks for each of two ranks, not of four.
    ("context_balanced", Pair({"cp": 2}, {"cp": 4})),
    (
        "expert_sequence_parallel",
        Pair({"tp": 2, "sequence_parallel": True}, {"tp": 2}, EXPERTS),
    ),
    ("schedule_supported", Pair({"pp": 2}, {"pp": 2, "schedule": GPIPE})),
    # Groups of 5, or of 7 and 6; groups have a micro-batch for every stage.
    (
        "interleaving_rounds",
        Pair({**CHUNKS, "microbatches": 5}, {**CHUNKS, "microbatches": 3}),
    ),
    (
        "interleaving_rounds",
        Pair({**CHUNKS, "microbatches": 13}, {**CHUNKS, "microbatches": 2}),
    ),
    ("fsdp_tried", Pair({**FSDP, "tp": 4}, {**FSDP, "pp": 4})),
    ("fsdp_tried", Pair({"dp_shard": 4, "zero": 1, "pp": 4}, {**FSDP, **CHUNKS})),
    ("recompute_supported", Pair(MLP_AGAIN, {**MLP_AGAIN, **UP_PROJECTION})),
    ("recompute_fp8", Pair(MOE_AGAIN | IN_FP8, NORMS_AGAIN | IN_FP8, EXPERTS)),
    # Both come with the distributed optimizer alone.
    (
        "state_sharded",
        Pair({"zero": 1}, {"zero": 0}, training={"moments": "bf16"}),
    ),
    ("offload_supported", Pair(OFFLOADED, {"offload": OPTIMIZER})),
    ("offload_supported", Pair(OFFLOADED, {**OFFLOADED, "offload": GRADIENTS})),
    # One GPU has a distributed optimizer too.
    ("offload_supported", Pair({"zero": 1, "offload": OPTIMIZER}, {"offload": 1})),
    ("drives_supported", Pair({}, OFFLOADED, training={"offload_to": "nvme"})),
]


@pytest.mark.parametrize(("rule", "pair"), CASES)
def test_rule_holds_and_breaks(rule: str, pair: Pair) -> None:
    check("megatron", rule, pair)


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, _ in CASES} == own_rules("megatron")


def test_only_adam_is_offloaded() -> None:
    pair = Pair({}, {}, training={"optimizer": "sgd"})
    assert names_broken("megatron", pair, OFFLOADED) == ["offload_supported"]


@pytest.mark.parametrize("more", [{}, {"pp": 4}, {"pp": 4, "vpp": 3}, {"tp": 4}])
def test_untried_megatron_fsdp_stands_beside_pipelines(more: dict[str, int]) -> None:
    """arguments.py asserts pp = 1 for --use-torch-fsdp2 alone."""
    pair = Pair({}, {}, limits={"untried": True})
    assert names_broken("megatron", pair, {**FSDP, **more}) == []
