"""Decisions of the user, as rules: pins, and limits on memory and links.

As rules, explanations can tell them from what is impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from operator import gt
from typing import Protocol

import numpy as np

from meshwright.plans.columns import Bools, Ints
from meshwright.plans.rule import BrokenRule, Degrees, R, Rule, RuleOf
from meshwright.spec.plan_fields import AXES, FIELD, Pins, Range, written
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import Meshes

Pin = RuleOf[object, Degrees]
"""A pin of training or serving, as a rule."""


class OnMeshes(Degrees, Protocol):
    """Rows of which each has a mesh."""

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
        found.append(_never(f"layers: {list(layers)}", _sum(layers), total))
    if recomputed is None:
        return found
    least = [max(count, 1) for count in recomputed]
    most = least if layers is None or len(layers) != len(least) else layers
    if sum(least) > total or any(map(gt, least, most)):
        text = f"recompute_layers: {list(recomputed)}"
        found.append(_never(text, f"at least {_sum(least)}", total))
    return found


def _never(text: str, sum_of_layers: str, total: int) -> Rule:
    numbers = f"{sum_of_layers}, the model has {total}"
    return _pin(text, lambda _spec, rows: np.zeros(len(rows.pp), dtype=bool), numbers)


def _sum(layers: Sequence[int]) -> str:
    return f"{' + '.join(map(str, layers))} = {sum(layers)}"


def plan_pins(spec: Spec) -> list[Rule]:
    """Return the pins on all other fields, and the precisions that the spec allows."""
    names = FIELD.keys() - set(DEGREES)
    return [*field_pins(spec.pins, names), _precision_rule(spec)]


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
    name, unit = "link_utilisation", "of the step"
    rule = BrokenRule(rule=name, sentence=LINK_SHARE, unit=unit, where=link)
    return _with_numbers(rule, used, limit)


def _with_numbers(rule: BrokenRule, need: float, have: float) -> BrokenRule:
    return rule.model_copy(update={"need": need, "have": have})
