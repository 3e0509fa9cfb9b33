"""The solver against brute force, on random small specs."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings

from meshwright.check import broken_rules
from meshwright.job import make_job
from meshwright.solve import Options, solve
from meshwright.spec.spec import Spec
from tests.oracle import brute_force
from tests.strategies import specs

ORACLE = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def compare(spec: Spec) -> None:
    """Compare the pruned and the unpruned solver with brute force."""
    best = brute_force(spec)
    pruned = solve(spec)
    unpruned = solve(spec, Options(is_pruning=False))
    assert pruned.status == unpruned.status
    if math.isinf(best.step_s):
        assert pruned.status == "infeasible"
        assert pruned.near_miss is not None
        assert pruned.near_miss.broken_rules
        return
    assert pruned.status == "optimal"
    assert pruned.best is not None
    assert unpruned.best is not None
    assert pruned.certificate is not None
    # The optimum in ticks and the one in floats are this far apart at most, twice.
    within = 2 * pruned.certificate.rounding_s
    assert pruned.best.step_s == pytest.approx(best.step_s, rel=0, abs=within)
    assert pruned.best.plan == unpruned.best.plan
    assert broken_rules(make_job(spec), pruned.best.plan) == []


@ORACLE
@given(specs(most_layers=4))
def test_shallow_models_match_brute_force(spec: Spec) -> None:
    compare(spec)


@ORACLE
@given(specs(most_layers=8))
def test_models_match_brute_force(spec: Spec) -> None:
    compare(spec)


@ORACLE
@given(specs(most_layers=12))
def test_deep_models_match_brute_force(spec: Spec) -> None:
    compare(spec)
