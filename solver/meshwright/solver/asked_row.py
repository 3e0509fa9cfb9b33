"""The plan that pins ask for, where no row of the lattice is one.

Fields that are pinned to one value have it. The others follow from them, or are at
their plainest, so that all numbers of a rule that breaks are numbers of the user.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.lattice.degrees import degree_rows, enumerate_degrees
from meshwright.plans.columns import Ints
from meshwright.plans.rule import Rule, holding
from meshwright.plans.skeletons import Skeletons
from meshwright.rules.legality import framework_degree_rules, framework_rules
from meshwright.rules.pins import degree_pins
from meshwright.rules.sums import WORLD_DIVISIBLE, WORLD_SIZE, row_rules
from meshwright.spec.pins import Range, written
from meshwright.spec.plan_fields import AXES, FIELD, FIELDS
from meshwright.spec.spec import Spec

NEEDED = 1_000
"""Weight of a rule on sums against a rule of the framework."""


def asked_row(spec: Spec, gpus: int) -> Skeletons | None:
    """Return the plan that the pins ask for if its numbers do not add up.

    It is None where some row keeps all pins and every rule on sums. Of several plans it
    is the one that breaks the fewest rules, then the one with the fewest stages and
    copies.
    """
    rows = asked_rows(spec, gpus)
    wrong = broken_counts(spec, sum_rules(spec), rows)
    if not wrong.min():
        return None
    legal = [*framework_degree_rules(spec), *framework_rules(spec)]
    counts = NEEDED * wrong + broken_counts(spec, legal, rows)
    best = np.lexsort((rows.dp, rows.pp, counts))[:1]
    return rows.take(best)


def asked_rows(spec: Spec, gpus: int) -> Skeletons:
    """Return the plans with the pinned values, one for each way to complete degrees.

    Where none completes the pinned degrees, the only row has no more than those.
    """
    degrees, _ = enumerate_degrees((gpus,))
    degrees = degrees[holding(degree_pins(spec), spec, degree_rows(degrees))]
    rows = degree_rows(degrees) if len(degrees) else _pinned_degrees(spec)
    plain = _with_pinned(spec, rows)
    if spec.pins.sequence_parallel is not None:
        return plain
    split = replace(plain, sequence_parallel=rows.tp > 1)
    return Skeletons.joined([plain, split])


def sum_rules(spec: Spec) -> list[Rule]:
    """Return the rules on sums; that on GPUs lets free axes multiply the others."""
    world, *others = row_rules(spec)
    dp = ("dp",) if spec.pins.dp else ("dp_shard", "dp_replicate")
    is_free = any(getattr(spec.pins, axis) is None for axis in ("tp", "cp", "pp", *dp))
    return [WORLD_DIVISIBLE if is_free else world, *others]


def broken_sums(spec: Spec, row: Skeletons) -> list[Rule]:
    """Return the rules on sums that a row breaks.

    Where the degrees do not make up the GPUs, nothing else of the plan is known.
    """
    wrong = [rule for rule in sum_rules(spec) if not rule.holds(spec, row)[0]]
    world = [rule for rule in wrong if rule.name == WORLD_SIZE.name]
    if world and int(_gpus(row)[0]) > spec.cluster.gpus:
        return [WORLD_SIZE]
    return world or wrong


def broken_counts(spec: Spec, rules: list[Rule], rows: Skeletons) -> Ints:
    """Return how many of the rules each row breaks."""
    counts = np.zeros(len(rows), dtype=np.int64)
    for rule in rules:
        counts += ~np.asarray(rule.holds(spec, rows), dtype=bool)
    return counts


def pinned_value(spec: Spec, name: str) -> int | None:
    """Return the code of the one value that a field is pinned to, if it is."""
    pin: Any = getattr(spec.pins, name)
    if isinstance(pin, bool) or pin is None:
        return pin
    if isinstance(pin, tuple):
        return FIELD[name].encoded(pin[0]) if len(pin) == 1 else None
    single: int | None = pin.single
    return single


def _pinned_degrees(spec: Spec) -> Skeletons:
    """Return the pinned degrees as one row; axes that are free have size 1."""
    sizes = {axis: _least(getattr(spec.pins, axis)) for axis in AXES}
    stages = spec.pins.layers or spec.pins.stage_recompute
    if spec.pins.pp is None and stages is not None:
        sizes["pp"] = len(stages)
    dp, known = _least(spec.pins.dp), sizes["dp_replicate"] * sizes["dp_shard"]
    if dp % known == 0:
        sizes["dp_shard"] *= dp // known
    return degree_rows(np.array([list(sizes.values())], dtype=np.int64))


def _least(pin: Range | None) -> int:
    """Return the first number that a pin on a degree accepts; 1 without a pin."""
    if pin is None:
        return 1
    return max(pin.values[0] if pin.values else pin.min, 1)


def _with_pinned(spec: Spec, rows: Skeletons) -> Skeletons:
    """Return rows of degrees with all other fields as pinned, or as they follow."""
    count = len(rows)
    columns: dict[str, Any] = {}
    for field in FIELDS:
        value = pinned_value(spec, field.name)
        if value is not None and field.name not in AXES:
            columns[field.name] = np.full(count, value, field.dtype)
    per_rank = np.maximum(spec.training.global_batch // rows.dp, 1)
    if "micro_batch" not in columns:
        asked = columns.get("microbatches", per_rank)
        is_whole = per_rank % np.maximum(asked, 1) == 0
        columns["micro_batch"] = np.where(is_whole, per_rank // np.maximum(asked, 1), 1)
    if "microbatches" not in columns:
        columns["microbatches"] = np.maximum(per_rank // columns["micro_batch"], 1)
    if "zero" not in columns:
        columns["zero"] = (rows.dp_shard > 1).astype(np.int64)
    columns.setdefault("precision", np.full(count, _first_precision(spec)))
    return replace(rows, **columns)


def _gpus(rows: Skeletons) -> Ints:
    return rows.tp * rows.pp * rows.cp * rows.dp


def _first_precision(spec: Spec) -> int:
    return FIELD["precision"].encoded(spec.training.precisions[0])


def row_value(row: Skeletons, name: str) -> int | str:
    """Return the value of a field of the first row."""
    code = int(getattr(row, name)[0])
    return FIELD[name].decoded(code) if name in FIELD else code


def described(spec: Spec) -> str:
    """Return the pinned fields of a spec, as `--plan` reads them."""
    given = {name: pin for name, pin in spec.pins if pin is not None}
    return ",".join(f"{name}={written(pin)}" for name, pin in given.items())
