"""Objectives that differ among the uses of unlike parts."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import SpecError
from meshwright.planner.solve import solve
from meshwright.results.outcome import Outcome
from meshwright.spec.spec import Spec
from tests.helpers.unlike import mixed_data, part

PINS: dict[str, Any] = {"recompute": "none", "zero": [0, 1], "micro_batch": [1, 2]}


def solved(objective: object, **run: Any) -> Outcome:
    """Return the outcome on two fast and two slower GPUs."""
    data = mixed_data(part(2, 200.0, 40.0), part(2, 120.0, 40.0), **PINS)
    return solve(Spec.model_validate({**data, "objective": objective, "run": run}))


def test_fewer_gpus_are_preferred_where_they_come_first() -> None:
    fastest, fewest = solved("step_s"), solved(["gpus", "step_s"])
    assert fastest.best is not None
    assert fewest.best is not None
    assert fastest.gpus == 4
    assert fewest.gpus == 2
    assert fewest.best.step_s > fastest.best.step_s
    alone = [way.step_s for way in fewest.arrangements if "alone" in way.sentence]
    assert fewest.best.step_s == min(filter(None, alone))
    assert fewest.status == "optimal"
    assert fewest.certificate is not None
    assert fewest.certificate.levels == ("gpus", "step_s")
    assert fastest.certificate is not None
    assert fastest.certificate.levels == ()


def test_a_level_chooses_among_those_within_the_tolerance_of_the_one_before() -> None:
    fastest = solved("step_s")
    assert fastest.best is not None
    steps = [way.step_s for way in fastest.arrangements if way.step_s]
    slack = max(steps) / min(steps) - 1
    within = solved([{"step_s": min(slack * 1.01, 0.99)}, "gpus"])
    assert within.gpus == (2 if slack < 0.99 else 4)
    assert solved([{"step_s": 0}, "gpus"]).best == fastest.best


def test_money_follows_the_price_of_the_gpus() -> None:
    # All GPUs cost the same: two cost half as much, and take less than twice as long.
    cheapest = solved("usd_per_mtoken", gpu_hour_price=2.0)
    ways = {way.sentence: way.step_s for way in cheapest.arrangements}
    costs = [
        step_s * (2 if "alone" in sentence else 4)
        for sentence, step_s in ways.items()
        if step_s
    ]
    assert cheapest.best is not None
    assert cheapest.best.step_s * cheapest.gpus == pytest.approx(min(costs))


def test_what_has_no_price_cannot_be_cheapest() -> None:
    with pytest.raises(SpecError, match="gpu_hour_price"):
        solved("usd_per_mtoken")
