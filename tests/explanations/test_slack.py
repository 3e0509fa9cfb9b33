"""What a plan leaves of memory, hosts and links, and its decisions cost, by hand."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

import meshwright as mw
from meshwright.check.check import broken_rules, check
from meshwright.cost.job import Job, make_job
from meshwright.explanations import marginal_values
from meshwright.explanations.judged_plan import slack
from meshwright.explanations.marginal_values import decision_costs, near_decisions
from meshwright.planner.families import prepare
from meshwright.planner.options import Options, tolerance_of
from meshwright.planner.solve import solve
from meshwright.plans.plan import Plan
from meshwright.results.explanation import Slack
from meshwright.results.outcome_parts import NearPlans
from meshwright.results.priced_plan import LinkLoad, PricedPlan
from meshwright.spec.spec import Spec

PINS = {"pp": 4, "tp": 2, "micro_batch": 1, "zero": 1, "recompute": "full"}


@cache
def job() -> Job:
    """Return the job of 8 GPUs that share a host."""
    return make_job(mw.load("llama2-13b-8xa100", Spec, pins=PINS))


@cache
def best() -> PricedPlan:
    found = solve(job().spec, Options(is_brief=True)).best
    assert found is not None
    return found


def told(plan: PricedPlan, none: Job | None = None) -> dict[str, Slack]:
    return {one.rule: one for one in slack(none or job(), plan)}


def stages_of(*figures: tuple[float, float, float]) -> dict[str, Any]:
    """Return stages by what they take, what they may use, and what is on the host."""
    names = ("total_gib", "usable_gib", "host_gib")
    return {
        "stages": tuple(
            stage.model_copy(update=dict(zip(names, figure, strict=True)))
            for stage, figure in zip(best().stages, figures, strict=True)
        )
    }


def test_memory_is_told_of_the_stage_that_has_least_to_spare() -> None:
    """3, 1.5, 1 and 9 GiB are free; the stage that takes most is another one."""
    figures = [(70.0, 73.0, 0.0), (6.5, 8.0, 0.0), (20.0, 21.0, 0.0), (1.0, 10.0, 0.0)]
    found = told(best().model_copy(update=stages_of(*figures)))
    memory = found["memory"]
    assert (memory.have, memory.need, memory.where) == (21.0, 20.0, "stage 2")
    assert memory.unit == "GiB"
    assert "host_memory" not in found


def test_a_host_holds_what_all_its_gpus_offload() -> None:
    """Of the stage that offloads most: 8 GPUs of a host times 5 GiB."""
    figures = [(1.0, 9.0, 0.0), (1.0, 9.0, 2.0), (1.0, 9.0, 5.0), (1.0, 9.0, 0.0)]
    host = told(best().model_copy(update=stages_of(*figures)))["host_memory"]
    assert job().spec.cluster.gpus_per_host == 8
    assert (host.need, host.have) == (40.0, job().spec.usable_host_gib)
    assert (host.unit, host.where) == ("GiB", "hosts of stage 2")


@pytest.mark.parametrize(("limit", "have"), [(None, 1.0), (0.5, 0.5)])
def test_the_busiest_link_may_be_busy_all_the_time_unless_a_limit_says_less(
    limit: float | None, have: float
) -> None:
    loads = tuple(
        LinkLoad(link=link, phase="tp", gb=1.0, seconds=1.0, utilisation=share)
        for link, share in (("a", 0.1), ("b", 0.3), ("c", 0.2))
    )
    limited = make_job(job().spec.having("limits", max_link_utilisation=limit))
    busy = best().model_copy(update={"all_links": loads, "link_utilisation": 0.3})
    link = told(busy, limited)["link_utilisation"]
    assert (link.have, link.need, link.where) == (have, 0.3, "b")
    assert link.unit == "of the step"
    alone = best().model_copy(update={"all_links": (), "link_utilisation": 0.0})
    link = told(alone)["link_utilisation"]
    assert (link.have, link.need, link.where) == (1.0, 0.0, "")


def test_rules_and_pins_are_told_that_a_plan_keeps_and_no_others() -> None:
    """DeepSpeed shards gradients with no pipeline, and the spec pins another stage."""
    kept = {*told(best())}
    pinned = {f"pin {name}" for name in PINS}
    assert {"zero_with_pipeline", "heads_divisible"} | pinned <= kept
    assert broken_rules(job(), best().plan) == []
    plan: Plan = best().plan.model_copy(update={"zero": 3, "micro_batch": 3})
    broken = {rule.rule for rule in broken_rules(job(), plan)}
    assert {"zero_with_pipeline", "pin zero", "pin micro_batch"} <= broken
    still = {*told(check(job(), plan))}
    assert not still & broken
    assert still | broken >= kept


def near_of(**values: dict[Any, float]) -> NearPlans:
    decisions = [
        {
            "name": name,
            "values": [
                {"value": value, "plans": 1, "loss": loss}
                for value, loss in losses.items()
            ],
        }
        for name, losses in values.items()
    ]
    fields = {"within": 0.1, "count": 9, "is_proven": True, "plans": ()}
    return NearPlans.model_validate(fields | {"decisions": decisions})


def test_a_decision_costs_what_its_value_loses_and_otherwise_the_best_other() -> None:
    """What follows from other decisions costs nothing by itself."""
    near = near_of(
        tp={2: 0.01, 4: 0.0, 8: 0.05},
        zero={1: 0.0},
        micro_batch={2: 0.02, 4: 0.03},
        recompute={"none": 0.0, "full": 0.04},
        microbatches={16: 0.0},
        dp_shard={1: 0.0, 2: 0.01},
        dp_replicate={1: 0.0},
    )
    costs = {one.name: one for one in decision_costs(best().plan, near)}
    assert {
        name: (cost.value, cost.loss, cost.otherwise) for name, cost in costs.items()
    } == {
        "tp": (2, 0.01, 0.0),
        "zero": (1, 0.0, None),
        "micro_batch": (1, None, 0.02),
        "recompute": ("full", 0.04, 0.0),
    }


def test_near_plans_are_all_within_a_share_of_the_fastest() -> None:
    prepared = prepare(job())
    found = near_decisions(Options(), best().plan, best(), prepared)
    near = found["near"]
    assert isinstance(near, NearPlans)
    share = tolerance_of(job().spec, Options().profile).share
    assert near.within == share > 0
    alone = solve(job().spec, Options(near=near.within)).near
    assert alone is not None
    assert (near.count, near.plans) == (alone.count, alone.plans)
    most_s = best().step_s * (1 + near.within) * (1 + 1e-6)
    assert all(plan.step_s <= most_s for plan in near.plans)
    assert found["decisions"] == decision_costs(best().plan, near)


@pytest.mark.parametrize(
    ("limit", "has_choice", "is_told"),
    [(None, True, True), (0.5, False, True), (0.5, True, False)],
)
def test_near_plans_are_not_told_where_all_orders_would_have_to_be_searched(
    limit: float | None,
    has_choice: bool,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = job().spec.having("limits", max_link_utilisation=limit)
    table = SimpleNamespace(has_choice=has_choice)
    prepared: Any = SimpleNamespace(
        job=make_job(spec), lattice=SimpleNamespace(table=table)
    )
    none = SimpleNamespace(near=None)
    monkeypatch.setattr(marginal_values, "solve", lambda *_: none)
    found = near_decisions(Options(), best().plan, best(), prepared)
    assert found == ({"near": None, "decisions": ()} if is_told else {})
    assert near_decisions(Options(), best().plan, None, prepared) == {}
    assert near_decisions(Options(), best().plan, best(), None) == {}
