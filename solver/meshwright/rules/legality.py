"""The rules that apply to a spec: universal ones, its framework's, its pins."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple, TypeVar

from meshwright.frameworks.base.framework import Framework
from meshwright.frameworks.base.registry import framework, framework_of
from meshwright.plans.rule import Rule
from meshwright.rules import universal
from meshwright.rules.pins import (
    degree_pins,
    impossible_stages,
    mesh_pins,
    plan_pins,
)
from meshwright.rules.sums import (
    SplitRule,
    framework_split_rules,
    part_degree_rules,
    part_mesh_rules,
)
from meshwright.rules.universal import (
    HOST_PLAN_RULES,
    KIND_DEGREE_RULES,
    KIND_PLAN_RULES,
    tp_link,
)
from meshwright.rules.user_rules import user_degree_rules, user_plan_rules
from meshwright.spec.spec import Spec, framework_names
from meshwright.topology.fabric import Meshes
from meshwright.topology.groups import TP

DEGREE_RULES = (*universal.DEGREE_RULES, *KIND_DEGREE_RULES)
PLAN_RULES = (*universal.PLAN_RULES, *HOST_PLAN_RULES, *KIND_PLAN_RULES)

AnyRule = TypeVar("AnyRule", bound=Rule | SplitRule)

PRINTED_ORDER = (
    "heads_divisible",
    "kv_heads_divisible",
    "mlp_divisible",
    "shared_experts_divisible",
    "kinds_divisible",
    "state_space_divisible",
    "state_space_context",
    "layers_cover_stages",
    "batch_divisible",
    "tensor_parallel_supported",
    "pipeline_supported",
    "tied_embeddings_supported",
    "context_parallel_supported",
    "context_divisible",
    "context_balanced",
    "context_splits_heads",
    "context_stands_alone",
    "replicas_supported",
    "hybrid_sharding_supported",
    "zero_supported",
    "zero_with_pipeline",
    "context_shards_state",
    "tensor_parallel_shards",
    "sequence_parallel_supported",
    "sequence_divisible",
    "sequence_chunks",
    "expert_sequence_parallel",
    "expert_parallel_supported",
    "expert_parallel_fixed",
    "expert_parallel_folds",
    "expert_parallel_shards",
    "expert_tensor_parallel",
    "expert_shards_state",
    "schedule_supported",
    "zero_bubble_recompute",
    "recompute_supported",
    "recompute_modules",
    "recompute_segments_supported",
    "recompute_segment",
    "recompute_segment_weights",
    "recompute_fp8",
    "interleaving_supported",
    "layers_cover_chunks",
    "whole_patterns",
    "interleaving_rounds",
    "fsdp_tried",
    "microbatches_fill_pipeline",
    "zero_bubble_rounds",
    "state_supported",
    "lora_supported",
    "muon_supported",
    "activations_partitioned",
    "activations_offloaded",
    "state_sharded",
    "offload_supported",
    "offload_fraction",
    "offload_fraction_supported",
    "drives_supported",
)
"""Names of rules in the order in which explanations prefer and print them.

Shapes come first, then degrees, state, activations, schedules, host memory, and last
the names that are not listed here.
"""


def degree_rules(spec: Spec) -> list[Rule]:
    """Return the rules on degrees that apply to a spec, those of the user last."""
    return [*framework_degree_rules(spec), *chosen_degree_rules(spec)]


def framework_degree_rules(spec: Spec) -> list[Rule]:
    """Return the rules on degrees without pins."""
    known = framework_of(spec)
    rules = _in_order((*in_words_of(known, DEGREE_RULES), *known.degree_rules))
    return [*_concerning(rules, spec), *part_degree_rules(spec)]


def plan_rules(spec: Spec) -> list[Rule]:
    """Return the rules on whole skeletons that apply to a spec, the user's last."""
    return [*framework_rules(spec), *chosen_plan_rules(spec)]


def chosen_degree_rules(spec: Spec) -> list[Rule]:
    """Return the user's decisions on degrees: pins, and the rules of the spec."""
    pins = [*degree_pins(spec), *impossible_stages(spec)]
    return [*pins, *user_degree_rules(spec)]


def chosen_plan_rules(spec: Spec) -> list[Rule]:
    """Return the user's decisions on all other fields: pins, and rules of the spec."""
    return [*plan_pins(spec), *user_plan_rules(spec)]


def framework_rules(spec: Spec) -> list[Rule]:
    """Return the rules on whole skeletons without pins."""
    known = framework_of(spec)
    rules = _in_order((*in_words_of(known, PLAN_RULES), *known.plan_rules))
    return _concerning(rules, spec)


def mesh_rules(spec: Spec, meshes: Meshes) -> list[Rule]:
    """Return the rules on the levels of axes; the column `mesh` indexes `meshes`."""
    limits = [TP_LINK] if spec.limits.tp_min_link_gb_s is not None else []
    return [*limits, *part_mesh_rules(spec, meshes), *mesh_pins(spec.pins, meshes)]


def _in_order(rules: Iterable[AnyRule]) -> list[AnyRule]:
    """Return rules in the printed order; those of one name keep their order."""
    last = len(PRINTED_ORDER)
    order = {name: place for place, name in enumerate(PRINTED_ORDER)}
    return sorted(rules, key=lambda rule: order.get(rule.name, last))


def _concerning(rules: list[Rule], spec: Spec) -> list[Rule]:
    return [rule for rule in rules if rule.concerns(spec)]


@cache
def in_words_of(known: Framework, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Return rules that every plan keeps as a framework puts them."""
    return tuple(rule.said_by(known.rule_words.get(rule.name)) for rule in rules)


class Listed(NamedTuple):
    """A rule with the names of the frameworks that have it."""

    rule: Rule | SplitRule
    frameworks: tuple[str, ...]


def rules_of(name: str | None) -> list[Listed]:
    """Return the rules of one framework, in its words, or of all."""
    holders: dict[Rule | SplitRule, list[str]] = {}
    for holder in framework_names():
        for rule in _every_rule(framework(holder)):
            holders.setdefault(rule, []).append(holder)
    found = {rule: names for rule, names in holders.items() if name in (None, *names)}
    rule_words = framework(name).rule_words if name else {}
    of_all = (*DEGREE_RULES, *PLAN_RULES)
    said: dict[Rule | SplitRule, Rule] = {
        rule: rule.said_by(rule_words.get(rule.name)) for rule in of_all
    }
    return [
        Listed(said.get(rule, rule), tuple(found[rule])) for rule in _in_order(found)
    ]


def _every_rule(known: Framework) -> list[Rule | SplitRule]:
    on_rows = (*DEGREE_RULES, *known.degree_rules, *PLAN_RULES, *known.plan_rules)
    return [*on_rows, *framework_split_rules(known)]


TP_LINK: Rule = tp_link(lambda rows: rows.paths.s_per_byte[:, TP])
