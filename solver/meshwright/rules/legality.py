"""The rules that apply to a spec: universal ones, its framework's, its pins."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from meshwright.frameworks.base.framework import Framework
from meshwright.frameworks.base.registry import framework, framework_of
from meshwright.plans.columns import Bools, Ints
from meshwright.plans.rule import BrokenRule, Degrees, R, Rule, RuleOf
from meshwright.plans.skeletons import Skeletons
from meshwright.rules import universal
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
    tp_inside_nodes,
    tp_link,
)
from meshwright.rules.user_rules import user_degree_rules, user_plan_rules
from meshwright.spec.plan_fields import AXES, FIELD, NONE, Pins, Range, written
from meshwright.spec.spec import Spec, framework_names
from meshwright.topology.fabric import Meshes
from meshwright.topology.groups import TP

Pin = RuleOf[object, Degrees]
"""A pin of training or serving, as a rule."""


class OnMeshes(Degrees, Protocol):
    """Rows that each have a mesh."""

    @property
    def mesh(self) -> Ints:
        """Return the index of the mesh of each row."""


DEGREES = (*AXES, "dp")
"""Pinned fields that the degrees decide."""


def degree_pins(spec: Spec) -> list[Rule]:
    """Return the pins on degrees."""
    stages = {"layers": spec.pins.layers, "recompute_layers": spec.pins.stage_recompute}
    return [*field_pins(spec.pins, DEGREES), *stage_pins(stages)]


def impossible_stages(spec: Spec) -> list[Rule]:
    """Return the pinned numbers of stages that no split of the model's layers has.

    No skeleton keeps them. A spec that has them is refused; a plan that is asked about
    is judged.
    """
    pins, total = spec.pins, spec.model.n_layers
    layers, recomputed = pins.layers, pins.stage_recompute
    found: list[Rule] = []
    if layers is not None and sum(layers) != total:
        numbers = f"{_sum(layers)}, the model has {total}"
        found.append(_never(f"layers: {list(layers)}", numbers))
    if recomputed is None:
        return found
    least = [max(count, 1) for count in recomputed]
    held = layers if layers is not None and len(layers) == len(least) else recomputed
    pairs = zip(recomputed, held, strict=True)
    wrong = [f"{again} of a stage with {most}" for again, most in pairs if again > most]
    if sum(least) > total:
        wrong = [f"at least {_sum(least)}, the model has {total}"]
    if wrong:
        found.append(_never(f"recompute_layers: {list(recomputed)}", wrong[0]))
    return found


def _never(text: str, numbers: str) -> Rule:
    return _pin(text, lambda _spec, rows: np.zeros(len(rows.pp), dtype=bool), numbers)


def _sum(layers: Sequence[int]) -> str:
    return f"{' + '.join(map(str, layers))} = {sum(layers)}"


def plan_pins(spec: Spec) -> list[Rule]:
    """Return the pins on all other fields, and the precisions that the spec allows."""
    names, again = FIELD.keys() - set(DEGREES), spec.pins.stage_recompute
    modes = [] if again is None else [_mode_pin(again)]
    return [*field_pins(spec.pins, names), *modes, _precision_rule(spec)]


def field_pins(pins: Pins, names: Container[str]) -> list[Pin]:
    """Return the pins on some fields that have one value in a plan."""
    given = {name: pin for name, pin in pins if name in names and pin is not None}
    return [_field_pin(name, pin) for name, pin in given.items()]


def stage_pins(counts: Mapping[str, tuple[int, ...] | None]) -> list[Pin]:
    """Return the pins on the number of stages, from counts that are given per stage."""
    return [
        _stage_pin(name, len(count))
        for name, count in counts.items()
        if count is not None
    ]


def mesh_pins(pins: Pins, meshes: Meshes) -> list[RuleOf[object, OnMeshes]]:
    """Return the pins on the mesh; the column `mesh` indexes `meshes`."""
    given = {name: getattr(pins.mesh, name) for name in AXES} if pins.mesh else {}
    return [_mesh_pin(meshes, name, wanted) for name, wanted in given.items() if wanted]


def _pin(
    text: str, holds: Callable[[object, R], Bools], numbers: str
) -> RuleOf[object, R]:
    name = f"pin {text.split(':')[0]}"
    return RuleOf(name, f"pins.{text}", "the spec", holds, numbers)


def _field_pin(name: str, pin: Range | bool | tuple[str, ...]) -> Pin:
    def holds(_spec: object, rows: Degrees) -> Bools:
        return _accepted(name, pin, getattr(rows, name))

    return _pin(f"{name}: {written(pin)}", holds, f"{name} {{{name}}}")


def _accepted(name: str, pin: Range | bool | tuple[str, ...], column: Ints) -> Bools:
    """Return the values of a column that a pin accepts."""
    if isinstance(pin, bool):
        return np.asarray(column == pin)
    if isinstance(pin, tuple):
        return np.isin(column, [FIELD[name].encoded(word) for word in pin])
    inside = (column >= pin.min) & (column <= pin.max)
    listed = True if pin.values is None else np.isin(column, pin.values)
    return np.asarray(inside & listed, dtype=bool)


def _precision_rule(spec: Spec) -> Rule:
    """Return the rule that a plan's precision is among those of the spec."""
    names = spec.training.precisions
    accepted = [FIELD["precision"].encoded(name) for name in names]
    return Rule(
        "precision_chosen",
        f"training.precision: {' or '.join(names)}",
        "the spec",
        lambda _spec, rows: np.isin(rows.precision, accepted),
        "precision {precision}",
    )


def _stage_pin(name: str, stages: int) -> Pin:
    text = f"{name}: {stages} stages"
    return _pin(text, lambda _spec, rows: rows.pp == stages, "pp {pp}")


def _mode_pin(recomputed: tuple[int, ...]) -> RuleOf[object, Skeletons]:
    """Return the rule that a mode recomputes exactly where numbers above 0 are pinned.

    Every mode but none recomputes some layer.
    """
    text, has_some = f"recompute_layers: {list(recomputed)}", any(recomputed)
    return _pin(
        text,
        lambda _spec, rows: (rows.recompute != NONE) == has_some,
        "recompute {recompute}",
    )


def _mesh_pin(
    meshes: Meshes, axis: str, wanted: tuple[int, ...]
) -> RuleOf[object, OnMeshes]:
    def holds(_spec: object, rows: OnMeshes) -> Bools:
        factors = meshes[rows.mesh, AXES.index(axis)]
        # A part of a cluster may have other levels than all parts together.
        if factors.shape[1] != len(wanted):
            return np.zeros(len(factors), dtype=bool)
        return np.asarray((factors == wanted).all(axis=1))

    return _pin(f"mesh.{axis}: {list(wanted)}", holds, f"{axis} {{{axis}}}")


MEMORY = "every stage fits in the usable memory of its GPUs"
HOST_MEMORY = "what the GPUs of a host offload fits in its usable memory"
LINK_SHARE = "no link is busy for more than limits.max_link_utilisation of the step"

OF_STEP = "of the step"
"""The unit of the time in which a link is busy."""


def memory_rule(needed_gib: float, usable_gib: float, stage: int) -> BrokenRule:
    """Return the broken rule that every stage fits in the memory of a GPU."""
    where = f"stage {stage}"
    rule = BrokenRule(rule="memory", sentence=MEMORY, unit="GiB", where=where)
    return _with_numbers(rule, needed_gib, usable_gib)


def host_memory_rule(needed_gib: float, usable_gib: float, stage: int) -> BrokenRule:
    """Return the broken rule that the GPUs of the fullest stage fit on their host."""
    where = f"hosts of stage {stage}"
    rule = BrokenRule(rule="host_memory", sentence=HOST_MEMORY, unit="GiB", where=where)
    return _with_numbers(rule, needed_gib, usable_gib)


def link_share_rule(used: float, limit: float, link: str) -> BrokenRule:
    """Return the broken rule on how long a link may be busy."""
    name = "link_utilisation"
    rule = BrokenRule(rule=name, sentence=LINK_SHARE, unit=OF_STEP, where=link)
    return _with_numbers(rule, used, limit)


def _with_numbers(rule: BrokenRule, need: float, have: float) -> BrokenRule:
    return rule.model_copy(update={"need": need, "have": have})


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
    "quantised_tensor_parallel",
    "sequence_parallel_supported",
    "sequence_divisible",
    "sequence_chunks",
    "expert_sequence_parallel",
    "expert_parallel_supported",
    "expert_parallel_fixed",
    "expert_parallel_folds",
    "expert_parallel_shards",
    "expert_tensor_parallel",
    "expert_parts_supported",
    "expert_shards_state",
    "schedule_supported",
    "v_supported",
    "zero_bubble_recompute",
    "recompute_supported",
    "recompute_modules",
    "recompute_segments_supported",
    "recompute_segment",
    "recompute_segment_weights",
    "recompute_fp8",
    "interleaving_supported",
    "layers_cover_chunks",
    "leading_tried",
    "whole_patterns",
    "interleaving_rounds",
    "fsdp_tried",
    "microbatches_fill_pipeline",
    "dualpipe_v_batches",
    "zero_bubble_rounds",
    "state_supported",
    "lora_supported",
    "mtp_supported",
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
    is_free = spec.tp_levels == len(spec.cluster.fan_outs)
    inside = [] if is_free else [tp_inside_nodes(spec, meshes)]
    return [*inside, *rare_mesh_rules(spec, meshes)]


def rare_mesh_rules(spec: Spec, meshes: Meshes) -> list[Rule]:
    """Return the rules on levels that `enumerate_meshes` does not keep by itself.

    Most specs have none.
    """
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
