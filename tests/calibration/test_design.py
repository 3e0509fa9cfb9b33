"""Runs are picked by what they are expected to tell; no run leaves more doubt."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.calibrate_few import predictions
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.calibration.probe import (
    Prior,
    choose,
    decisions,
    measured,
)
from tests.calibration.synthetic import site


def prior(card_gib: float = 80.0) -> Prior:
    return Prior(site()[1], sigma=0.05, bias=0.0, card_gib=card_gib)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.floats(5.0, 200.0))
def test_no_run_leaves_more_doubt_of_anything(order: list[int], card: float) -> None:
    found = prior(card)
    covariance = found.covariance
    for index in order:
        after = measured(found, covariance, index)
        assert (np.diag(after) <= np.diag(covariance) * (1 + 1e-9)).all()
        assert np.linalg.eigvalsh(after).min() > -1e-9
        covariance = after


def test_the_same_runs_are_picked_every_time_and_none_twice() -> None:
    found = prior()
    picked = [choose(found, predictions(found), range(6), 4) for _ in range(2)]
    assert picked[0] == picked[1]
    indices = [one.index for one in picked[0]]
    assert len(set(indices)) == 4
    assert [one.nats for one in picked[0]] == sorted(
        (one.nats for one in picked[0]), reverse=True
    )


def test_a_run_that_fails_for_sure_tells_nothing() -> None:
    """On a card of a hundredth of its need, nobody doubts the outcome."""
    found = prior(card_gib=0.1)
    after = measured(found, found.covariance, 0)
    assert np.diag(after) == pytest.approx(np.diag(found.covariance), rel=1e-3)


def test_memory_in_doubt_makes_peaks_worth_more() -> None:
    """Where the plans just fit, what is left of the card hangs on their needs."""
    steps = [float(np.exp(one.log_s)) for one in site()[1]]
    nats = {}
    for card in (30.0, 1000.0):
        found = prior(card)
        wanted = decisions(found, steps, range(6))
        nats[card] = choose(found, wanted, range(6), 1)[0].nats
    assert nats[30.0] > nats[1000.0]


def test_failure_says_more_of_a_plan_that_was_thought_to_fit() -> None:
    """Fall of variance above a bound at the mean: 2 / pi of it (half-normal)."""
    from meshwright.calibration.probe import _told_by_failure

    assert _told_by_failure(0.0) == pytest.approx(2 / np.pi)
    assert _told_by_failure(-3.0) < 0.02 < _told_by_failure(0.0) < _told_by_failure(3.0)
