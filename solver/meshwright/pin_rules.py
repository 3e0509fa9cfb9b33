"""Pins as rules: what the user has decided, told apart from what is impossible."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.cost.arrays import Bools, Ints
from meshwright.rule import Rule
from meshwright.skeleton import Skeletons
from meshwright.spec.gpu import PRECISIONS
from meshwright.spec.pins import AXES, OFFLOADS, RECOMPUTE_MODES, SCHEDULES, Range
from meshwright.spec.spec import Spec
from meshwright.topology.paths import Meshes


def degree_pins(spec: Spec) -> list[Rule]:
    """Return the pins on degrees."""
    pins = spec.pins
    rules = [
        _range_pin(name, getattr(pins, name))
        for name in ("tp", "pp", "dp", "dp_replicate", "dp_shard", "cp")
        if getattr(pins, name) is not None
    ]
    stages = {"layers": pins.layers, "recompute_layers": pins.stage_recompute}
    for name, counts in stages.items():
        if counts is not None:
            rules.append(_stage_pin(name, len(counts)))
    return rules


def plan_pins(spec: Spec) -> list[Rule]:
    """Return the pins on everything else but the mesh, and the precisions asked for."""
    pins = spec.pins
    rules = [
        _range_pin(name, getattr(pins, name))
        for name in ("vpp", "ep", "micro_batch", "microbatches", "zero")
        if getattr(pins, name) is not None
    ]
    if pins.sequence_parallel is not None:
        rules.append(_sequence_parallel_pin(pins.sequence_parallel))
    codes = {
        "schedule": (SCHEDULES, pins.schedule),
        "recompute": (RECOMPUTE_MODES, pins.recompute),
        "offload": (OFFLOADS, pins.offload),
    }
    for name, (known, wanted) in codes.items():
        if wanted is not None:
            rules.append(_code_pin(name, known, wanted))
    return [*rules, _precision_rule(spec)]


def mesh_pins(spec: Spec, meshes: Meshes) -> list[Rule]:
    """Return the pins on the mesh; rows point into `meshes`."""
    rules = []
    for axis, name in enumerate(AXES):
        wanted = getattr(spec.pins.mesh, name) if spec.pins.mesh else None
        if wanted is not None:
            rules.append(_mesh_pin(meshes, axis, wanted))
    return rules


def _pin(text: str, holds: Callable[[Spec, Skeletons], Bools]) -> Rule:
    return Rule(f"pin {text.split(':')[0]}", f"pins.{text}", "the spec", holds)


def _range_pin(name: str, pin: Range) -> Rule:
    return _pin(
        f"{name}: {pin}", lambda _spec, rows: accepted(pin, getattr(rows, name))
    )


def accepted(pin: Range, column: Ints) -> Bools:
    """Return which values of a column a pin accepts."""
    inside = (column >= pin.min) & (column <= pin.max)
    listed = True if pin.values is None else np.isin(column, pin.values)
    return np.asarray(inside & listed, dtype=bool)


def _code_pin(name: str, codes: tuple[str, ...], wanted: tuple[str, ...]) -> Rule:
    accepted = [codes.index(code) for code in wanted]
    shown = wanted[0] if len(wanted) == 1 else f"[{', '.join(wanted)}]"
    return _pin(
        f"{name}: {shown}", lambda _spec, rows: np.isin(getattr(rows, name), accepted)
    )


def _precision_rule(spec: Spec) -> Rule:
    """Return the rule that a plan's precision is among those of the spec."""
    names = spec.training.precisions
    accepted = [PRECISIONS.index(name) for name in names]
    return Rule(
        "precision_chosen",
        f"training.precision: {' or '.join(names)}",
        "the spec",
        lambda _spec, rows: np.isin(rows.precision, accepted),
    )


def _sequence_parallel_pin(wanted: bool) -> Rule:
    return _pin(
        f"sequence_parallel: {str(wanted).lower()}",
        lambda _spec, rows: rows.sequence_parallel == wanted,
    )


def _stage_pin(name: str, stages: int) -> Rule:
    return _pin(f"{name}: {stages} stages", lambda _spec, rows: rows.pp == stages)


def _mesh_pin(meshes: Meshes, axis: int, wanted: tuple[int, ...]) -> Rule:
    return _pin(
        f"mesh.{AXES[axis]}: {list(wanted)}",
        lambda _spec, rows: (meshes[rows.mesh, axis] == wanted).all(axis=1),
    )
