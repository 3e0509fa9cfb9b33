"""The decisions in a spec (pins, limits, capacities), and the spec without some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from meshwright.plans.plan import Plan
from meshwright.results.outcome_parts import Constraint
from meshwright.spec.cluster import Cluster
from meshwright.spec.plan_fields import Pins, written, written_mesh
from meshwright.spec.serving import FixedSpec, ServingSpec
from meshwright.spec.spec import Spec
from meshwright.spec.topology import ScaleOut, Topology
from meshwright.spec.user_rules import UserRule

AnySpec = TypeVar("AnySpec", Spec, ServingSpec)

ENDLESS_GIB = 100_000.0
"""More memory than any plan needs: a capacity that is dropped is set to this."""

MEMORY = "memory"

HOST_MEMORY = "host_memory"

TP_LINK = "limits.tp_min_link_gb_s"

LINK_SHARE = "limits.max_link_utilisation"

LIMITS = (LINK_SHARE, TP_LINK)

FASTER = 1 - 1e-9
"""A plan counts as faster below this share of a step time: less is rounding."""

NOTICED = 1 - 5e-4
"""A change of a plan is worth a word below this share of its step: less is 0.0%."""

USER_RULE = "rules."
"""How names of the user's rules start among those of all decisions."""


def decisions_in(spec: Spec) -> list[Constraint]:
    """Return the pins, rules, limits and capacities of a spec, in that order."""
    chosen = (*pin_decisions(spec.pins), *_user_rules(spec))
    return [*chosen, *_limits(spec), *_capacities(spec)]


def without_decisions(spec: AnySpec, rules: Iterable[str]) -> AnySpec:
    """Return the spec with the decisions of these names left open."""
    pins: dict[str, str | None] = {}
    limits: dict[str, float | None] = {}
    given_up: set[str] = set()
    for rule in rules:
        section, _, name = rule.partition(".")
        if rule == MEMORY:
            limits["memory_gib"] = ENDLESS_GIB
        elif rule == HOST_MEMORY:
            spec = _with_endless_hosts(spec)
        elif section == "rules":
            given_up.add(name)
        elif section == "pins":
            # None would mean all layers where recompute is pinned to one mode.
            pins[name] = "any" if name == "recompute_layers" else None
        else:
            limits[name] = None
    spec = _without_rules(spec, given_up)
    return spec.model_copy(
        update={
            "pins": spec.pins.model_copy(update=pins),
            "limits": spec.limits.model_copy(update=limits),
        }
    )


def edit_to_plan(spec: Spec, rule: str, plan: Plan) -> str:
    """Return the edit that sets a pin to the plan's value, or drops a limit.

    The text after the arrow is the new value in YAML.
    """
    if rule.startswith(USER_RULE):
        return f"{rule}: {user_rule(spec, rule).that} -> null"
    if not rule.startswith("pins."):
        return f"{rule}: {getattr(spec.limits, rule.partition('.')[2]):g} -> null"
    name = rule.removeprefix("pins.")
    old = written(getattr(spec.pins, name))
    return f"{name}: {old} -> {plan_value(plan, name)}{_any_layers(spec, name, plan)}"


def keeps_stages(spec: Spec, rule: str, plan: Plan) -> bool:
    """Return whether a plan has the layers of stages that a pin gives.

    Sets of decisions to give up have such pins since only a solve can check them.
    """
    pins = spec.pins
    if rule == "pins.layers":
        return pins.layers == tuple(stage.layers for stage in plan.stages)
    if rule == "pins.recompute_layers":
        recomputed = tuple(stage.recompute_layers for stage in plan.stages)
        return pins.stage_recompute == recomputed
    return False


def with_topology(spec: AnySpec, topology: Topology) -> AnySpec:
    """Return the spec on as many copies of another topology.

    Raises:
        ValidationError: those copies do not form a valid cluster.
    """
    return _on_cluster(spec, topology, spec.cluster.count)


def with_count(spec: AnySpec, count: int) -> AnySpec:
    """Return the spec on another number of copies of its topology.

    Raises:
        ValidationError: those copies do not form a valid cluster.
    """
    return _on_cluster(spec, spec.cluster.topology, count)


def _on_cluster(spec: AnySpec, topology: Topology, count: int) -> AnySpec:
    overrides = spec.cluster.overrides
    cluster = Cluster(topology=topology, count=count, overrides=overrides)
    return spec.model_copy(update={"cluster": cluster})


def with_scale_out(spec: Spec, scale_out: ScaleOut, count: int) -> Spec:
    """Return the spec on copies of its topology that a level joins.

    Raises:
        ValidationError: those copies do not form a valid cluster.
    """
    joined = spec.cluster.topology.model_copy(update={"scale_out": scale_out})
    return _on_cluster(spec, joined, count)


def with_memory(spec: AnySpec, gib: float) -> AnySpec:
    """Return the spec with `gib` as the memory that a plan may use on each GPU."""
    return spec.having("limits", memory_gib=gib)


def with_pins(spec: AnySpec, pins: Pins) -> AnySpec:
    """Return the spec with more pins, which replace its pins of the same fields."""
    given = {name: value for name, value in pins if value is not None}
    return spec.having("pins", **given)


def pin_decisions(pins: Pins) -> Iterator[Constraint]:
    """Yield the pins that decide something; 'recompute_layers: any' does not."""
    for name, value in pins:
        if value is not None and value != "any":
            sentence = f"{name} is {written(value)}"
            yield Constraint(rule=f"pins.{name}", sentence=sentence)


def _user_rules(spec: Spec) -> Iterator[Constraint]:
    for rule in spec.rules:
        yield Constraint(rule=f"{USER_RULE}{rule.name}", sentence=rule.sentence)


def user_rule(spec: Spec, decision: str) -> UserRule:
    """Return the user's rule behind a decision."""
    name = decision.removeprefix(USER_RULE)
    return next(rule for rule in spec.rules if rule.name == name)


def _without_rules(spec: AnySpec, names: set[str]) -> AnySpec:
    if not isinstance(spec, Spec):
        return spec
    kept = tuple(rule for rule in spec.rules if rule.name not in names)
    return spec.model_copy(update={"rules": kept})


def _limits(spec: Spec) -> Iterator[Constraint]:
    for rule in LIMITS:
        name = rule.removeprefix("limits.")
        value = getattr(spec.limits, name)
        if value is not None:
            yield Constraint(rule=rule, sentence=f"{name} is {value:g}")


def _capacities(spec: Spec) -> Iterator[Constraint]:
    yield memory_decision(spec)
    if spec.cluster.topology.host is not None:
        sentence = f"a plan may offload {spec.usable_host_gib:.0f} GiB to each host"
        yield Constraint(rule=HOST_MEMORY, sentence=sentence)


def memory_decision(spec: FixedSpec) -> Constraint:
    """Return the limit on the memory that a plan may use on each GPU."""
    limits = spec.limits
    sentence = f"a plan may use {spec.usable_gib:.2f} GiB of each GPU"
    if limits.is_by_risk:
        sentence += f" at an oom_risk of {limits.risk:g}"
    return Constraint(rule=MEMORY, sentence=sentence)


def _with_endless_hosts(spec: AnySpec) -> AnySpec:
    topology, host = spec.cluster.topology, spec.cluster.topology.host
    assert host is not None
    nvme_gib = None if host.nvme_gib is None else ENDLESS_GIB
    capacity = {"memory_gib": ENDLESS_GIB, "nvme_gib": nvme_gib}
    endless = {"host": host.model_copy(update=capacity)}
    return with_topology(spec, topology.model_copy(update=endless))


def plan_value(plan: Plan, name: str) -> str:
    """Return the plan's value of a pinnable field, in YAML."""
    if name == "layers":
        return str([stage.layers for stage in plan.stages])
    if name == "recompute_layers":
        return str([stage.recompute_layers for stage in plan.stages])
    if name == "mesh":
        return written_mesh(plan.mesh)
    value = getattr(plan, name)
    return str(value).lower() if isinstance(value, bool) else str(value) or "''"


def _any_layers(spec: Spec, name: str, plan: Plan) -> str:
    """Return the second pin that a recompute mode needs if not all layers use it."""
    is_free = name == "recompute" and spec.pins.recompute_layers is None
    is_part = is_free and plan.recomputes_some_layers
    return ", recompute_layers: any" if is_part else ""
