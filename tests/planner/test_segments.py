"""Full recomputation in segments of several layers, of which one input is kept."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest

from meshwright.check.check import broken_rules, check
from meshwright.cost.job import make_job
from meshwright.planner.solve import solve
from meshwright.plans.plan import Stage
from meshwright.spec.spec import Spec
from meshwright.spec.units import GIB
from tests.planner.test_brute_force import compare
from tests.planner.test_recompute_scopes import best, deeper, spec

INPUT_BYTES = 2 * 2 * 2048 * 512
"""What goes into a layer: 2 sequences of 2,048 tokens, 512 numbers of bf16 each."""


def deep(framework: str, memory_gib: float, **pins: Any) -> Spec:
    """Return a spec of one stage whose memory is mostly that of inputs of layers."""
    one_stage = {"tp": 1, "pp": 1, "micro_batch": 4, "zero": 1, "dp_replicate": 1}
    return deeper(spec(framework, memory_gib, **one_stage | pins), 48)


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("segment", [1, 2, 3, 4])
@pytest.mark.parametrize("vpp", [1, 2])
def test_no_stage_holds_less_than_the_inputs_of_its_segments(
    layers: int, segment: int, vpp: int
) -> None:
    """It counts an input of each chunk more than there is, less an nth of it."""
    if segment > layers:
        return
    pins = {"recompute": "full", "recompute_segment": segment, "vpp": vpp}
    found = deeper(
        spec("megatron", 60.0, tp=1, schedule="1f1b", **pins), 2 * vpp * layers
    )
    even = (Stage(layers=vpp * layers, recompute_layers=vpp * layers),) * 2
    plan = best(solve(found)).model_copy(update={"stages": even})
    priced = check(make_job(found), plan)
    # Of the micro-batches the stages have 2 and 1 in flight; of chunks 5 and 3.
    for stage, in_flight in zip(priced.stages, [[2, 1], [5, 3]][vpp - 1], strict=True):
        held = stage.parts["activations"] * GIB / INPUT_BYTES / in_flight
        assert held == pytest.approx((layers + segment - 1) / segment, rel=1e-9)
        assert held >= ceil(layers / segment) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("framework", "memory_gib"),
    [("ideal", 2.9), ("ideal", 3.0), ("ideal", 3.1), ("ideal", 3.2),
     ("megatron", 4.9), ("megatron", 5.1), ("megatron", 5.3)],
)  # fmt: skip
def test_memory_full_of_inputs_matches_brute_force(
    framework: str, memory_gib: float
) -> None:
    compare(deep(framework, memory_gib))


def test_segments_are_found_where_the_inputs_of_all_layers_do_not_fit() -> None:
    found, single = (
        solve(deep("ideal", 3.1, **pins)).best
        for pins in ({}, {"recompute_segment": 1})
    )
    assert found is not None
    assert (found.plan.recompute, found.plan.recompute_segment) == ("full", 2)
    assert found.plan.recomputes_all_layers
    assert single is None or single.step_s > found.step_s


def test_longer_segments_gather_fewer_split_inputs() -> None:
    """A checkpoint that tensor-parallel GPUs share is gathered once a segment."""
    changed = spec("ideal", 60.0, tp=2, pp=1, sequence_parallel=False, recompute="full")
    training = {"partition_activations": True, "cuda_graphs": True}
    changed = changed.model_copy(
        update={"training": changed.training.model_copy(update=training)}
    )
    assert best(solve(changed)).recompute_segment == 2
    compare(changed)


def test_a_pin_may_name_any_segment() -> None:
    plan = best(solve(deep("megatron", 60.0, recompute="full", recompute_segment=5)))
    assert plan.recompute_segment == 5
    assert "recompute_segment=5" in str(plan)


def test_segments_take_every_layer() -> None:
    found = deep("ideal", 60.0, recompute="full", recompute_segment=4)
    plan = best(solve(found))
    some = plan.model_copy(update={"stages": (Stage(layers=48, recompute_layers=8),)})
    (rule,) = broken_rules(make_job(found), some)
    assert rule.rule == "recompute_scope"


@pytest.mark.parametrize("framework", ["generic", "deepspeed", "torchtitan"])
def test_most_frameworks_have_no_segments(framework: str) -> None:
    outcome = solve(deep(framework, 60.0, recompute="full", recompute_segment=2))
    assert outcome.status == "infeasible"
    assert outcome.near_miss is not None
    names = {rule.rule for rule in outcome.near_miss.broken_rules}
    assert "recompute_segments_supported" in names
