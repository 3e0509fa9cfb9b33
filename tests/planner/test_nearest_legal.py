"""The plan that breaks the fewest rules, against all rows that there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.cost.job import make_job
from meshwright.planner.degrees import degree_rows, enumerate_degrees
from meshwright.planner.nearest_miss import (
    _broken_counts,
    _least,
    _pinned_degrees,
    nearest_legal,
    pinned_value,
)
from meshwright.planner.unplaced import list_layouts, list_unplaced
from meshwright.plans.simplicity import techniques_of
from meshwright.rules.legality import degree_rules, plan_rules
from meshwright.spec.plan_fields import AXES, Pins, Range

SPECS: list[tuple[str, dict[str, Any]]] = [
    ("llama2-13b-8xa100", {"cp": 2, "tp": 4}),
    ("llama2-13b-8xa100", {"tp": 8, "zero": 3, "micro_batch": 1}),
    ("llama2-13b-8xa100", {"pp": 2, "zero": 3}),
    ("gpt-1.3b-2xa100-pcie", {"tp": 2, "zero": 1}),
]


def broken_by(spec: mw.Spec, told: Any) -> tuple[int, int]:
    """Return how many pins, and how many other rules, a plan breaks."""
    names = [rule.rule for rule in told.broken_rules if rule.rule != "memory"]
    pins = sum(name.startswith("pin ") for name in names)
    return pins, len(names) - pins


@pytest.mark.parametrize(("name", "pins"), SPECS)
def test_no_row_breaks_fewer_rules_than_the_nearest(
    name: str, pins: dict[str, Any]
) -> None:
    """Of degrees those that break the fewest are taken, and of their rows likewise."""
    spec = mw.load(name, mw.Spec, pins=pins)
    job, gpus = make_job(spec), spec.cluster.gpus
    degrees, _ = enumerate_degrees((gpus,))
    rows = degree_rows(degrees)
    for kind in np.unique(techniques_of(rows)).tolist():
        found = nearest_legal(job, kind)
        of_kind = rows.take(np.flatnonzero(techniques_of(rows) == kind))
        counts = _broken_counts(job, degree_rules(spec), of_kind)
        least = degrees[of_kind.mesh[counts == counts.min()]]
        every = list_unplaced(spec, list_layouts(spec, least), []).rows
        others = _broken_counts(job, plan_rules(spec), every)
        pins_broken, rules_broken = broken_by(spec, found)
        weights = len(degree_rules(spec)), len(plan_rules(spec))
        fewest = int(counts.min()) // weights[0] + int(others.min()) // weights[1]
        assert pins_broken == fewest
        rest = int(counts.min()) % weights[0] + int(others.min()) % weights[1]
        assert rules_broken == rest


@pytest.mark.parametrize(
    ("pin", "least"),
    [
        (None, 1),
        (Range(min=2), 2),
        (Range(max=4), 1),
        (Range(values=(4, 8)), 4),
    ],
)
def test_the_first_number_that_a_pin_accepts(pin: Range | None, least: int) -> None:
    assert _least(pin) == least


@pytest.mark.parametrize(
    ("pins", "degrees"),
    [
        ({"tp": 2, "pp": 3}, {"tp": 2, "pp": 3}),
        ({"dp": 6, "dp_replicate": 2}, {"dp_replicate": 2, "dp_shard": 3}),
        ({"dp": 6}, {"dp_shard": 6}),
        ({"layers": [20, 20]}, {"pp": 2}),
        ({"recompute": "full", "recompute_layers": [3, 3, 3]}, {"pp": 3}),
        ({"pp": 4, "layers": [10, 10, 10, 10]}, {"pp": 4}),
    ],
)
def test_pinned_degrees_are_those_of_the_pins_and_else_1(
    pins: dict[str, Any], degrees: dict[str, int]
) -> None:
    spec = mw.load("llama2-13b-8xa100", mw.Spec)
    spec = spec.model_copy(update={"pins": Pins.model_validate(pins)})
    row = _pinned_degrees(spec)
    found = {axis: int(getattr(row, axis)[0]) for axis in AXES}
    assert found == dict.fromkeys(AXES, 1) | degrees


def test_a_field_is_pinned_where_one_value_is_left() -> None:
    pins = {
        "tp": 2, "pp": [1, 2], "recompute": "full", "schedule": ["1f1b", "gpipe"],
        "sequence_parallel": False,
    }  # fmt: skip
    spec = mw.load("llama2-13b-8xa100", mw.Spec, pins=pins)
    told = {name: pinned_value(spec, name) for name in (*pins, "zero")}
    assert told == {
        "tp": 2, "pp": None, "recompute": 2, "schedule": None,
        "sequence_parallel": False, "zero": None,
    }  # fmt: skip
