"""How many layers are recomputed, under what each framework can be told."""

from __future__ import annotations

from typing import Any

import pytest

import meshwright as mw
from meshwright.check.check import broken_rules
from meshwright.cost.job import make_job
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.plans.plan import Plan, Stage
from meshwright.results.outcome import Outcome
from meshwright.spec.spec import Spec, framework_names
from tests.helpers.extent import gate
from tests.helpers.tiny import tiny_spec
from tests.planner.test_brute_force import compare

BRIEF = Options(is_brief=True)


def spec(framework: str, memory_gib: float, **pins: Any) -> Spec:
    """Return a spec of two stages whose first holds the most micro-batches."""
    pins = {"pp": 2, "micro_batch": 2, **pins}
    return tiny_spec(framework, memory_gib, 2, {"n_layers": 6}, **pins)


def deeper(given: Spec, layers: int) -> Spec:
    """Return a spec with another number of layers."""
    model = given.model.model_copy(update={"n_layers": layers})
    return given.model_copy(update={"model": model})


def best(outcome: Outcome) -> Plan:
    assert outcome.best is not None
    return outcome.best.plan


def counts(plan: Plan) -> list[tuple[int, int]]:
    return [(stage.layers, stage.recompute_layers) for stage in plan.stages]


@pytest.mark.parametrize("framework", [*framework_names()])
@pytest.mark.parametrize(
    "memory_gib",
    gate([1.8, 3.3, 3.55], everything=[1.5, 1.8, 2.1, 3.3, 3.4, 3.5, 3.55, 3.6]),
)
def test_tight_memory_matches_brute_force(framework: str, memory_gib: float) -> None:
    compare(spec(framework, memory_gib, tp=1))


@pytest.mark.parametrize("framework", ["deepspeed", "internevo", "nanotron"])
@pytest.mark.parametrize("memory_gib", [2.6, 3.2, 3.5, 6.0])
def test_splits_of_the_framework_match_brute_force(
    framework: str, memory_gib: float
) -> None:
    compare(deeper(spec(framework, memory_gib, tp=1), 5))


def test_a_split_that_is_not_the_framework_s_is_refused() -> None:
    """Five layers are 3 and 2 under DeepSpeed, 2 and 3 under InternEvo."""
    for framework, layers in {"deepspeed": [3, 2], "internevo": [2, 3]}.items():
        found = deeper(spec(framework, 6.0), 5)
        plan = best(solve(found))
        assert [stage.layers for stage in plan.stages] == layers
        pins = found.pins.model_copy(update={"layers": tuple(layers[::-1])})
        pinned = found.model_copy(update={"pins": pins})
        miss = solve(pinned).near_miss
        assert miss is not None
        (rule,) = miss.broken_rules
        assert rule.rule == "stage_layers"
        assert f"{layers}, not {layers[::-1]}" in rule.sentence


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_counts_left_open_match_brute_force(recompute: str) -> None:
    for memory_gib in (3.35, 3.55):
        for framework in ("generic", "megatron", "internevo"):
            pins = {"recompute": recompute, "recompute_layers": "any"}
            compare(spec(framework, memory_gib, **pins))


def test_each_framework_recomputes_as_few_layers_as_it_can() -> None:
    """The first stage must free more than the second; Megatron-LM redoes as many."""
    pins = {"recompute": ["none", "full"], "vpp": 1, "schedule": "1f1b"}
    generic = best(solve(spec("generic", 3.5, **pins)))
    assert counts(generic) == [(3, 2), (3, 0)]
    megatron = best(solve(spec("megatron", 3.5, **pins)))
    assert counts(megatron) == [(3, 2), (3, 2)]


@pytest.mark.parametrize(
    ("framework", "recompute", "pinned", "is_legal"),
    [
        ("generic", "full", [2, 1], True),
        ("megatron", "full", [2, 1], False),
        ("megatron", "full", [2, 2], True),
        ("megatron", "full", [3, 3], True),
        ("megatron", "selective", [2, 2], False),
        ("megatron", "selective", [3, 3], True),
        ("torchtitan", "full", [2, 2], False),
        ("torchtitan", "full", [3, 3], True),
        ("deepspeed", "full", [3, 0], False),
    ],
)
def test_pinned_counts_go_through_the_same_rule(
    framework: str, recompute: str, pinned: list[int], is_legal: bool
) -> None:
    pins = {"recompute": recompute, "recompute_layers": pinned, "layers": [3, 3]}
    outcome = solve(spec(framework, 6.0, **pins))
    if is_legal:
        assert counts(best(outcome)) == [(3, pinned[0]), (3, pinned[1])]
        return
    assert outcome.status == "infeasible"
    assert outcome.near_miss is not None
    names = {rule.rule for rule in outcome.near_miss.broken_rules}
    assert names == {"recompute_scope"}


def test_pinned_counts_decide_the_layers_that_they_need() -> None:
    """All recomputed, a stage has as many layers; of two numbers the least is all."""
    pins = {"recompute": "full", "vpp": 1}
    found = spec("torchtitan", 6.0, **pins, recompute_layers=[4, 2])
    assert counts(best(solve(found))) == [(4, 4), (2, 2)]
    found = spec("megatron", 6.0, **pins, recompute_layers=[2, 1])
    assert counts(best(solve(found))) == [(5, 2), (1, 1)]


@pytest.mark.parametrize("memory_gib", [3.3, 3.4, 3.5, 3.55, 3.6, 6.0])
def test_pinned_to_none_leaves_no_mode_that_recomputes_every_layer(
    memory_gib: float,
) -> None:
    """A bound from such a row once closed all others, and the proof with them."""
    free = solve(spec("megatron", memory_gib, recompute="none"), BRIEF)
    outcome = solve(spec("megatron", memory_gib, recompute_layers=[0, 0]), BRIEF)
    assert outcome.status == free.status
    if free.best is not None:
        assert outcome.best is not None
        assert (outcome.best.step_s, counts(best(outcome))) == (
            free.best.step_s,
            counts(best(free)),
        )


def test_the_checker_refuses_what_the_framework_cannot_be_told() -> None:
    found = spec("megatron", 6.0, recompute="full", vpp=1)
    plan = best(solve(found))
    stages = tuple(Stage(layers=3, recompute_layers=count) for count in (3, 1))
    (rule,) = broken_rules(make_job(found), plan.model_copy(update={"stages": stages}))
    assert rule.rule == "recompute_scope"
    assert "[3, 1] are not" in rule.sentence
    assert "recompute.py: checkpointed_forward" in rule.sentence


def test_a_conflict_names_the_rule_on_splits() -> None:
    pins = {"recompute": "full", "recompute_layers": [2, 1], "layers": [3, 3]}
    conflict = mw.explain(spec("megatron", 6.0, **pins)).conflict
    assert conflict is not None
    names = {rule.rule for rule in conflict.rules}
    assert names == {"pins.recompute_layers", "pins.layers", "recompute_scope"}
