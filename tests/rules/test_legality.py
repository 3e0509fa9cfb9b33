"""Every rule of legality has a row that holds it and one that breaks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from meshwright.cost.job import make_job
from meshwright.frameworks.base.registry import framework as framework_named
from meshwright.planner.rows import build_lattice
from meshwright.planner.solve import solve
from meshwright.plans.rule import Rule, broken, holding
from meshwright.plans.skeletons import Skeletons
from meshwright.rules.legality import (
    DEGREE_RULES,
    PLAN_RULES,
    TP_LINK,
    degree_rules,
    framework_degree_rules,
    framework_rules,
    mesh_rules,
    plan_rules,
    rules_of,
)
from meshwright.spec.plan_fields import (
    FIELD,
    FULL,
    GPIPE,
    NONE,
    SELECTIVE,
    ZERO_BUBBLE_H1,
    ZERO_BUBBLE_V,
)
from meshwright.spec.spec import Spec, framework_names
from meshwright.topology.fabric import PathCosts
from meshwright.topology.groups import GROUPS
from tests.helpers.every_mesh import every_mesh
from tests.helpers.rows import row

APART = (
    "offload_supported",
    "offload_fraction",
    "state_supported",
    "lora_supported",
    "mtp_supported",
    "pairs_whole",
    "reference_supported",
    "muon_supported",
    "activations_partitioned",
    "activations_offloaded",
    "context_exchange_supported",
    "expert_dispatch_supported",
    "gradient_sync_supported",
    "fp8_inputs_supported",
)
"""Rules with tests of their own."""

RULES = {one.rule for one in rules_of("generic") if one.rule.name not in APART}

ANY = "generic"
"""A framework for the rules that every plan keeps."""

SPEC: dict[str, Any] = {
    "model": {
        "n_layers": 12,
        "d_model": 1536,
        "n_heads": 24,
        "n_kv_heads": 4,
        "d_ff": 4120,
        "vocab": 1000,
    },
    "cluster": {
        "topology": {
            "gpu": {
                "memory_gib": 80,
                "memory_gb_s": 2000,
                "peak_tflops": {"bf16": 300},
            },
            "levels": [{"name": "l", "size": 16, "gb_s": 300, "latency_us": 1}],
        }
    },
    "training": {"seq_len": 1020, "global_batch": 48},
}


SLOW = PathCosts(np.full((1, len(GROUPS)), 1e-8), row().paths.latency_s)
"""Links of 0.1 GB/s."""


def spec(framework: str = "megatron", **sections: object) -> Spec:
    return Spec.model_validate(SPEC | {"framework": framework} | sections)


MLP = FIELD["recompute_modules"].encoded("mlp")

SHARDED: dict[str, object] = {"dp_shard": 4, "zero": 2}

SEGMENTED: dict[str, object] = {"recompute": FULL, "recompute_segment": 4}

Fields = Mapping[str, object]

IN_EIGHTHS: dict[str, Any] = {"pp": 2, "vpp": 4}

CASES: dict[str, list[tuple[str, Fields, Fields]]] = {
    # rule: [(a framework with it, a row that holds, a row that breaks it)]
    # 24 heads: 8 divides them, 16 does not.
    "heads_divisible": [(ANY, {"tp": 8}, {"tp": 16})],
    # d_ff 4120 = 8 x 515.
    "mlp_divisible": [(ANY, {"tp": 8}, {"tp": 16})],
    # 1030 = 2 x 515: as wide as 4 GPUs, but not in equal parts.
    "shared_experts_divisible": [
        (
            ANY,
            {"tp": 2, "sequence_parallel": True},
            {"tp": 4, "sequence_parallel": True},
        )
    ],
    "layers_cover_stages": [(ANY, {"pp": 12}, {"pp": 13})],
    # 48 sequences: 4 x 4 = 16 ranks have 3 each, 4 x 8 = 32 have none.
    "batch_divisible": [
        (
            ANY,
            {"dp_shard": 4, "dp_replicate": 4},
            {"dp_shard": 4, "dp_replicate": 8},
        )
    ],
    # 1020 = 4 x 255.
    "sequence_divisible": [
        (
            ANY,
            {"tp": 4, "sequence_parallel": True},
            {"tp": 8, "sequence_parallel": True},
        )
    ],
    "recompute_supported": [
        (
            ANY,
            {"recompute": SELECTIVE},
            {"recompute": SELECTIVE, "recompute_modules": MLP},
        )
    ],
    "recompute_modules": [
        (
            ANY,
            {"recompute": SELECTIVE, "recompute_modules": MLP},
            {"recompute": FULL, "recompute_modules": MLP},
        )
    ],
    "expert_parts_supported": [
        (ANY, {"tp": 2}, {"tp": 2, "etp": 2}),
    ],
    "recompute_segments_supported": [
        (ANY, {"recompute": FULL}, SEGMENTED),
    ],
    # 12 layers: as many as 3 stages of a segment of 4 have, not 4 stages of 2 chunks.
    "recompute_segment": [
        ("megatron", SEGMENTED | {"pp": 3}, SEGMENTED | {"pp": 4}),
        ("megatron", SEGMENTED, SEGMENTED | {"recompute": NONE}),
    ],
    "recompute_segment_weights": [
        ("ideal", SEGMENTED | SHARDED, SEGMENTED | SHARDED | {"zero": 3}),
    ],
    "zero_bubble_recompute": [
        (
            ANY,
            {"pp": 2, "schedule": ZERO_BUBBLE_H1, "recompute": NONE},
            {"pp": 2, "schedule": ZERO_BUBBLE_H1, "recompute": SELECTIVE},
        )
    ],
    "v_supported": [
        (
            "megatron",
            {"pp": 2},
            {"pp": 2, "vpp": 2, "schedule": ZERO_BUBBLE_V, "recompute": NONE},
        )
    ],
    "layers_cover_chunks": [(ANY, {"pp": 4, "vpp": 2}, {"pp": 4, "vpp": 6})],
    # Stages of 2 chunks of 2 layers, the first of which hold 3 that lead.
    "leading_tried": [
        (
            ANY,
            {"pp": 3, "vpp": 2, "microbatches": 11},
            {"pp": 3, "vpp": 2, "microbatches": 12},
        ),
        (
            ANY,
            {"pp": 2, "vpp": 2, "microbatches": 12},
            {"pp": 3, "vpp": 2, "microbatches": 12},
        ),
        (
            ANY,
            {"pp": 6, "vpp": 1, "microbatches": 24},
            {"pp": 6, "vpp": 2, "microbatches": 24},
        ),
    ],
    # 1020 = 4 x 255: so many tokens for each of four ranks, not of eight.
    "context_divisible": [(ANY, {"cp": 4}, {"cp": 8})],
    # 1020 = 2 x 2 x 255: two chunks for each of two ranks, not of four.
    "context_balanced": [(ANY, {"cp": 2}, {"cp": 4})],
    # 12 heads in 8 groups: 8 divides the groups alone, 12 the heads alone.
    "state_space_divisible": [
        (ANY, {"tp": 4}, {"tp": 8}),
        (ANY, {"tp": 4}, {"tp": 12}),
    ],
    "state_space_context": [(ANY, {}, {"cp": 2})],
    "kinds_divisible": [(ANY, {"tp": 2}, {"tp": 4})],
    # Four patterns of three layers: for two stages, not for eight.
    "whole_patterns": [(ANY, {"pp": 2}, {"pp": 8}), (ANY, {"pp": 2}, IN_EIGHTHS)],
}

MOE = {"n_experts": 4, "top_k": 2, "d_ff": 4120}

HYBRID: dict[str, Any] = {
    "kinds": {"state": {"mixer": "state_space"}, "all": {}},
    "pattern": ["state", "all"],
    "state_space": {
        "form": "mamba2", "n_heads": 12, "head_dim": 64, "groups": 8, "state_dim": 64,
    },
}  # fmt: skip

MODELS: dict[str, dict[str, Any]] = {
    "leading_tried": {
        "moe": {"n_experts": 4, "top_k": 2, "d_ff": 512, "first_dense_layers": 3}
    },
    "shared_experts_divisible": {"moe": MOE | {"shared_d_ff": 1030}},
    "state_space_divisible": HYBRID,
    "state_space_context": HYBRID,
    "kinds_divisible": {
        "kinds": {"narrow": {"d_ff": 1030}, "wide": {}},
        "pattern": ["narrow", "wide"],
    },
    "whole_patterns": {
        "kinds": {"near": {"attention_window": 64}, "all": {}},
        "pattern": ["near", "near", "all"],
    },
}
"""What the model must be like for a rule to have something to say."""

EVERY = [
    pytest.param(name, framework, holds, breaks, id=f"{name}-{framework}")
    for name, cases in CASES.items()
    for framework, holds, breaks in cases
]


def spec_for(rule: str, framework: str = "megatron") -> Spec:
    return spec(framework, model=SPEC["model"] | MODELS.get(rule, {}))


def rules_under(name: str) -> list[Rule]:
    found = framework_named(name)
    return [*DEGREE_RULES, *found.degree_rules, *PLAN_RULES, *found.plan_rules]


def rule_of(name: str, framework: str) -> Rule:
    (found,) = [rule for rule in rules_under(framework) if rule.name == name]
    return found


def names_broken(given: Spec, rows: Skeletons) -> list[str]:
    rules = [*degree_rules(given), *plan_rules(given)]
    return [rule.rule for rule in broken(rules, given, rows)]


def test_every_rule_has_a_case() -> None:
    covered = {rule_of(n, case[0]) for n, cases in CASES.items() for case in cases}
    assert covered == RULES


@pytest.mark.parametrize(("name", "framework", "holds", "breaks"), EVERY)
def test_rule_holds_and_breaks(
    name: str, framework: str, holds: Fields, breaks: Fields
) -> None:
    rule = rule_of(name, framework)
    found = spec_for(name, framework)
    assert rule.holds(found, row(**holds)).tolist() == [True]
    assert rule.holds(found, row(**breaks)).tolist() == [False]


@pytest.mark.parametrize(("name", "framework", "holds", "breaks"), EVERY)
def test_broken_rule_says_its_numbers(
    name: str, framework: str, holds: Fields, breaks: Fields
) -> None:
    """The sentence ends in the compared values, of the spec and of the plan."""
    rule = rule_of(name, framework)
    found = spec_for(name, framework)
    (told,) = broken([rule], found, row(**breaks))
    assert told.rule == name
    assert told.sentence.startswith(rule.sentence)
    assert broken([rule], found, row(**holds)) == []
    assert "{" not in told.sentence
    shown = told.sentence.removeprefix(rule.sentence)
    rows = row(**breaks)
    known = {key: FIELD[key].decoded(int(getattr(rows, key)[0])) for key in breaks}
    plan = {**known, "dp": int(rows.dp[0])}
    compared = [str(one).lower() for key, one in plan.items() if key in told.compared]
    assert compared
    assert all(value in shown for value in compared)


@pytest.mark.parametrize("framework", framework_names())
def test_pins_change_no_rule_of_a_framework(framework: str) -> None:
    pins = {"tp": 2, "dp": 4, "layers": [6, 6], "zero": 0, "vpp": 1}
    pinned, plain = spec(framework, pins=pins), spec(framework)
    assert framework_degree_rules(pinned) == degree_rules(plain)
    more = degree_rules(pinned)[len(degree_rules(plain)) :]
    assert [rule.name for rule in more] == [
        "pin tp", "pin dp", "pin layers",
    ]  # fmt: skip
    assert framework_rules(pinned) == framework_rules(plain)


def test_sentences_by_hand() -> None:
    found, rows = spec(), row(tp=16, pp=13, sequence_parallel=True)
    told = broken([*degree_rules(found), *plan_rules(found)], found, rows)
    assert [f"{rule.rule}: {rule.sentence}" for rule in told] == [
        "heads_divisible: tp divides the query heads (24 heads mod tp 16 = 8)",
        "mlp_divisible: tp divides the inner width of the MLP (d_ff 4120 mod tp 16 = "
        "8)",
        "layers_cover_stages: every pipeline stage has a layer, and the first all that "
        "lead (pp 13 for 12 layers)",
        "sequence_divisible: under sequence parallelism tp x cp divides the sequence "
        "(seq_len 1020 mod (tp 16 x cp 1) = 12)",
    ]


@pytest.mark.parametrize(
    ("framework", "widest"), [("megatron", 8), ("deepspeed", 8), ("torchtitan", 4)]
)
def test_kv_heads_repeat_in_megatron_but_not_in_torchtitan(
    framework: str, widest: int
) -> None:
    """24 heads and 4 KV heads on 16 GPUs: tp 16 splits no head count.

    tp 8 gives each GPU 3 query heads and half of the KV heads' GPUs share one:
    Megatron-LM repeats it, torchtitan's colwise wk and wv would cut it in two.
    """
    training = SPEC["training"] | {"seq_len": 1024}
    job = make_job(spec(framework, training=training))
    assert int(build_lattice(job).rows.tp.max()) == widest


def test_every_row_of_the_lattice_holds_every_rule() -> None:
    for framework in framework_names():
        found = spec(framework)
        rows = build_lattice(make_job(found)).rows
        assert len(rows) > 0
        rules = [*degree_rules(found), *plan_rules(found)]
        assert holding(rules, found, rows).all()


PINS: list[tuple[str, object, Fields, Fields]] = [
    ("tp", 4, {"tp": 4}, {"tp": 2}),
    ("tp", [2, 4], {"tp": 2}, {"tp": 3}),
    ("pp", {"min": 2, "max": 4}, {"pp": 4}, {"pp": 5}),
    ("pp", {"min": 2}, {"pp": 2}, {"pp": 1}),
    ("dp", 8, {"dp_shard": 4, "dp_replicate": 2}, {"dp_shard": 8, "dp_replicate": 2}),
    ("dp_shard", 4, {"dp_shard": 4}, {"dp_replicate": 4}),
    ("dp_replicate", 4, {"dp_replicate": 4}, {"dp_shard": 4}),
    ("micro_batch", 2, {"micro_batch": 2}, {"micro_batch": 1}),
    ("microbatches", {"min": 8}, {"microbatches": 8}, {"microbatches": 7}),
    ("zero", [0, 1], {"zero": 1}, {"zero": 2}),
    ("sequence_parallel", True, {"sequence_parallel": True}, {}),
    ("sequence_parallel", False, {}, {"sequence_parallel": True}),
    ("schedule", "gpipe", {"schedule": GPIPE}, {}),
    ("recompute", "full", {"recompute": FULL}, {"recompute": SELECTIVE}),
    (
        "recompute",
        ["none", "full"],
        {"recompute": NONE},
        {"recompute": SELECTIVE},
    ),
    ("vpp", 2, {"vpp": 2}, {"vpp": 1}),
    ("cp", 2, {"cp": 2}, {"cp": 1}),
    ("ep", {"max": 1}, {"ep": 1}, {"ep": 2}),
    ("layers", [5, 4, 3], {"pp": 3}, {"pp": 2}),
    ("recompute_layers", [1, 0], {"pp": 2, "recompute": FULL}, {"pp": 1}),
    ("recompute_layers", [1, 0], {"pp": 2, "recompute": FULL}, {"pp": 2}),
    ("recompute_layers", [0, 0], {"pp": 2}, {"pp": 2, "recompute": FULL}),
]


@pytest.mark.parametrize(("field", "wanted", "holds", "breaks"), PINS)
def test_pin_is_a_rule(
    field: str, wanted: object, holds: Fields, breaks: Fields
) -> None:
    found, plain = spec("torchtitan", pins={field: wanted}), spec("torchtitan")
    name = f"pin {field}"
    assert name not in names_broken(found, row(**holds))
    assert name in names_broken(found, row(**breaks))
    assert name not in names_broken(plain, row(**breaks))


@pytest.mark.parametrize(
    ("layers", "fields", "is_whole"),
    [
        ([5, 5, 2], {"vpp": 3}, True),
        ([5, 5, 2], {"vpp": 4}, False),
        ([5, 2, 5], {"vpp": 3}, False),
        ([5, 5, 2], {"vpp": 2, "schedule": ZERO_BUBBLE_V}, True),
        ([5, 6, 1], {"vpp": 2}, True),
        ([5, 6, 1], {"vpp": 2, "schedule": ZERO_BUBBLE_V}, False),
    ],
)
def test_chunks_of_pinned_stages_hold_a_layer_or_an_end(
    layers: list[int], fields: Fields, is_whole: bool
) -> None:
    """The embedding or the loss is enough, but both ends of a V are one stage's."""
    found = spec("torchtitan", pins={"layers": layers})
    names = names_broken(found, row(pp=3, **fields))
    assert ("layers_cover_chunks" not in names) == is_whole


@pytest.mark.parametrize(
    ("layers", "is_legal"),
    [([2, 7, 3], False), ([3, 7, 2], True), ([7, 2, 3], True), ([2, 2, 8], True)],
)
def test_first_chunks_of_pinned_stages_have_all_leading_layers(
    layers: list[int], is_legal: bool
) -> None:
    """Chunks of 1 and 1 layers, then 3 and 4, take 1 and 2 of 3, which has no price."""
    moe = {"n_experts": 4, "top_k": 2, "d_ff": 512, "first_dense_layers": 3}
    found = spec(
        "torchtitan", model=SPEC["model"] | {"moe": moe}, pins={"layers": layers}
    )
    names = names_broken(found, row(pp=3, vpp=2))
    assert ("layers_cover_chunks" not in names) == is_legal


@pytest.mark.parametrize(
    ("others", "whole"), [(1, [1, 2, 3, 6]), (2, [1, 2, 4]), (3, [1, 3])]
)
def test_even_stages_of_deepspeed_hold_whole_patterns_or_are_refused(
    others: int, whole: list[int]
) -> None:
    """Twelve layers in pairs: stages of 3 and of 2.4 layers cut one in two."""
    kinds = {"kinds": {"near": {"attention_window": 64}, "all": {}}}
    paired = SPEC["model"] | kinds | {"pattern": [*["near"] * others, "all"]}
    rule = rule_of("whole_patterns", "deepspeed")
    pp = np.array([1, 2, 3, 4, 5, 6])
    rows = replace(row(), pp=pp, vpp=np.ones_like(pp))
    holds = rule.holds(spec("deepspeed", model=paired), rows)
    assert pp[holds].tolist() == whole


def test_a_pattern_of_all_layers_is_for_one_stage() -> None:
    kinds = {"kinds": {"near": {"attention_window": 64}, "all": {}}}
    found = spec(
        ANY, model=SPEC["model"] | kinds | {"pattern": [*["near"] * 11, "all"]}
    )
    rule = rule_of("whole_patterns", ANY)
    assert rule.holds(found, row(pp=1))[0]
    assert not rule.holds(found, row(pp=2))[0]


def test_patterns_behind_layers_that_lead_are_not_interleaved() -> None:
    """Four pairs are one for each of four chunks, unless two layers come before."""
    kinds = {"kinds": {"near": {"attention_window": 64}, "all": {}}}
    for leading, is_legal in ((0, True), (2, False)):
        pattern = [*["near"] * leading, *["near", "all"] * 4]
        model = SPEC["model"] | kinds | {"pattern": pattern, "n_layers": len(pattern)}
        found = spec("torchtitan", model=model)
        assert (len(found.model.order.leading), found.model.order.repeats) == (
            leading,
            4,
        )
        names = names_broken(found, row(pp=2, vpp=2))
        assert ("whole_patterns" not in names) == is_legal


@pytest.mark.parametrize(
    ("leading", "fields", "is_legal"),
    [
        # Two stages of two chunks of three layers: first chunks have six layers.
        (3, {"pp": 2, "vpp": 2}, True),
        (6, {"pp": 2, "vpp": 2}, True),
        (7, {"pp": 2, "vpp": 2}, False),
        (3, {"pp": 2, "vpp": 6}, False),
        (2, {"pp": 2, "vpp": 6}, True),
    ],
)
def test_first_chunks_of_even_stages_have_room_for_all_leading_layers(
    leading: int, fields: Fields, is_legal: bool
) -> None:
    moe = {"n_experts": 4, "top_k": 2, "d_ff": 512, "first_dense_layers": leading}
    found = spec("torchtitan", model=SPEC["model"] | {"moe": moe})
    names = names_broken(found, row(**fields))
    assert ("layers_cover_chunks" not in names) == is_legal


def test_ranks_that_do_not_split_the_sequence_need_not_divide_it() -> None:
    assert "sequence_divisible" not in names_broken(spec(), row(tp=8))


def test_attention_that_stores_its_scores_takes_whole_sequences() -> None:
    training = SPEC["training"] | {"attention": "plain"}
    for one, is_refused in ((spec(training=training), True), (spec(), False)):
        broken_ones = names_broken(one, row(cp=2))
        assert ("context_divisible" in broken_ones) == is_refused
        assert "context_divisible" not in names_broken(one, row(cp=1))


@pytest.mark.parametrize("framework", ["deepspeed", "internevo", "fsdp"])
def test_frameworks_without_selective_recomputation(framework: str) -> None:
    rule = rule_of("recompute_supported", framework)
    assert rule.holds(spec(framework), row(recompute=FULL))[0]
    assert not rule.holds(spec(framework), row(recompute=SELECTIVE))[0]


def test_pin_is_quoted_as_written() -> None:
    found = spec(pins={"tp": {"min": 2, "max": 8}, "zero": [0, 1]})
    told = broken([*degree_rules(found), *plan_rules(found)], found, row(tp=1, zero=3))
    assert [rule.sentence for rule in told] == [
        "pins.tp: {min: 2, max: 8} (tp 1)",
        "pins.zero: [0, 1] (zero 3)",
    ]


def test_mesh_pin_is_a_rule() -> None:
    """Of 16 = one level the mesh pin takes exactly the meshes with that factor."""
    found = spec(pins={"mesh": {"tp": [4]}})
    meshes = every_mesh((16,))
    (rule,) = mesh_rules(found, meshes)
    for index, mesh in enumerate(meshes):
        holds = bool(rule.holds(found, row(mesh=index))[0])
        assert holds == (mesh[0, 0] == 4)


def on_hosts(**sections: Any) -> Spec:
    """Return a spec of twelve hosts, each with two pairs of pairs of GPUs."""
    topology = SPEC["cluster"]["topology"]
    levels = [
        {"name": "pair", "size": 2, "gb_s": 300, "latency_us": 1},
        {"name": "host", "size": 4, "gb_s": 100, "latency_us": 1},
        {"name": "net", "size": 12, "gb_s": 25, "latency_us": 5},
    ]
    host = {"gpus": 8, "memory_gib": 1000, "pcie_gb_s": 25, "memory_gb_s": 200}
    hosts = {"levels": levels, "host": host}
    return spec(cluster={"topology": topology | hosts}, **sections)


@pytest.mark.parametrize(
    ("tp", "holds"),
    [
        ((2, 1, 1), True),
        ((1, 1, 2), False),
        ((2, 2, 1), True),
        ((1, 4, 1), True),
        ((2, 1, 2), False),
        ((2, 4, 2), True),
        ((2, 2, 4), False),
        ((1, 1, 3), True),
        ((2, 1, 3), True),
        ((1, 1, 6), False),
    ],
)
def test_tensor_parallel_groups_leave_a_node_only_as_they_must(
    tp: tuple[int, int, int], *, holds: bool
) -> None:
    """Hosts of 2 x 4 GPUs, 12 of them: 8 GPUs hold 4 of 4, 8 of 16 and 2 of 6."""
    found = on_hosts()
    (rule,) = mesh_rules(found, np.array([[tp]]))
    assert bool(rule.holds(found, row(mesh=0))[0]) is holds


def test_a_pinned_mesh_of_tp_may_lie_anywhere() -> None:
    found = on_hosts(pins={"mesh": {"tp": [1, 1, 4]}})
    rules = mesh_rules(found, every_mesh((2, 4, 12)))
    assert [rule.name for rule in rules] == ["pin mesh.tp"]
    assert len(build_lattice(make_job(found)).rows) > 0


@pytest.mark.parametrize("factors", [[2, 4], [2, 1]])
def test_mesh_pin_names_every_level_and_no_more(factors: list[int]) -> None:
    """A cluster of one level has no second factor; tp 2 x 4 must not become tp 2."""
    with pytest.raises(ValidationError, match=r"mesh\.tp: .* has 2 factors"):
        spec(pins={"mesh": {"tp": factors}})


@pytest.mark.parametrize("gb_s", [10, 12.5, 15.5, 25, 31.5, 50, 56.25, 300, 450, 900])
@pytest.mark.parametrize("sharing", [1, 2, 4, 8])
def test_tensor_parallel_link_limit_is_inclusive(gb_s: float, sharing: int) -> None:
    """A link of exactly the limit is fast enough; one a millionth slower is not."""
    own_gb_s = gb_s / sharing
    at = spec(limits={"tp_min_link_gb_s": own_gb_s})
    above = spec(limits={"tp_min_link_gb_s": own_gb_s * (1 + 1e-6)})
    free = row(tp=2)
    s_per_byte = np.full((1, len(GROUPS)), sharing / (gb_s * 1e9))
    rows = replace(free, paths=PathCosts(s_per_byte, free.paths.latency_s))
    assert TP_LINK.holds(at, rows)[0]
    assert not TP_LINK.holds(above, rows)[0]
    assert TP_LINK.holds(spec(), replace(rows, paths=SLOW))[0]


@pytest.mark.parametrize("gb_s", [10, 12.5, 25, 31.5, 56.25, 300, 450])
def test_tensor_parallel_on_links_of_just_the_limit(gb_s: float) -> None:
    """A cluster of links of `gb_s` with a limit of `gb_s` may use them."""
    topology = SPEC["cluster"]["topology"]
    levels = [
        {"name": "a", "size": 2, "gb_s": gb_s, "latency_us": 1},
        {"name": "b", "size": 4, "gb_s": gb_s, "latency_us": 1},
    ]
    found = spec(
        cluster={"topology": topology | {"levels": levels}},
        limits={"tp_min_link_gb_s": gb_s},
        pins={"tp": 8},
        training=SPEC["training"] | {"seq_len": 1024},
    )
    assert len(build_lattice(make_job(found)).rows) > 0
    names = [rule.name for rule in mesh_rules(found, every_mesh((2, 4)))]
    assert names == ["tensor_parallel_inside_nodes", "tp_link_bandwidth"]


@pytest.mark.parametrize("gb_s", [3.3, 6.6, 12.1, 25, 50])
def test_rounding_does_not_break_the_link_limit(gb_s: float) -> None:
    """3 GPUs a node, a rail each: tp over nodes has `gb_s` for each GPU, no less."""
    topology = SPEC["cluster"]["topology"]
    levels = [
        {"name": "a", "size": 3, "gb_s": 300, "latency_us": 1},
        {"name": "b", "size": 4, "gb_s": gb_s, "latency_us": 1},
    ]
    found = spec(
        cluster={"topology": topology | {"levels": levels}},
        limits={"tp_min_link_gb_s": gb_s},
        pins={"mesh": {"tp": [1, 4]}},
    )
    assert len(build_lattice(make_job(found)).rows) > 0


def test_slow_tensor_parallel_links_break_the_limit() -> None:
    """300 GB/s links under a limit of 400: tp is left out, or named with numbers."""
    found = spec(limits={"tp_min_link_gb_s": 400})
    assert set(build_lattice(make_job(found)).rows.tp.tolist()) == {1}
    pinned = spec(limits={"tp_min_link_gb_s": 400}, pins={"tp": 2})
    outcome = solve(pinned)
    assert outcome.status == "infeasible"
    assert outcome.near_miss is not None
    (told,) = outcome.near_miss.broken_rules
    assert told.rule in ("tp_link_bandwidth", "pin tp")
    rows = replace(row(tp=2), paths=SLOW)
    (sentence,) = broken([TP_LINK], pinned, rows)
    assert sentence.sentence.endswith("(tp 2, limit 400 GB/s)")


@pytest.mark.parametrize(
    "state",
    [
        {"moments": "bf16"},
        {"master_weights": "remainders"},
        {"precision": "fp8", "fp8_weights": "primary"},
    ],
)
@pytest.mark.parametrize("framework", framework_names())
def test_small_state_is_of_frameworks_that_keep_it(
    framework: str, state: dict[str, str]
) -> None:
    peaks = {"peak_tflops": {"bf16": 300, "fp8": 600}}
    topology = SPEC["cluster"]["topology"]
    topology = topology | {"gpu": topology["gpu"] | peaks}
    training = SPEC["training"] | state
    found = spec(framework, training=training, cluster={"topology": topology})
    is_kept = "state_supported" not in names_broken(found, row())
    assert is_kept == (framework in ("megatron", "generic", "ideal"))
    usual = spec(framework)
    assert "state_supported" not in names_broken(usual, row())


@pytest.mark.parametrize("framework", framework_names())
def test_pure_bf16_and_one_reduction_are_of_frameworks_that_have_them(
    framework: str,
) -> None:
    pure = spec(framework, training=SPEC["training"] | {"master_weights": "none"})
    is_kept = "state_supported" not in names_broken(pure, row())
    assert is_kept == (framework in ("fsdp", "torchtitan", "generic", "ideal"))
    last = spec(framework, training=SPEC["training"] | {"gradient_sync": "last"})
    is_kept = "gradient_sync_supported" not in names_broken(last, row())
    assert is_kept == (framework in ("fsdp", "generic", "ideal"))
    each = spec(framework)
    assert "gradient_sync_supported" not in names_broken(each, row())


@pytest.mark.parametrize("framework", framework_names())
def test_inputs_in_8_bits_are_of_frameworks_that_keep_them(framework: str) -> None:
    narrow = SPEC["training"] | {"fp8_activation_inputs": True}
    broken = names_broken(spec(framework, training=narrow), row())
    is_kept = "fp8_inputs_supported" not in broken
    assert is_kept == (framework in ("megatron", "generic", "ideal"))
    assert "fp8_inputs_supported" not in names_broken(spec(framework), row())


@pytest.mark.parametrize("weights", ["bf16", "nf4", "int8"])
@pytest.mark.parametrize("framework", framework_names())
def test_frozen_weights_are_of_frameworks_that_keep_them(
    framework: str, weights: str
) -> None:
    lora = {"weights": weights}
    found = spec(framework, training=SPEC["training"] | {"lora": lora})
    has_any = framework in ("fsdp", "deepspeed", "generic", "ideal")
    is_kept = "lora_supported" not in names_broken(found, row())
    assert is_kept == (has_any or (framework, weights) == ("megatron", "bf16"))


def test_context_is_exchanged_as_the_framework_can() -> None:
    def is_kept(framework: str, exchange: str, **degrees: int) -> bool:
        training = SPEC["training"] | {"context_exchange": exchange}
        found = spec(framework, training=training)
        broken = names_broken(found, row(**degrees))
        return "context_exchange_supported" not in broken

    assert is_kept("torchtitan", "gather", cp=4)
    assert is_kept("torchtitan", "ring", cp=1)
    assert not is_kept("torchtitan", "ring", cp=2)
    assert is_kept("megatron", "gather", cp=8)
    # 4 KV heads, whole ones on every GPU
    assert is_kept("megatron", "ulysses", cp=2, tp=2)
    assert not is_kept("megatron", "ulysses", cp=4, tp=2)


@pytest.mark.parametrize("framework", framework_names())
def test_deepep_is_of_frameworks_that_have_it(framework: str) -> None:
    for dispatch, knowing in (
        ("alltoall", framework_names()),
        ("deepep", ("megatron", "generic", "ideal")),
    ):
        training = SPEC["training"] | {"expert_dispatch": dispatch}
        broken = names_broken(spec(framework, training=training), row())
        assert ("expert_dispatch_supported" not in broken) == (framework in knowing)


def test_primary_fp8_weights_beside_pure_bf16_are_of_no_torch_framework() -> None:
    training = {"precision": "fp8", "fp8_weights": "primary", "master_weights": "none"}
    topology = SPEC["cluster"]["topology"]
    peaks = {"peak_tflops": {"bf16": 300, "fp8": 600}}
    topology = topology | {"gpu": topology["gpu"] | peaks}
    for framework, is_kept in {"generic": True, "fsdp": False}.items():
        found = spec(
            framework,
            training=SPEC["training"] | training,
            cluster={"topology": topology},
        )
        assert ("state_supported" not in names_broken(found, row())) == is_kept


@pytest.mark.parametrize(
    "state",
    [
        {"moments": "bf16", "optimizer": "sgd"},
        {"master_weights": "remainders", "optimizer": "adamw-8bit"},
        {"master_weights": "remainders", "precision": "fp16"},
        {
            "master_weights": "remainders",
            "precision": "fp8",
            "fp8_weights": "primary",
        },
        {"precision": "bf16", "fp8_weights": "primary"},
    ],
)
def test_state_that_means_nothing_is_refused(state: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=r"beside|without"):
        spec(training=SPEC["training"] | state)
