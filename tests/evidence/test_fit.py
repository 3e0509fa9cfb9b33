"""The fit: its tangents are the model's, and no source sets what it shares."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.check.check import check
from meshwright.cost.job import Efficiency, make_job
from meshwright.cost.profile import Profile, class_on
from meshwright.evidence.fit import Fit, calibrate, minimum
from meshwright.evidence.price import Priced, price_run
from meshwright.evidence.runs import Run
from meshwright.evidence.timed_runs import NAMES, Tangents, TimedRuns, times_exp
from meshwright.plans.columns import Floats
from tests.evidence.test_runs import row

MEGATRON = class_on("a100-sxm-80gb", "megatron")
DEGREES = [(1, 1, 16), (2, 1, 8), (2, 2, 4), (4, 2, 2)]


def runs_of(source: str, times: float = 1.0, **changes: str) -> list[Priced]:
    """Return the runs of a source, slower than the defaults say by a factor."""
    result = []
    for tp, pp, dp in DEGREES:
        data = row(id=f"{source}-{tp}-{pp}", source_id=source)
        data["model"] |= {"d_model": 4096, "d_ff": 16384}
        data["config"] |= {"tp": tp, "pp": pp, "dp": dp, **changes}
        guess = price_run(Run.model_validate(data))
        data["measured"] = {"step_time_s": guess.step_s * times}
        result.append(price_run(Run.model_validate(data)))
    return result


def test_quadratic_losses_are_minimised_in_closed_form() -> None:
    slopes = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    measured = 1e-3 * np.array([1.0, 2.0, 3.0])

    def errors(x: Floats) -> tuple[Floats, Floats]:
        return slopes @ x - measured, slopes

    found = minimum(errors, np.full(3, 2.0), np.ones(2), np.zeros(2))
    left = 4 * slopes.T @ slopes + np.eye(2)
    assert found == pytest.approx(np.linalg.solve(left, 4 * slopes.T @ measured), 1e-3)


def test_an_outlier_pulls_no_harder_than_a_line() -> None:
    measured = np.array([0.0, 0.0, 0.0, 50.0])

    def errors(x: Floats) -> tuple[Floats, Floats]:
        return x[0] - measured, np.ones((4, 1))

    found = minimum(errors, np.ones(4), np.zeros(1), np.zeros(1))
    assert abs(found[0]) < 0.15


@pytest.mark.parametrize("log", [0.0, 0.01, -0.1, -0.3])
def test_times_near_a_tangent_are_those_of_the_model(log: float) -> None:
    cases = TimedRuns(runs_of("one"))
    tangents = Tangents(cases, {MEGATRON: Efficiency()})
    tangents.at({MEGATRON: np.zeros(len(NAMES))})
    place = log * np.array([n in ("gemm", "memory", "link") for n in NAMES])
    found, slopes = tangents.at({MEGATRON: place})
    exact = cases.log_steps({MEGATRON: times_exp(Efficiency(), place)})
    assert found == pytest.approx(exact, abs=1e-3)
    assert slopes[:, NAMES.index("gemm")].max() < 0


def test_one_slow_source_does_not_set_its_class() -> None:
    """Two sources are as the defaults say; the third keeps most of its 30 %."""
    sources = [*runs_of("one"), *runs_of("two"), *runs_of("slow", times=1.3)]
    fitted = Fit(TimedRuns(sources), Profile()).factors()
    errors = fitted.errors(TimedRuns(sources[:4]))
    assert np.abs(errors).max() < 0.08
    assert fitted.errors(TimedRuns(sources[-4:])).max() < -0.15


def test_users_are_slower_where_their_sources_are() -> None:
    vendors = [one for name in "abc" for one in runs_of(name, tuned="vendor")]
    users = [one for name in "xyz" for one in runs_of(name, times=1.25, tuned="user")]
    profile = calibrate([*vendors, *users])
    assert 1.15 < profile.user_time < 1.3
    assert profile.efficiency_of(MEGATRON, "vendor").gemm == pytest.approx(0.9, rel=0.1)


def test_users_take_longer_by_their_factor_and_run_the_same_plan() -> None:
    (run, *_) = runs_of("one")
    profile = Profile(user_time=1.2)
    steps = [
        check(
            make_job(run.spec, profile.efficiency_of(MEGATRON, tuned)), run.plan
        ).step_s
        for tuned in ("vendor", "user")
    ]
    assert steps[1] == pytest.approx(1.2 * steps[0])


def test_a_fit_does_no_harm_to_a_large_source() -> None:
    """Twelve exact runs stay within a point, whatever three slow sources say."""
    good = [one for _ in range(3) for one in runs_of("good")]
    slow = [one for name in "abc" for one in runs_of(name, times=1.3)]
    cases = TimedRuns([*good, *slow])
    errors = Fit(cases, Profile()).factors().errors(cases)
    assert np.abs(np.expm1(errors[: len(good)])).mean() < 0.011
