"""What was prepared for a spec serves the same spec on better hardware.

The gate draws fewer random specs than `--all`.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings

from meshwright.cost.job import make_job
from meshwright.explanations.decisions import with_memory
from meshwright.explanations.marginal_values import MORE, _hardware_changes
from meshwright.loading.load import load_spec
from meshwright.planner.degrees import has_mesh_rules
from meshwright.planner.families import prepare
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.results.outcome import Outcome
from meshwright.spec.spec import Spec, with_risk
from tests.helpers.extent import gate
from tests.helpers.irregular import irregular_specs
from tests.helpers.strategies import specs

BRIEFLY = Options(is_brief=True)


def best_of(outcome: Outcome) -> tuple[object, ...]:
    best = outcome.best
    return (outcome.status, best and best.plan, best and best.step_s)


def compare(spec: Spec) -> None:
    job = make_job(spec)
    assume(not has_mesh_rules(job))
    prepared = prepare(job, MORE * spec.usable_gib)
    for more in _hardware_changes(spec):
        if more.link_speedup is None:
            continue
        start = prepared.on_better_hardware(more.spec, more.link_speedup)
        assert start is not None
        afresh = solve(more.spec, BRIEFLY)
        assert best_of(solve(more.spec, BRIEFLY, start)) == best_of(afresh)
        every = prepare(job, MORE * spec.usable_gib, keeps_all=True)
        start = every.on_better_hardware(more.spec, more.link_speedup)
        assert best_of(solve(more.spec, BRIEFLY, start)) == best_of(afresh)


@pytest.mark.slow
@settings(
    max_examples=gate(5, everything=20),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(specs(most_layers=6))
def test_more_memory_and_faster_links_have_the_same_families(spec: Spec) -> None:
    compare(spec)


@pytest.mark.slow
@settings(
    max_examples=gate(1, everything=5),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(irregular_specs())
def test_so_they_have_on_irregular_hosts(spec: Spec) -> None:
    compare(spec)


@pytest.mark.parametrize("name", ["llama3-70b-128xa100", "mixtral-8x7b-64xh100"])
def test_bounds_of_families_hold_on_faster_links(name: str) -> None:
    spec = load_spec(name)
    prepared = prepare(make_job(spec), MORE * spec.usable_gib)
    for more in _hardware_changes(spec):
        if more.link_speedup is None:
            continue
        start = prepared.on_better_hardware(more.spec, more.link_speedup)
        assert start is not None
        exact = prepare(make_job(more.spec), MORE * spec.usable_gib).families.lower
        assert (start.families.lower <= exact).all()
        # They are worth something: the links are no more than a tenth faster.
        assert (start.families.lower * MORE >= exact * (1 - 1e-9)).all()


def test_rules_that_look_at_links_may_allow_other_skeletons() -> None:
    spec = load_spec("llama3-70b-128xa100")
    limits = spec.limits.model_copy(update={"tp_min_link_gb_s": 100.0})
    limited = spec.model_copy(update={"limits": limits})
    prepared = prepare(make_job(limited))
    assert prepared.on_better_hardware(limited, 1.0) is None


def test_more_memory_than_was_prepared_is_prepared_afresh() -> None:
    spec = load_spec("llama3-70b-16xa100")
    prepared = prepare(make_job(spec))
    roomy = with_memory(spec, MORE * spec.usable_gib)
    assert prepared.on_better_hardware(roomy, 1.0) is None
    bold = with_risk(spec, 0.4)
    found = solve(bold, BRIEFLY, prepared.at_risk(0.4))
    assert best_of(found) == best_of(solve(bold, BRIEFLY))
