"""The bound on a step before any lattice is built, against the bounds of families."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

import meshwright as mw
from meshwright.bounds.compute_bound import least_gpu_seconds
from meshwright.bounds.integer_costs import seconds
from meshwright.cost.job import make_job
from meshwright.cost.profile import load_profile
from meshwright.solver.prepared import prepare
from meshwright.spec.spec import Spec
from tests.helpers.strategies import expert_specs, specs
from tests.solver.test_brute_force import ORACLE

ROUNDING = 1e-6
"""Share that rounding to ticks may take from the bound of a family."""


def assert_below_families(spec: Spec, profile: str) -> None:
    """Hold the bound against that of every family, which has more in it."""
    job = load_profile(profile).job(spec)
    families = prepare(job).families
    gpus = job.spec.cluster.gpus
    bound_s = least_gpu_seconds(job, {gpus, 2 * gpus}) / gpus
    assert bound_s > 0
    for ticks in families.lower.tolist():
        assert bound_s <= seconds(ticks) * (1 + ROUNDING)


@settings(ORACLE, max_examples=40)
@given(specs())
def test_no_family_is_below_the_bound(spec: Spec) -> None:
    assert_below_families(spec, "unfitted")


@settings(ORACLE, max_examples=15)
@given(expert_specs())
def test_no_family_with_experts_is_below_the_bound(spec: Spec) -> None:
    assert_below_families(spec, "unfitted")


@pytest.mark.parametrize(
    "name",
    ["llama3-70b-128xa100", "mixtral-8x7b-64xh100", "mpt-30b-512xh100"],
)
def test_the_bound_holds_and_says_much_on_bundled_specs(name: str) -> None:
    spec = mw.load(name, mw.Spec)
    assert_below_families(spec, "measured")
    job = load_profile("measured").job(spec)
    gpus = spec.cluster.gpus
    families = prepare(job).families
    bound_s = least_gpu_seconds(job, {gpus}) / gpus
    assert bound_s > 0.7 * seconds(families.lower.min())


def test_more_gpus_to_choose_from_never_raise_the_bound() -> None:
    job = make_job(mw.load("llama3-70b-128xa100", mw.Spec))
    few, many = (least_gpu_seconds(job, gpus) for gpus in ({128}, {128, 48, 96}))
    assert many <= few
