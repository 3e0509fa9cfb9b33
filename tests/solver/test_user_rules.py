"""The solver under rules of the user, against brute force on random small specs."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given

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
