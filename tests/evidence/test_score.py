"""The regret of predictions, by framework and kind of model."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.evidence.score import groups_of, rankings, regret
from tests.evidence.test_runs import scored


def test_regret_is_what_the_run_predicted_fastest_loses() -> None:
    measured = np.array([1.0, 1.1, 2.0])
    assert regret(measured, np.array([3.0, 1.0, 2.0])) == 1.1
    assert regret(measured, measured) == 1.0


def test_a_class_has_the_median_over_its_groups() -> None:
    # By their errors the second run is taken for the fastest: 20 % above the first.
    runs = [scored(1, measured) for measured in (1.0, 1.2, 3.0)]
    errors = np.log([1.3, 0.9, 1.0])
    (found,) = rankings(runs, errors)
    assert (found.groups, found.sources, found.has_experts) == (1, 1, False)
    assert found.regret == pytest.approx(0.2)
    assert found.mean_regret == pytest.approx(0.2)


def test_two_runs_are_not_ranked() -> None:
    runs = [scored(1, 1.0), scored(1, 1.2)]
    assert groups_of(runs) == []
    assert list(rankings(runs, np.zeros(2))) == []
