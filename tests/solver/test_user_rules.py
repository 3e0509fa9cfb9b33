"""The solver under rules of the user, against brute force on random small specs."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given

import meshwright as mw
from meshwright.spec.spec import Spec
from tests.helpers.random_rules import random_rules
from tests.helpers.strategies import specs
from tests.solver.test_brute_force import ORACLE, compare


def with_rules(spec: Spec, rules: list[dict[str, str]]) -> Spec:
    """Return a spec with rules."""
    data = spec.model_dump(exclude_unset=True)
    return Spec.model_validate(data | {"rules": rules})


@pytest.mark.slow
@ORACLE
@given(specs(most_layers=6))
def test_random_rules_match_brute_force(spec: Spec) -> None:
    rules = random_rules(spec, Random(spec.model_dump_json()))
    compare(with_rules(spec, rules))


def test_many_rules_on_parts_of_the_step_fit_into_one_model() -> None:
    rules = [
        {
            "name": f"r{n}",
            "that": f"parts.dp + parts.bubble <= {500 + n} / 1000 * step_s",
        }
        for n in range(80)
    ]
    free = mw.solve("llama3-70b-128xa100", by_kind=False)
    kept = mw.solve(mw.load("llama3-70b-128xa100", rules=rules), by_kind=False)
    assert free.optimum is not None
    assert kept.optimum is not None
    assert kept.optimum.step_s == free.optimum.step_s
