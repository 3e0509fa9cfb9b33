"""The bound on a step before any lattice is built, against the bounds of families.

The gate draws fewer random specs than `--all`.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from pydantic import ValidationError

import meshwright as mw
from meshwright.cost.job import make_job
from meshwright.cost.profile import load_profile
from meshwright.explanations.decisions import with_count
from meshwright.planner.compute_bound import compute_bound
from meshwright.planner.families import prepare
from meshwright.planner.integer_costs import seconds
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.plans.skeletons import to_unplaced_row
from meshwright.spec.base import divisors
from meshwright.spec.cluster import Cluster
from meshwright.spec.plan_fields import Range
from meshwright.spec.spec import Spec
from tests.helpers.extent import gate
from tests.helpers.strategies import FRAMEWORKS, expert_specs, specs
from tests.planner.test_brute_force import ORACLE

ROUNDING = 1e-6
"""Share that rounding to ticks may take from the bound of a family."""


def on_one_and_two(spec: Spec) -> list[Cluster]:
    """Return the cluster of a spec, and one of twice as many machines if it can."""
    try:
        return [spec.cluster, with_count(spec, 2 * spec.cluster.count).cluster]
    except ValidationError:
        return [spec.cluster]


def assert_below_families(spec: Spec, profile: str) -> float:
    """Hold the bounds against those of every family, which have more in them.

    Returns the share of the least family's bound that is in the least bound.
    """
    job = load_profile(profile).job(spec)
    prepared = prepare(job)
    families, unplaced = prepared.families, prepared.lattice.unplaced
    gpus = job.spec.cluster.gpus
    found = compute_bound(job, on_one_and_two(spec))
    bound_s = found.of_rows(unplaced.take(families.start).rows)
    lower_s = seconds(1) * families.lower
    least_s = found.least_s(gpus)
    assert 0 < found.shared_s(gpus) <= least_s * (1 + ROUNDING)
    assert least_s <= bound_s.min(initial=np.inf) * (1 + ROUNDING)
    # A family may think its largest stage the one with cheap leading layers.
    if not spec.model.leading_layers:
        assert (bound_s <= lower_s * (1 + ROUNDING)).all()
    return float(least_s / lower_s.min(initial=np.inf))


def assert_below_plans(spec: Spec) -> None:
    """Hold the bounds against the fastest plan for each number of stages."""
    found = compute_bound(make_job(spec), on_one_and_two(spec))
    for pp in divisors(spec.cluster.gpus):
        pins = spec.pins.model_copy(update={"pp": Range(min=pp, max=pp)})
        pinned = spec.model_copy(update={"pins": pins})
        best = solve(pinned, Options(is_brief=True, has_near_miss=False)).best
        if best is not None:
            allowed_s = best.step_s * (1 + ROUNDING)
            assert found.least_s(spec.cluster.gpus) <= allowed_s
            assert found.of_rows(to_unplaced_row(best.plan))[0] <= allowed_s


@settings(ORACLE, max_examples=gate(12, everything=40))
@given(specs())
def test_no_family_is_below_the_bound(spec: Spec) -> None:
    assert_below_families(spec, "unfitted")


@settings(ORACLE, max_examples=gate(5, everything=15))
@given(expert_specs())
def test_no_family_with_experts_is_below_the_bound(spec: Spec) -> None:
    assert_below_families(spec, "unfitted")


@settings(ORACLE, max_examples=gate(5, everything=15))
@given(expert_specs())
def test_no_plan_with_leading_layers_is_below_the_bound(spec: Spec) -> None:
    assume(spec.model.leading_layers)
    assert_below_plans(spec)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_family_of_any_framework_is_below_the_bound(framework: str) -> None:
    spec = mw.load("llama3-70b-16xa100", mw.Spec)
    assert_below_families(spec.model_copy(update={"framework": framework}), "unfitted")


@pytest.mark.parametrize(
    "name",
    ["llama3-70b-128xa100", "mixtral-8x7b-64xh100", "mpt-30b-512xh100"],
)
def test_the_bound_holds_and_says_much_on_bundled_specs(name: str) -> None:
    spec = mw.load(name, mw.Spec)
    assert assert_below_families(spec, "measured") > 0.7


def test_more_clusters_to_choose_from_never_raise_the_bound() -> None:
    spec = mw.load("llama3-70b-128xa100", mw.Spec)
    job, (one, two) = make_job(spec), on_one_and_two(spec)
    few, many = (compute_bound(job, own) for own in ([one], [one, two]))
    assert many.shared_s(128) <= few.shared_s(128)
    assert many.least_s(128) <= few.least_s(128)


def test_layers_that_do_not_divide_and_bubbles_raise_the_bound() -> None:
    spec = mw.load("llama3-70b-128xa100", mw.Spec)
    clusters = [with_count(spec, count).cluster for count in (16, 19)]
    found = compute_bound(make_job(spec), clusters)
    # 19 machines cannot share out the batch: they are stages of 80 layers.
    assert found.least_s(152) > 1.2 * found.shared_s(152)
    assert found.least_s(128) < 1.05 * found.shared_s(128)
