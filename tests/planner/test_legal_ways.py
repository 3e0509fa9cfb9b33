"""Tests that patterns of ways list the skeletons that the rules allow, and no other."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings

from meshwright.cost.job import make_job
from meshwright.planner.rows import build_lattice
from meshwright.plans.columns import take
from meshwright.plans.rule import holding
from meshwright.rules.legality import plan_rules
from meshwright.spec.spec import Spec
from tests.helpers.strategies import expert_specs, specs

LAWS = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def check(spec: Spec) -> None:
    unplaced = build_lattice(make_job(spec)).unplaced
    base, count = unplaced.base, len(unplaced.ways["recompute"])
    every = np.arange(len(base) * count)
    rows = base.take(every // count)
    codes = take(unplaced.ways, every % count)
    for name, code in codes.items():
        object.__setattr__(rows, name, code)
    listed = every[holding(plan_rules(spec), spec, rows)]
    np.testing.assert_array_equal(unplaced.number, listed)
    assert len(unplaced) == len(listed)
    some = np.arange(len(listed))[::-3]
    np.testing.assert_array_equal(unplaced.take(some).number, listed[some])
    by_base = np.bincount(listed // count, minlength=len(base))
    np.testing.assert_array_equal(unplaced.legal.counts, by_base)
    degrees = np.arange(len(base) and int(unplaced.base_degree.max()) + 1)
    odd = unplaced.among(degrees % 2 == 1)
    degree = unplaced.degree
    np.testing.assert_array_equal(odd.degree, degree[degree % 2 == 1])


@LAWS
@given(specs())
def test_ways_are_those_that_the_rules_allow(spec: Spec) -> None:
    check(spec)


@LAWS
@given(expert_specs())
def test_so_are_those_of_experts(spec: Spec) -> None:
    check(spec)
