"""Laws that hold for every spec: more never hurts, and the answer is one answer."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshwright.check import check
from meshwright.job import make_job
from meshwright.options import Options
from meshwright.plan import Outcome, Plan, PricedPlan
from meshwright.report.render import as_json, as_text
from meshwright.solve import solve
from meshwright.spec.spec import Spec
from tests.strategies import PRECISIONS, spec_data, specs

HOST_FIELDS = ["memory_gib", "pcie_gb_s", "memory_gb_s", "nvme_gb_s", "nvme_gib"]

LAWS = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def objective_s(outcome: Outcome) -> float:
    """Return the step time that was proven; infinite where nothing fits."""
    return outcome.best.step_s if outcome.best else math.inf


def no_slower(better: Outcome, worse: Outcome) -> bool:
    """Return whether an outcome is no slower, up to the rounding of both."""
    slack_s = sum(
        outcome.certificate.rounding_s
        for outcome in (better, worse)
        if outcome.certificate
    )
    return objective_s(better) <= objective_s(worse) + slack_s


def solved(data: dict[str, Any]) -> Outcome:
    """Return the outcome of a spec's data."""
    return solve(Spec.model_validate(data))


@LAWS
@given(spec_data(), st.floats(1.001, 3.0))
def test_more_memory_never_hurts(data: dict[str, Any], factor: float) -> None:
    before = solved(data)
    data["cluster"]["topology"]["gpu"]["memory_gib"] *= factor
    assert no_slower(solved(data), before)


@LAWS
@given(spec_data(), st.floats(1.001, 10.0), st.sampled_from(HOST_FIELDS))
def test_more_of_a_host_never_hurts(
    data: dict[str, Any], factor: float, field: str
) -> None:
    host = data["cluster"]["topology"].get("host", {})
    assume(field in host)
    data["limits"] = {}
    before = solved(data)
    host[field] *= factor
    assert no_slower(solved(data), before)


@LAWS
@given(spec_data(), st.sampled_from(PRECISIONS), st.sampled_from(PRECISIONS))
def test_one_more_precision_never_hurts(
    data: dict[str, Any], precision: str, more: str
) -> None:
    data["limits"] = {}
    data["training"]["precision"] = precision
    before = solved(data)
    data["training"]["precision"] = [precision, more]
    assert no_slower(solved(data), before)


@LAWS
@given(spec_data(), st.floats(1.001, 10.0), st.data())
def test_more_bandwidth_never_hurts(
    data: dict[str, Any], factor: float, choice: st.DataObject
) -> None:
    data["limits"] = {}
    levels = data["cluster"]["topology"]["levels"]
    before = solved(data)
    choice.draw(st.sampled_from(levels))["gb_s"] *= factor
    assert no_slower(solved(data), before)


@LAWS
@given(spec_data(), st.floats(0.0, 1.0))
def test_less_latency_never_hurts(data: dict[str, Any], factor: float) -> None:
    data["limits"] = {}
    before = solved(data)
    for level in data["cluster"]["topology"]["levels"]:
        level["latency_us"] *= factor
    assert no_slower(solved(data), before)


@LAWS
@given(spec_data(), st.floats(1.001, 10.0))
def test_faster_gpus_never_hurt(data: dict[str, Any], factor: float) -> None:
    data["limits"] = {}
    before = solved(data)
    peaks = data["cluster"]["topology"]["gpu"]["peak_tflops"]
    for name in peaks:
        peaks[name] *= factor
    assert no_slower(solved(data), before)


def widened(spec: Spec, plan: Plan) -> tuple[Spec, Plan]:
    """Return the spec with its outermost level twice as wide, and the plan on it.

    The new GPUs are data-parallel: twice the shards share the same micro-batches.
    """
    data = spec.model_dump()
    data["cluster"]["topology"]["levels"][-1]["size"] *= 2
    axis = "dp_shard" if plan.zero else "dp_replicate"
    mesh = dict(plan.mesh)
    mesh[axis] = (*mesh[axis][:-1], 2 * mesh[axis][-1])
    fields = {
        axis: 2 * getattr(plan, axis),
        "microbatches": plan.microbatches // 2,
        "mesh": mesh,
    }
    return Spec.model_validate(data), plan.model_copy(update=fields)


@LAWS
@given(specs())
def test_more_gpus_for_the_same_plan_never_hurt_beside_traffic(spec: Spec) -> None:
    outcome = solve(spec)
    assume(outcome.best is not None and outcome.best.plan.microbatches % 2 == 0)
    assert outcome.best is not None
    before = outcome.best
    wide, plan = widened(spec, before.plan)
    after = check(make_job(wide), plan)
    assert after.peak_gib <= before.peak_gib * (1 + 1e-12)
    # More shards of weights mean longer gathers; below ZeRO-2 all else shrinks.
    if plan.zero < 2:
        assert without_dp_s(after) <= without_dp_s(before) * (1 + 1e-12)


def without_dp_s(priced: PricedPlan) -> float:
    """Return the step time without the traffic that ends it."""
    return priced.step_s - priced.time_parts["dp"]


@LAWS
@given(specs())
def test_any_number_of_workers_prints_the_same_bytes(spec: Spec) -> None:
    printed = set()
    for workers in (1, 2, 8):
        outcome = solve(spec, Options(workers=workers, top=2))
        printed.add(as_text("spec", outcome) + as_json("spec", outcome))
    assert len(printed) == 1


@LAWS
@given(specs())
def test_the_next_best_plans_are_distinct_and_in_order(spec: Spec) -> None:
    outcome = solve(spec, Options(top=4))
    plans = [outcome.best, *outcome.others] if outcome.best else []
    times = [plan.step_s for plan in plans if plan]
    slack_s = outcome.certificate.rounding_s if outcome.certificate else 0.0
    assert all(a <= b + 2 * slack_s for a, b in pairwise(times))
    assert len({str(plan) for plan in plans}) == len(plans)


@LAWS
@given(specs())
def test_no_time_still_gives_a_true_bound(spec: Spec) -> None:
    proven = solve(spec)
    hurried = solve(spec, Options(time_limit_s=0.0))
    assert hurried.status != "optimal" or objective_s(hurried) == objective_s(proven)
    if hurried.best and hurried.certificate and proven.certificate:
        assert hurried.certificate.bound_s <= proven.certificate.bound_s + 1e-9
        assert proven.certificate.bound_s <= hurried.best.step_s + 1e-6
