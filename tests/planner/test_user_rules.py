"""The solver under rules of the user, against brute force on random small specs."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given

import meshwright as mw
from tests.helpers.random_rules import random_rules
from tests.helpers.strategies import specs
from tests.planner.test_brute_force import ORACLE, compare


def with_rules(spec: mw.Spec, rules: list[dict[str, str]]) -> mw.Spec:
    """Return a spec with rules."""
    data = spec.model_dump(exclude_unset=True)
    return mw.Spec.model_validate(data | {"rules": rules})


@pytest.mark.slow
@ORACLE
@given(specs(most_layers=6))
def test_random_rules_match_brute_force(spec: mw.Spec) -> None:
    # By what is said alone: a new field of specs draws no other rules.
    rules = random_rules(spec, Random(spec.model_dump_json(exclude_unset=True)))
    compare(with_rules(spec, rules))


def test_many_rules_on_parts_of_the_step_fit_into_one_model() -> None:
    that = "parts.dp + parts.bubble <= {} / 1000 * step_s"
    rules = [{"name": f"r{n}", "that": that.format(500 + n)} for n in range(80)]
    spec = mw.load("llama3-70b-128xa100", mw.Spec)
    free = mw.solve(spec, by_kind=False).optimum
    kept = mw.solve(with_rules(spec, rules), by_kind=False).optimum
    assert free is not None
    assert kept is not None
    assert kept.step_s == free.step_s


SMALL = {
    "model": "gpt-1.3b",
    "cluster": {"topology": "dgx-h100", "count": 1},
    "training": {"seq_len": 2048, "global_batch": 64},
}


@pytest.mark.parametrize("that", ["parts.bubble <= 0", "parts.bubble == 0"])
def test_a_rule_against_bubbles_leaves_plans_without_a_pipeline(that: str) -> None:
    spec = mw.load(SMALL, mw.Spec)
    kept = mw.solve(with_rules(spec, [{"that": that}]), by_kind=False)
    alone = mw.solve(with_rules(spec, [{"that": "pp == 1"}]), by_kind=False)
    assert kept.status == "optimal"
    assert kept.optimum is not None
    assert kept.optimum.plan == (alone.optimum and alone.optimum.plan)


@pytest.mark.parametrize("share", [0.3, 0.7, 1.0])
def test_a_rule_on_the_bubble_in_seconds_matches_brute_force(share: float) -> None:
    """Unequal splits wait less than equal ones, and take longer."""
    model = {"preset": "gpt-1.3b", "n_layers": 5}
    pins = {"pp": [2, 4], "tp": 1, "micro_batch": 2, "recompute": "none"}
    spec = mw.load(SMALL | {"model": model, "pins": pins}, mw.Spec)
    free = mw.solve(spec, by_kind=False).optimum
    assert free is not None
    most_s = share * free.time_parts["bubble"] * (1 + 1e-9)
    compare(with_rules(spec, [{"that": f"parts.bubble <= {most_s}"}]))


def test_a_rule_that_no_step_keeps_leaves_no_plan_beside_one_on_bubbles() -> None:
    rules = [{"that": "tp * step_s < 1e-6"}, {"that": "parts.bubble <= 0.5"}]
    found = mw.solve(with_rules(mw.load(SMALL, mw.Spec), rules), by_kind=False)
    assert (found.status, found.best) == ("infeasible", None)


def test_a_rule_for_bubbles_leaves_pipelines() -> None:
    spec = mw.load(SMALL, mw.Spec)
    kept = mw.solve(with_rules(spec, [{"that": "parts.bubble > 0"}]), by_kind=False)
    assert kept.status == "optimal"
    assert kept.optimum is not None
    assert kept.optimum.plan.pp > 1


def test_a_product_that_plans_keep_leaves_the_best_one() -> None:
    """It is no line, and tested plan by plan."""
    spec = mw.load(SMALL | {"pins": {"pp": 2}}, mw.Spec)
    free, kept = (
        mw.solve(with_rules(spec, rules), by_kind=False, safety=False, repair=False)
        for rules in ([], [{"that": "1 <= max(memory_gib) * max(memory_gib)"}])
    )
    assert kept.status == "optimal"
    assert kept.optimum == free.optimum


def test_a_rule_on_twice_what_links_carry_is_tested_plan_by_plan() -> None:
    spec = mw.load(SMALL | {"pins": {"pp": 2}}, mw.Spec)
    once, twice = (
        mw.solve(with_rules(spec, [{"that": that}]), by_kind=False, safety=False)
        for that in ("max(links) <= 0.9", "max(2 * links) <= 1.8")
    )
    assert once.optimum is not None
    assert twice.optimum is not None
    assert once.optimum.plan == twice.optimum.plan


def test_rules_that_no_set_of_degrees_may_keep_have_a_nearest_miss() -> None:
    """Neither a step of a millisecond, nor next to no bubble beside it."""
    rules = [{"that": "parts.bubble <= 0.01 and step_s < 0.001"}]
    outcome = mw.solve(mw.load(SMALL | {"rules": rules}, mw.Spec), by_kind=False)
    assert outcome.status == "infeasible"
    assert outcome.near_miss is not None
    assert [rule.rule for rule in outcome.near_miss.broken_rules] == ["rules.rule_1"]


def test_a_part_that_no_plan_has_enough_of_is_refused_without_a_split() -> None:
    """Nothing is offloaded, or less than keys and values take on their way."""
    gpu = {
        "memory_gib": 2.8, "memory_gb_s": 3000.0,
        "peak_tflops": {"bf16": 78.0, "fp16": 156.0, "fp32": 156.0, "fp8": 156.0},
    }  # fmt: skip
    inside, outside = (
        {
            "name": "host",
            "gb_s": 10.0,
            "latency_us": 0.5,
            "uplink": "shared",
            "size": 4,
        },
        {"name": "net", "gb_s": 1.25, "latency_us": 10, "uplink": "per_gpu", "size": 2},
    )
    model = {
        "n_layers": 6, "d_model": 1024, "n_heads": 8, "head_dim": 128, "d_ff": 3072,
        "vocab": 8000, "gated_mlp": True, "tied_embeddings": False,
    }  # fmt: skip
    question = {
        "model": model,
        "cluster": {"topology": {"gpu": gpu, "levels": [inside, outside]}},
        "framework": "torchtitan",
        "training": {"seq_len": 960, "global_batch": 24, "cuda_graphs": True},
        "pins": {"cp": {"min": 2}, "pp": {"max": 4}, "vpp": [1, 2], "ep": 1},
        "rules": [{"that": "parts.cp <= 0.9 * parts.offload"}],
    }
    found = mw.solve(question, by_kind=False, safety=False, repair=False)
    assert found.status == "infeasible"
