"""Explanations of open specs: the next values, and which range binds."""

from __future__ import annotations

from typing import Any

import pytest

import meshwright as mw
from meshwright.results.explanation import Explanation
from meshwright.results.outcome_parts import NextValue


def explained(**changes: Any) -> Explanation:
    """Return the explanation of a small spec with open machines."""
    data = {
        "model": "gpt-1.3b",
        "cluster": {"topology": "dgx-a100", "count": [1, 2]},
        "training": {"seq_len": 2048, "global_batch": 32},
        "pins": {"recompute": "none", "tp": 1, "cp": 1},
        "run": {"gpu_hour_price": 2},
    }
    question = mw.load({**data, **changes})
    assert isinstance(question, mw.OpenSpec)
    return mw.explain(question)


def value(told: Explanation, wanted: int) -> NextValue:
    """Return what is said of a value of an open field."""
    return next(
        next_value for next_value in told.next_values if next_value.value == wanted
    )


def test_a_range_binds_where_a_value_beyond_it_is_better() -> None:
    told = explained(objective="step_s")
    assert told.open is not None
    assert told.open.chosen is not None
    assert told.open.chosen.count == 2
    assert not value(told, 1).binds
    beyond = value(told, 3)
    assert not beyond.is_allowed
    more = mw.load(
        {
            "model": "gpt-1.3b",
            "cluster": {"topology": "dgx-a100", "count": 3},
            "training": {"seq_len": 2048, "global_batch": 32},
            "pins": {"recompute": "none", "tp": 1, "cp": 1},
        },
        mw.Spec,
    )
    best = mw.solve(more, fastest=True, by_kind=False, safety=False, repair=False).best
    assert (beyond.step_s is None) == (best is None)
    if best is not None:
        assert beyond.step_s == pytest.approx(best.step_s)


def test_the_range_of_batches_binds_where_larger_ones_are_faster() -> None:
    cluster, training = "dgx-a100", {"seq_len": 2048, "global_batch": [16, 32]}
    told = explained(cluster=cluster, training=training, objective="step_s")
    beyond = value(told, 48)
    assert beyond.binds
    assert beyond.loss is not None
    assert beyond.loss < 0
    worse = value(told, 16)
    assert worse.is_allowed
    assert worse.loss is not None
    assert worse.loss > 0


def test_open_numbers_are_told_of_open_specs_alone() -> None:
    told = explained(objective="usd_per_mtoken")
    data = told.to_dict()
    assert data["open"]["chosen"]["count"] == 1
    assert data["next_values"]
    assert Explanation.from_json(told.to_json()).open == told.open
    fixed = mw.explain(mw.load("gpt-1.3b-2xh100-nvlink", mw.Spec))
    assert {"open", "next_values"}.isdisjoint(fixed.to_dict())


def test_why_no_choice_has_a_plan_is_told_of_the_largest() -> None:
    told = explained(model="llama3-405b", pins={"zero": 0, "offload": "none"})
    assert not told.fits
    assert told.conflict is not None
    assert "16 x" in told.title
