"""Pins as rules: what the user has decided, told apart from what is impossible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import numpy as np

from meshwright.plans.columns import Bools, Ints
from meshwright.plans.rule import Degrees, R, Rule, RuleOf
from meshwright.spec.gpu import PRECISIONS
from meshwright.spec.pins import AXES, OFFLOADS, RECOMPUTE_MODES, SCHEDULES, Pins, Range
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import Meshes

Pin = RuleOf[object, Degrees]
"""A rule of whatever is pinned."""


class Placed(Degrees, Protocol):
    """Rows that lie on meshes."""

    @property
    def mesh(self) -> Ints:
        """Return the row of each one's mesh in its table."""


def degree_pins(spec: Spec) -> list[Rule]:
    """Return the pins on degrees."""
    pins = spec.pins
    names = ("tp", "pp", "dp", "dp_replicate", "dp_shard", "cp")
    stages = {"layers": pins.layers, "recompute_layers": pins.stage_recompute}
    return [*range_pins(pins, names), *stage_pins(stages)]


def plan_pins(spec: Spec) -> list[Rule]:
    """Return the pins on everything else but the mesh, and the precisions asked for."""
    pins = spec.pins
    names = ("vpp", "ep", "micro_batch", "microbatches", "zero")
    rules: list[Rule] = [*range_pins(pins, names)]
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


def range_pins(pins: Pins, names: Iterable[str]) -> list[Pin]:
    """Return the pins, of some, that say which numbers a column may have."""
    given = {name: getattr(pins, name) for name in names}
    return [_range_pin(name, pin) for name, pin in given.items() if pin is not None]


def stage_pins(counts: Mapping[str, tuple[int, ...] | None]) -> list[Pin]:
    """Return the pins that say how many of something each stage has."""
    return [
        _stage_pin(name, len(own)) for name, own in counts.items() if own is not None
    ]


def mesh_pins(pins: Pins, meshes: Meshes) -> list[RuleOf[object, Placed]]:
    """Return the pins on the mesh; rows point into `meshes`."""
    given = {name: getattr(pins.mesh, name) for name in AXES} if pins.mesh else {}
    return [_mesh_pin(meshes, name, wanted) for name, wanted in given.items() if wanted]


def _pin(text: str, holds: Callable[[object, R], Bools]) -> RuleOf[object, R]:
    return RuleOf(f"pin {text.split(':')[0]}", f"pins.{text}", "the spec", holds)


def _range_pin(name: str, pin: Range) -> Pin:
    return _pin(
        f"{name}: {pin}", lambda _spec, rows: _accepted(pin, getattr(rows, name))
    )


def _accepted(pin: Range, column: Ints) -> Bools:
    """Return which values of a column a pin accepts."""
    inside = (column >= pin.min) & (column <= pin.max)
    listed = True if pin.values is None else np.isin(column, pin.values)
    return np.asarray(inside & listed, dtype=bool)


def _code_pin(name: str, codes: tuple[str, ...], wanted: tuple[str, ...]) -> Pin:
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


def _stage_pin(name: str, stages: int) -> Pin:
    return _pin(f"{name}: {stages} stages", lambda _spec, rows: rows.pp == stages)


def _mesh_pin(
    meshes: Meshes, axis: str, wanted: tuple[int, ...]
) -> RuleOf[object, Placed]:
    def holds(_spec: object, rows: Placed) -> Bools:
        own = meshes[rows.mesh, AXES.index(axis)]
        # Some parts of a cluster may have other levels than all of them together.
        if own.shape[1] != len(wanted):
            return np.zeros(len(own), dtype=bool)
        return np.asarray((own == wanted).all(axis=1))

    return _pin(f"mesh.{axis}: {list(wanted)}", holds)
