"""What is fixed in a spec, and the spec with some of it left open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshwright.explanations.other_clusters import Q, with_topology
from meshwright.plans.plan import Plan
from meshwright.results.explanation import Fixed
from meshwright.spec.pins import MeshPin, Pins
from meshwright.spec.serving import Question
from meshwright.spec.spec import Spec

ENDLESS_GIB = 100_000.0
"""More than any plan holds."""

MEMORY = "memory"
HOST_MEMORY = "host_memory"
TP_LINK = "limits.tp_min_link_gb_s"
LINK_SHARE = "limits.max_link_utilisation"

_LIMITS = (LINK_SHARE, TP_LINK)


def fixed_in(spec: Spec) -> list[Fixed]:
    """Return the pins, limits and capacities of a spec."""
    return [*pins_in(spec.pins), *_limits(spec), *_capacities(spec)]


def pins_in(pins: Pins) -> Iterator[Fixed]:
    """Yield the pins of a spec; 'recompute_layers: any' decides nothing."""
    for name, value in pins:
        if value is not None and value != "any":
            yield Fixed(rule=f"pins.{name}", sentence=f"{name} is {_shown(value)}")


def _limits(spec: Spec) -> Iterator[Fixed]:
    for rule in _LIMITS:
        name = rule.removeprefix("limits.")
        value = getattr(spec.limits, name)
        if value is not None:
            yield Fixed(rule=rule, sentence=f"{name} is {value:g}")


def _capacities(spec: Spec) -> Iterator[Fixed]:
    yield memory_in(spec)
    if spec.cluster.topology.host is not None:
        sentence = f"a plan may offload {spec.usable_host_gib:.0f} GiB to each host"
        yield Fixed(rule=HOST_MEMORY, sentence=sentence)


def memory_in(spec: Question) -> Fixed:
    """Return what of each GPU's memory a spec lets a plan use."""
    sentence = f"a plan may use {spec.usable_gib:.2f} GiB of each GPU"
    return Fixed(rule=MEMORY, sentence=sentence)


def without(spec: Q, rules: Iterable[str]) -> Q:
    """Return a spec with some of what is fixed left open."""
    pins: dict[str, str | None] = {}
    limits: dict[str, float | None] = {}
    for rule in rules:
        section, _, name = rule.partition(".")
        if rule == MEMORY:
            limits["memory_gib"] = ENDLESS_GIB
        elif rule == HOST_MEMORY:
            spec = _with_endless_hosts(spec)
        elif section == "pins":
            # Left out, it would stand for all where recompute is pinned to one mode.
            pins[name] = "any" if name == "recompute_layers" else None
        else:
            limits[name] = None
    return spec.model_copy(
        update={
            "pins": spec.pins.model_copy(update=pins),
            "limits": spec.limits.model_copy(update=limits),
        }
    )


def _with_endless_hosts(spec: Q) -> Q:
    topology, host = spec.cluster.topology, spec.cluster.topology.host
    assert host is not None
    drives = None if host.nvme_gib is None else ENDLESS_GIB
    room = {"memory_gib": ENDLESS_GIB, "nvme_gib": drives}
    endless = {"host": host.model_copy(update=room)}
    return with_topology(spec, topology.model_copy(update=endless))


def chosen(spec: Spec, rule: str, plan: Plan) -> str:
    """Return the edit that takes a spec's pin to what a plan has, or drops a limit.

    What comes after the arrow is what a spec would have there, in YAML.
    """
    if not rule.startswith("pins."):
        return f"{rule}: {getattr(spec.limits, rule.partition('.')[2]):g} -> null"
    name = rule.removeprefix("pins.")
    old = _shown(getattr(spec.pins, name))
    return f"{name}: {old} -> {_of_plan(plan, name)}{_unless_all(spec, name, plan)}"


def _of_plan(plan: Plan, name: str) -> str:
    if name == "dp":
        return str(plan.dp_replicate * plan.dp_shard)
    if name == "layers":
        return str([stage.layers for stage in plan.stages])
    if name == "recompute_layers":
        return str([stage.recompute_layers for stage in plan.stages])
    if name == "mesh":
        return str({axis: list(own) for axis, own in plan.mesh.items()})
    value = getattr(plan, name)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unless_all(spec: Spec, name: str, plan: Plan) -> str:
    """Return the word that a recompute mode needs beside it where it is not for all."""
    is_free = name == "recompute" and spec.pins.recompute_layers is None
    is_part = is_free and plan.recompute != "none" and not plan.recomputes_all_layers
    return ", recompute_layers: any" if is_part else ""


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        shown: Sequence[str] = [str(own) for own in value]
        return shown[0] if len(shown) == 1 else "[" + ", ".join(shown) + "]"
    if isinstance(value, MeshPin):
        return str({k: list(own) for k, own in value if own is not None})
    return str(value).lower() if isinstance(value, bool) else str(value)


def with_plan(spec: Q, plan: Pins) -> Q:
    """Return a spec with the fields of a plan pinned too."""
    given = {name: value for name, value in plan if value is not None}
    return spec.model_copy(update={"pins": spec.pins.model_copy(update=given)})


def with_memory(spec: Q, gib: float) -> Q:
    """Return a spec that lets a plan use so much of each GPU's memory."""
    limits = spec.limits.model_copy(update={"memory_gib": gib})
    return spec.model_copy(update={"limits": limits})
