"""What is fixed in a spec, and the spec with some of it left open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwright.explain.data import Fixed
from meshwright.plan import Plan
from meshwright.spec.pins import Pins
from meshwright.spec.spec import Spec

ENDLESS_GIB = 100_000.0
"""More than any plan holds."""

MEMORY = "memory"

_LIMITS = ("max_link_utilisation", "tp_min_link_gb_s")


def fixed_in(spec: Spec) -> list[Fixed]:
    """Return the pins, limits and capacities of a spec."""
    found = [
        Fixed(rule=f"pins.{name}", sentence=f"{name} is {_shown(value)}")
        for name, value in spec.pins
        if value is not None
    ]
    found += [
        Fixed(rule=f"limits.{name}", sentence=f"{name} is {getattr(spec.limits, name)}")
        for name in _LIMITS
        if getattr(spec.limits, name) is not None
    ]
    sentence = f"a plan may use {spec.usable_gib:.2f} GiB of each GPU"
    return [*found, Fixed(rule=MEMORY, sentence=sentence)]


def without(spec: Spec, rules: Iterable[str]) -> Spec:
    """Return a spec with some of what is fixed left open."""
    pins: dict[str, None] = {}
    limits: dict[str, float | None] = {}
    for rule in rules:
        section, _, name = rule.partition(".")
        if rule == MEMORY:
            limits["memory_gib"] = ENDLESS_GIB
        elif section == "pins":
            pins[name] = None
        else:
            limits[name] = None
    return spec.model_copy(
        update={
            "pins": spec.pins.model_copy(update=pins),
            "limits": spec.limits.model_copy(update=limits),
        }
    )


def chosen(spec: Spec, rule: str, plan: Plan) -> str:
    """Return the edit that takes a spec's pin to what a plan has."""
    name = rule.removeprefix("pins.")
    old = _shown(getattr(spec.pins, name))
    return f"{name}: {old} -> {_of_plan(plan, name)}"


def _of_plan(plan: Plan, name: str) -> str:
    if name == "dp":
        return str(plan.dp_replicate * plan.dp_shard)
    if name == "layers":
        return ",".join(str(stage.layers) for stage in plan.stages)
    if name == "recompute_layers":
        return ",".join(str(stage.recompute_layers) for stage in plan.stages)
    value = getattr(plan, name)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        shown: Sequence[str] = [str(own) for own in value]
        return shown[0] if len(shown) == 1 else "[" + ", ".join(shown) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def with_plan(spec: Spec, plan: Pins) -> Spec:
    """Return a spec with the fields of a plan pinned too."""
    given = {name: value for name, value in plan if value is not None}
    return spec.model_copy(update={"pins": spec.pins.model_copy(update=given)})
