"""The plan that is judged: which fields are given, which follow, which are chosen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from meshwright.explanations.decisions import plan_value
from meshwright.plans.plan import Plan
from meshwright.results.explanation import JudgedField, Origin
from meshwright.results.outcome import NearMiss
from meshwright.rules.sums import WORLD_SIZE
from meshwright.search.nearest_miss import asked_row, broken_sums, row_value
from meshwright.spec.pins import Pins, Range, written, written_mesh
from meshwright.spec.plan_fields import FIELD, FIELDS, PlanField
from meshwright.spec.spec import Spec

PER_STAGE = ("layers", "recompute_layers", "mesh")
"""Fields of a plan that have a value for each stage or level."""


DEGREES = {"tp", "cp", "pp", "dp"}
"""The degrees that multiply to the number of GPUs."""


def judged_plan(spec: Spec, plan: Plan) -> tuple[JudgedField, ...]:
    """Return all fields of a plan that was found for the pins of a spec."""
    names = [field.name for field in FIELDS]
    values = {name: getattr(plan, name) for name in names} | {"dp": plan.dp}
    whole = {"layers": plan.pp == 1, "mesh": len(spec.cluster.fan_outs) == 1}
    whole["recompute_layers"] = plan.recompute == "none" or (
        spec.pins.recomputes_all_layers
    )
    follows = _following(spec, values) | {name for name in PER_STAGE if whole[name]}
    has_dp = ("dp",) if spec.pins.dp else ()
    per_stage = PER_STAGE if plan.world_size > 1 else PER_STAGE[:2]
    details = {field.name for field in FIELDS if _is_idle_detail(field, values)}
    shown = [*has_dp, *(name for name in names if name not in details), *per_stage]
    return tuple(
        JudgedField(
            name=name,
            value=_used_mesh(plan) if name == "mesh" else plan_value(plan, name),
            origin=_origin(spec, name, follows, plan),
        )
        for name in shown
    )


def _is_idle_detail(field: PlanField, values: dict[str, Any]) -> bool:
    """Return whether a field details a choice that the plan did not make."""
    is_idle = field.beside_word and not field.is_open(values[field.beside])
    return bool(is_idle) and values[field.name] == field.plain


def _used_mesh(plan: Plan) -> str:
    """Return the factors of the axes above 1; the others have 1 at every level."""
    return written_mesh({a: by for a, by in plan.mesh.items() if math.prod(by) > 1})


def judged_miss(spec: Spec, miss: NearMiss | None) -> tuple[JudgedField, ...]:
    """Return the plan that comes closest, or what is known of the one asked for."""
    if miss is None:
        return ()
    if miss.plan is not None:
        return judged_plan(spec, miss.plan)
    return asked_plan(spec) if miss.is_asked else ()


def asked_plan(spec: Spec) -> tuple[JudgedField, ...]:
    """Return what is known of a plan whose numbers do not add up."""
    given = [
        JudgedField(name=name, value=_written(name, pin), origin="given")
        for name, pin in spec.pins
        if pin is not None
    ]
    row = asked_row(spec, spec.cluster.gpus)
    if row is None or broken_sums(spec, row)[0].name == WORLD_SIZE.name:
        return tuple(given)
    values = {name: row_value(row, name) for name in (*FIELD, "dp")}
    if _open_degrees(spec, values):
        return tuple(given)
    known = {field.name for field in given}
    followed = [name for name in FIELD if name in _following(spec, values) - known]
    return (
        *given,
        *(
            JudgedField(name=name, value=written(values[name]), origin="follows")
            for name in followed
        ),
    )


def _origin(spec: Spec, name: str, follows: set[str], plan: Plan) -> Origin:
    if is_given(spec, name):
        return "given" if _is_as_given(spec.pins, name, plan) else "chosen"
    return "follows" if name in follows else "chosen"


def _is_as_given(pins: Pins, name: str, plan: Plan) -> bool:
    """Return whether a plan has the one value of a field that pins allow.

    The plan that comes closest to pins which no plan keeps may not.
    """
    pin: Any = getattr(pins, name)
    if isinstance(pin, Range | bool):
        wanted = pin.single if isinstance(pin, Range) else pin
        return bool(getattr(plan, name) == wanted)
    if name != "mesh" and isinstance(pin, tuple):
        return plan_value(plan, name) == (_written(name, pin) or "''")
    return True


def _written(name: str, pin: object) -> str:
    """Return the value of a pin; that of stages is a list also where there is one."""
    if name in PER_STAGE and isinstance(pin, tuple):
        return str(list(pin))
    return written(pin)


def is_given(spec: Spec, name: str) -> bool:
    """Return whether a spec decides the one value of a plan field."""
    if name == "precision":
        return len(spec.training.precisions) == 1 or _is_single(spec.pins, name)
    return _is_single(spec.pins, name)


def _is_single(pins: Pins, name: str) -> bool:
    pin: Any = getattr(pins, name)
    if isinstance(pin, Range):
        return pin.single is not None
    if name in FIELD and isinstance(pin, tuple):
        return len(pin) == 1
    return pin is not None and pin != "any"


def _following(spec: Spec, values: dict[str, Any]) -> set[str]:
    """Return the fields that have one value left, from what the user gave.

    `dp_shard` and `microbatches` follow from the other degrees and from the batch.
    """
    return (
        {"dp_shard", *_last_degrees(spec, values), *_last_of_batch(spec)}
        | {
            field.name
            for field in FIELDS
            if field.beside not in ("", field.name) and values[field.beside] == 1
        }
        | set(_without_choice(spec, values))
    )


def _last_degrees(spec: Spec, values: dict[str, Any]) -> Iterator[str]:
    """Yield the degrees that the number of GPUs and the given degrees leave."""
    left = DEGREES - _given_degrees(spec)
    if _open_degrees(spec, values):
        return
    yield from left
    if "dp" in left or values["dp"] == 1 or is_given(spec, "dp_shard"):
        yield "dp_replicate"


def _open_degrees(spec: Spec, values: dict[str, Any]) -> bool:
    """Return whether the given degrees leave more than one way to use all GPUs."""
    given = _given_degrees(spec)
    product = math.prod(int(values[name]) for name in given)
    return len(DEGREES - given) > 1 and product != spec.cluster.gpus


def _given_degrees(spec: Spec) -> set[str]:
    parts = ("dp_shard", "dp_replicate")
    has_dp = is_given(spec, "dp") or all(is_given(spec, name) for name in parts)
    given = {name for name in ("tp", "cp", "pp") if is_given(spec, name)}
    return given | ({"dp"} if has_dp else set())


def _last_of_batch(spec: Spec) -> Iterable[str]:
    """Return the field that the batch leaves: micro-batches, or their size."""
    is_size = is_given(spec, "microbatches") and not is_given(spec, "micro_batch")
    return ("micro_batch",) if is_size else ("microbatches",)


def _without_choice(spec: Spec, values: dict[str, Any]) -> Iterator[str]:
    """Yield the fields that model and cluster leave no choice."""
    if spec.model.moe is None:
        yield "ep"
    if values["dp_shard"] * values["cp"] == 1:
        yield "zero"
    if spec.cluster.topology.host is None:
        yield "offload"
