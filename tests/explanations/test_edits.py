"""Edits of a spec to what a plan has, and values of plans as a spec has them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import meshwright as mw
from meshwright.explanations.decisions import TP_LINK, edit_to_plan, plan_value
from meshwright.planner.solve import solve
from meshwright.plans.plan import Plan

HOSTED = "llama2-13b-8xa100"


@cache
def best() -> Plan:
    found = solve(mw.load("gpt-1.3b-2x3090-nvlink", mw.Spec)).best
    assert found is not None
    return found.plan


def test_edits_are_written_as_a_spec_would_have_them() -> None:
    spec = mw.load(HOSTED, mw.Spec, pins=["recompute=full", "tp=[2, 4]", "dp=4"])
    spec = spec.having("limits", tp_min_link_gb_s=50.0)
    plan = best()
    stages = plan.stages
    assert edit_to_plan(spec, TP_LINK, plan) == f"{TP_LINK}: 50 -> null".replace(
        TP_LINK, "limits.tp_min_link_gb_s"
    )
    assert edit_to_plan(spec, "pins.tp", plan) == f"tp: [2, 4] -> {plan.tp}"
    dp = plan.dp_replicate * plan.dp_shard
    assert edit_to_plan(spec, "pins.dp", plan) == f"dp: 4 -> {dp}"
    half = stages[0].model_copy(update={"layers": 8, "recompute_layers": 4})
    part = plan.model_copy(update={"recompute": "selective", "stages": (half,)})
    beside = ", recompute_layers: any"
    assert edit_to_plan(spec, "pins.recompute", part) == (
        f"recompute: full -> selective{beside}"
    )
    whole = half.model_copy(update={"recompute_layers": 8})
    full = part.model_copy(update={"stages": (whole,)})
    assert edit_to_plan(spec, "pins.recompute", full) == "recompute: full -> selective"
    none = plan.model_copy(update={"recompute": "none", "stages": (half,)})
    assert edit_to_plan(spec, "pins.recompute", none) == "recompute: full -> none"


@pytest.mark.parametrize(
    ("pins", "beside"),
    [
        ({"recompute": "full"}, ", recompute_layers: any"),
        ({"recompute": "full", "recompute_layers": "any"}, ""),
        ({"recompute": "full", "recompute_layers": [10, 20], "pp": 2}, ""),
    ],
)
def test_counts_of_recomputed_layers_are_left_open_where_no_pin_has_them(
    pins: dict[str, Any], beside: str
) -> None:
    spec = mw.load(HOSTED, mw.Spec, pins=pins)
    plan = best()
    half = plan.stages[0].model_copy(update={"layers": 8, "recompute_layers": 4})
    part = plan.model_copy(update={"recompute": "selective", "stages": (half,)})
    told = edit_to_plan(spec, "pins.recompute", part)
    assert told == f"recompute: full -> selective{beside}"


def test_values_of_plans_are_written_as_yaml_has_them() -> None:
    plan = best().model_copy(update={"sequence_parallel": True, "tp": 2})
    off = plan.model_copy(update={"sequence_parallel": False, "recompute_modules": ""})
    assert plan_value(plan, "tp") == "2"
    assert plan_value(plan, "sequence_parallel") == "true"
    assert plan_value(off, "sequence_parallel") == "false"
    assert plan_value(off, "recompute_modules") == "''"
    assert plan_value(plan, "layers") == str([stage.layers for stage in plan.stages])
