"""The model of decisions in words: its values, quantities and constraints."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.planner.model import (
    ANY_SPLIT,
    CONSTRAINTS,
    ENDLESS_TICKS,
    Demand,
    PlanModel,
    Table,
)
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.planner.table import _busy_ticks, shown_model, whole_ticks

MIB = 1024

TABLE = Table(
    decisions={
        "tp": np.array([1, 2, 4, 4]),
        "recompute": np.array([0, 1, 0, 1]),
        "chunks": np.array([7, 5, 7, 5]),
    },
    least_ticks={
        ANY_SPLIT: np.array([10, 12, 11, 30]),
        Demand(True): np.array([10, 12, ENDLESS_TICKS, 30]),
    },
    most_ticks=np.array([20, 20, 20, 40]),
    memory={
        "first": MIB * np.array([9, 8, 7, 3]),
        "last": MIB * np.array([1, 2, 3, 4]),
    },
    capacity={"first": MIB * np.array([8, 8, 8, 8]), "last": MIB * np.array([3] * 4)},
    busy_ticks={"nic": np.array([9, 11, 6, 20])},
    link_share=0.5,
    may_keep={"rules.a": np.array([True, True, False, True])},
    pinned={"tp": np.array([2, 4])},
    criteria={"techniques": np.array([0, 1, 2, 1])},
)


def test_a_model_is_shown_with_what_each_constraint_alone_leaves_out() -> None:
    shown = shown_model(PlanModel(TABLE), ("techniques",))
    assert (shown.rows, shown.cuts) == (4, 0)
    values = {one.name: one.values for one in shown.decisions}
    assert values == {
        "tp": (1, 2, 4), "recompute": ("none", "selective"), "chunks": (5, 7)
    }  # fmt: skip
    told = {one.name: (one.least, one.most, one.unit) for one in shown.quantities}
    assert told == {
        "step_s, at least": (pytest.approx(1e-8), pytest.approx(3e-8), "s"),
        "memory_gib[first]": (3 / MIB, 9 / MIB, "GiB"),
        "memory_gib[last]": (1 / MIB, 4 / MIB, "GiB"),
        "busy_s[nic]": (pytest.approx(6e-9), pytest.approx(2e-8), "s"),
        "techniques": (0, 2, ""),
    }
    assert [one.name for one in shown.constraints] == [
        constraint.__name__ for constraint in CONSTRAINTS
    ]
    left_out = {one.name: one.leaves_out for one in shown.constraints}
    # The first row takes 9 of 8 MiB, and the last one 4 of 3. Links may be busy for
    # half of 20 and 40 ticks.
    assert {name: n for name, n in left_out.items() if n is not None} == {
        "fit_memory": 2, "hold_links": 1, "hold_pins": 1, "keep_rules": 1
    }  # fmt: skip
    for one in shown.constraints:
        assert one.sentence
        assert not one.sentence.startswith(("Ensure that", " "))
        assert "\n" not in one.equation


@pytest.mark.parametrize(
    ("percents", "criteria", "told"),
    [
        (None, (), ("step_s",)),
        (None, ("techniques",), ("step_s", "techniques")),
        ([100, 100, 110, 100], (), ("step_s",)),
        (
            [100, 100, 110, 100],
            ("techniques",),
            ("step_s", "doubted step_s", "techniques"),
        ),
    ],
)
def test_objectives_are_told_in_their_order(
    percents: list[int] | None, criteria: tuple[str, ...], told: tuple[str, ...]
) -> None:
    doubted = None if percents is None else np.array(percents)
    model = PlanModel(replace(TABLE, percents=doubted))
    assert shown_model(model, criteria).objectives == told


def test_a_solve_shows_its_model_where_that_is_asked_for() -> None:
    spec = mw.load("gpt-1.3b-2xa100-pcie", mw.Spec)
    assert solve(spec, Options()).solved_model is None
    brief = Options(shows_model=True, is_brief=True)
    assert solve(spec, brief).solved_model is None
    shown = solve(spec, Options(shows_model=True)).solved_model
    assert shown is not None
    assert shown.objectives == ("step_s",)
    recommending = Options(shows_model=True, tolerance=0.05)
    shown = solve(spec, recommending).solved_model
    assert shown is not None
    assert shown.objectives == ("step_s", *spec.objective.criteria)


def test_bounds_are_whole_ticks_and_endless_where_no_split_is() -> None:
    bounds = np.array([0.0, 2.0, 2.1, np.inf, 1e300])
    told = [0, 2, 3, ENDLESS_TICKS, ENDLESS_TICKS]
    assert whole_ticks(bounds).tolist() == told


def test_without_a_limit_no_link_is_in_the_model() -> None:
    spec = mw.load("gpt-1.3b-2xa100-pcie", mw.Spec)
    job: Any = SimpleNamespace(spec=spec)
    nothing: Any = None
    assert _busy_ticks(job, nothing, nothing) == {}
