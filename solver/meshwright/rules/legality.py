"""The rules that apply to a spec: universal ones, its framework's, its pins."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.frameworks.base.registry import framework, framework_of
from meshwright.plans.rule import Rule
from meshwright.rules.parts import part_degree_rules, part_mesh_rules
from meshwright.rules.pins import degree_pins, mesh_pins, plan_pins
from meshwright.rules.shared import tp_link
from meshwright.rules.universal import DEGREE_RULES, PLAN_RULES
from meshwright.spec.framework_names import framework_names
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import Meshes
from meshwright.topology.groups import TP

PRINTED_ORDER = (
    "heads_divisible",
    "kv_heads_divisible",
    "mlp_divisible",
    "shared_experts_divisible",
    "layers_cover_stages",
    "batch_divisible",
    "tensor_parallel_supported",
    "pipeline_supported",
    "context_parallel_supported",
    "context_divisible",
    "hybrid_sharding_supported",
    "zero_supported",
    "zero_with_pipeline",
    "sequence_parallel_supported",
    "sequence_parallel_always",
    "sequence_divisible",
    "expert_sequence_parallel",
    "expert_parallel_supported",
    "schedule_supported",
    "zero_bubble_recompute",
    "interleaving_supported",
    "interleaving_divisible",
    "microbatches_fill_pipeline",
    "state_supported",
    "state_sharded",
    "offload_supported",
    "drives_supported",
)
"""Names of rules in the order in which explanations prefer and print them.

Shapes come first, then degrees, state, activations, schedules, host memory, and last
the names that are not listed here.
"""


def degree_rules(spec: Spec) -> list[Rule]:
    """Return the rules on degrees that apply to a spec, pins last."""
    return [*framework_degree_rules(spec), *degree_pins(spec)]


def framework_degree_rules(spec: Spec) -> list[Rule]:
    """Return the rules on degrees without pins."""
    rules = _in_order((*DEGREE_RULES, *framework_of(spec).degree_rules))
    return [*_concerning(rules, spec), *part_degree_rules(spec)]


def plan_rules(spec: Spec) -> list[Rule]:
    """Return the rules on whole skeletons that apply to a spec, pins last."""
    return [*framework_rules(spec), *plan_pins(spec)]


def framework_rules(spec: Spec) -> list[Rule]:
    """Return the rules on whole skeletons without pins."""
    rules = _in_order((*PLAN_RULES, *framework_of(spec).plan_rules))
    return _concerning(rules, spec)


def mesh_rules(spec: Spec, meshes: Meshes) -> list[Rule]:
    """Return the rules on the levels of axes; the column `mesh` indexes `meshes`."""
    limits = [TP_LINK] if spec.limits.tp_min_link_gb_s is not None else []
    return [*limits, *part_mesh_rules(spec, meshes), *mesh_pins(spec.pins, meshes)]


def _in_order(rules: tuple[Rule, ...]) -> list[Rule]:
    """Return rules in the printed order; those of one name keep their order."""
    last = len(PRINTED_ORDER)
    order = {name: place for place, name in enumerate(PRINTED_ORDER)}
    return sorted(rules, key=lambda rule: order.get(rule.name, last))


def _concerning(rules: list[Rule], spec: Spec) -> list[Rule]:
    return [rule for rule in rules if rule.concerns(spec)]


class Listed(NamedTuple):
    """A rule with the names of the frameworks that have it."""

    rule: Rule
    frameworks: tuple[str, ...]


def rules_of(name: str | None) -> list[Listed]:
    """Return the rules of one framework, or of all."""
    holders: dict[Rule, list[str]] = {}
    for holder in framework_names():
        added = framework(holder)
        rules = (*DEGREE_RULES, *added.degree_rules, *PLAN_RULES, *added.plan_rules)
        for rule in rules:
            holders.setdefault(rule, []).append(holder)
    found = {rule: names for rule, names in holders.items() if name in (None, *names)}
    return [Listed(rule, tuple(found[rule])) for rule in _in_order(tuple(found))]


TP_LINK: Rule = tp_link(lambda rows: rows.paths.s_per_byte[:, TP])
