"""Few runs tell of switches, of times and of memory, and no runs tell nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.calibration.beliefs import CodeBase, code_base
from meshwright.calibration.responses import Alternative, departures
from meshwright.evidence.price import Priced
from tests.calibration.synthetic import PROFILE, measured, planted, site

FELT: tuple[Alternative, ...] = (
    ("gradients", "bf16"),
    ("loss_parallel", False),
    ("attention", "plain"),
)
"""Each moves the memory of some plan by several times its spread."""


def told_by(runs: list[Priced], count: int | None = None) -> CodeBase:
    measured_runs = len(runs) if count is None else count
    return code_base(runs, site()[1], measured_runs, PROFILE)


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(FELT), st.floats(0.9, 1.1), st.floats(0.0, 0.02))
def test_a_planted_switch_is_found(
    alternative: Alternative, factor: float, noise: float
) -> None:
    found = told_by(planted(alternative, factor=factor, noise=noise))
    name, setting = alternative
    assert found.settings == {name: setting}
    assert found.probabilities[name][setting] > 0.7


def test_a_site_like_its_framework_has_no_switch_set_otherwise() -> None:
    assert told_by(planted()).settings == {}


def test_no_runs_give_the_prior_back() -> None:
    runs, responses = site()
    found = told_by(list(runs), count=0)
    chances = departures(found.switched.alternatives)
    weights = found.weights @ found.switched.departs
    # Three switches at most stand otherwise together, which takes a little away.
    assert weights == pytest.approx(chances, rel=0.35)
    assert found.settings == {}
    assert found.log_steps == pytest.approx([one.log_s for one in responses])


@settings(max_examples=5, deadline=None)
@given(st.permutations(range(6)), st.floats(0.8, 1.25))
def test_more_rows_never_widen_the_band(order: list[int], factor: float) -> None:
    """Beside noise: where no row lies astray, each one leaves less doubt of factors."""
    runs = planted(factor=factor)
    shuffled, responses = [runs[i] for i in order], [site()[1][i] for i in order]
    before = np.full(len(runs), np.inf)
    for count in range(len(runs) + 1):
        found = code_base(shuffled, responses, count, PROFILE)
        now = np.diag(found.times.covariance)
        assert (now <= before * (1 + 1e-6) + 1e-4).all()
        before = now


def test_the_site_is_calibrated_by_times_alone() -> None:
    runs = planted(factor=1.2)
    found = told_by(runs, count=3)
    truth = np.log([one.run.step_s or np.nan for one in runs])
    assert np.abs(found.log_steps - truth).max() < 0.06
    assert (np.abs(found.log_steps - truth) < 2 * found.spreads).all()


def test_out_of_memory_alone_tells_of_a_switch() -> None:
    """Plain attention needs what no card has: plans that ran out make it likely."""
    runs, responses = site()
    needs = [one.allocated_gib + one.overhead_gib for one in responses]
    assert max(needs) < 75
    ran, failed = ([measured(one, fits=fits) for one in runs] for fits in (True, False))
    plain = [
        told_by(each).probabilities["attention"]["plain"] for each in (ran, failed)
    ]
    assert plain[0] < 0.02 < plain[1]


def test_a_time_says_that_a_plan_fits() -> None:
    runs = [measured(one, step_time_s=1.0) for one in site()[0]]
    assert told_by(runs).probabilities["attention"]["plain"] < 0.02


OUTCOMES = st.fixed_dictionaries(
    {},
    optional={
        "step_time_s": st.none() | st.floats(1e-6, 1e12),
        "peak_memory_gb": st.none() | st.floats(1e-6, 1e12),
        "fits": st.none() | st.booleans(),
        "peak_memory_kind": st.sampled_from(["device", "allocated", "reserved"]),
    },
)


@settings(max_examples=15, deadline=None)
@given(st.lists(OUTCOMES, min_size=6, max_size=6))
def test_any_outcomes_leave_probabilities_and_finite_bands(
    outcomes: list[dict[str, object]],
) -> None:
    runs = [
        measured(one, **outcome)
        for one, outcome in zip(site()[0], outcomes, strict=True)
    ]
    found = told_by(runs)
    assert found.weights.sum() == pytest.approx(1)
    for settings_of in found.probabilities.values():
        assert sum(settings_of.values()) == pytest.approx(1)
    assert np.isfinite(found.log_steps).all()
    assert (np.isfinite(found.spreads) & (found.spreads > 0)).all()


def test_runs_that_disagree_change_nothing() -> None:
    """Some are 40 % slow, some as fast: none tells of its neighbour."""
    runs = [
        measured(one, step_time_s=float(np.exp(response.log_s + error)))
        for one, response, error in zip(
            *site(), [0.35, -0.35, 0.02, -0.02, 0.35, -0.35], strict=True
        )
    ]
    found = told_by(runs)
    assert found.left_out is not None
    assert found.left_out.after > found.left_out.before
    assert not found.helps
    assert found.settings == {}
    assert found.log_steps == pytest.approx([one.log_s for one in site()[1]])
    agreeing = told_by(planted(factor=1.2))
    assert agreeing.helps
    assert agreeing.left_out is not None
    assert agreeing.left_out.after < agreeing.left_out.before / 2
