"""Fits of efficiencies to runs, and the profiles made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from meshwright.check.check import check
from meshwright.cost.job import Efficiency, make_job
from meshwright.cost.profile import Measured, Profile, class_on, load_profile
from meshwright.errors import SpecError
from meshwright.evidence.fit import Fit, calibrate, minimum
from meshwright.evidence.price import Priced, price_run
from meshwright.evidence.runs import Run
from meshwright.evidence.timed_runs import NAMES, Tangents, TimedRuns, times_exp
from meshwright.plans.columns import Floats
from tests.evidence.test_runs import row
from tests.helpers.command import run as run_command

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


TRUTH = Efficiency(gemm=0.6, memory=0.5, link=0.5, dispatch_s=1e-3)
LAYOUTS = [(1, 1, 16), (2, 1, 8), (2, 2, 4), (8, 1, 2), (1, 2, 8), (4, 2, 2)]


def made_with(
    truth: Efficiency, widths: tuple[int, ...] = (1024, 4096)
) -> list[Priced]:
    """Return runs whose measured times are what the model says at an efficiency."""
    runs = []
    for width in widths:
        for tp, pp, dp in LAYOUTS:
            data = row(id=f"{width}-{tp}-{pp}-{dp}")
            data["model"] |= {"d_model": width, "d_ff": 4 * width}
            data["config"] |= {"tp": tp, "pp": pp, "dp": dp, "zero_stage": int(dp > 1)}
            guess = price_run(Run.model_validate(data))
            step_s = check(make_job(guess.spec, truth), guess.plan).step_s
            data["measured"] = {"step_time_s": step_s}
            runs.append(price_run(Run.model_validate(data)))
    return runs


def only(priced: list[Priced]) -> tuple[Measured, Efficiency]:
    profile = calibrate(priced)
    (measured,) = profile.measured
    return measured, profile.efficiency(priced[0].spec)


def test_the_efficiency_that_made_the_runs_is_found() -> None:
    measured, efficiency = only(made_with(TRUTH))
    assert measured.mape_before > 0.2
    assert measured.mape_fitted < measured.mape_before / 5
    assert measured.left_out is not None
    assert measured.left_out.mape < measured.mape_before / 2
    assert efficiency.dispatch_s == pytest.approx(TRUTH.dispatch_s, rel=0.2)
    assert efficiency.gemm == pytest.approx(TRUTH.gemm, rel=0.15)


def test_runs_that_agree_with_the_defaults_leave_them_alone() -> None:
    measured, efficiency = only(made_with(Efficiency()))
    assert measured.mape_fitted < 1e-6
    default = Efficiency().model_dump()
    assert efficiency.model_dump() == pytest.approx(default, rel=1e-4)


def test_three_runs_already_help() -> None:
    """Their host starts a layer of Megatron, 4.5 dispatches, in 1 ms: hardly a wait.

    Three runs that do not wait for the host cannot tell of it.
    """
    truth = TRUTH.model_copy(update={"dispatch_s": 1e-3 / 4.5})
    runs = made_with(truth, widths=(4096,))
    measured, efficiency = only(runs[:3])
    assert measured.rows == 3
    assert measured.left_out is None
    errors = [
        abs(
            check(make_job(r.spec, efficiency), r.plan).step_s / (r.run.step_s or 0) - 1
        )
        for r in runs[3:]
    ]
    before = [abs(r.step_s / (r.run.step_s or 0) - 1) for r in runs[3:]]
    assert sum(errors) < sum(before) / 4


def test_what_the_runs_do_not_tell_stays_at_its_default_and_is_named() -> None:
    measured, efficiency = only(made_with(TRUTH))
    # No run gathers weights, none has fused attention, none is cut by one launch.
    assert {"gather_overlap", "attention"} <= set(measured.unidentified)
    assert efficiency.gather_overlap == Efficiency().gather_overlap


@pytest.mark.parametrize("far", [1e-9, 1e9])
def test_parameters_stay_within_their_limits(far: float) -> None:
    scaled = Efficiency().times(dict.fromkeys(Efficiency.model_fields, far))
    assert Efficiency.model_validate(scaled.model_dump()) == scaled


def test_factors_of_gpu_and_framework_multiply() -> None:
    """0.9 x 0.5 x 0.8: a pair that was never measured learns from both."""
    profile = Profile(
        gpus={"a100-sxm-80gb": {"gemm": 0.5}}, kernels={"fsdp": {"gemm": 0.8}}
    )
    start = Efficiency().gemm
    fsdp = class_on("a100-sxm-80gb", "fsdp")
    both = profile.efficiency_of(fsdp, "vendor").gemm
    assert both == pytest.approx(start * 0.5 * 0.8)
    unknown = class_on("unknown", "megatron")
    assert profile.efficiency_of(unknown, "vendor") == Efficiency()


def test_a_fit_starts_from_the_profile_it_is_given() -> None:
    """Runs made at the efficiency of a profile leave that profile as it is."""
    base = Profile(gpus={"a100-sxm-80gb": {"gemm": 0.7, "link": 0.6}})
    a100 = class_on("a100-sxm-80gb", "megatron")
    runs = made_with(base.efficiency_of(a100, "vendor"))
    fitted = calibrate(runs, base)
    assert fitted.gpus["a100-sxm-80gb"] == pytest.approx({"gemm": 0.7, "link": 0.6})


@pytest.mark.slow
def test_a_profile_is_written_read_and_used(tmp_path: Path) -> None:
    """Among runs that are slower than believed, one takes thirty times as long."""
    odd = runs_of("odd", times=30, framework="DeepSpeed ZeRO-2")[:1]
    slow = [*runs_of("one", times=1.3), *runs_of("two", times=1.2), *odd]
    runs, profile = tmp_path / "runs.yaml", tmp_path / "profile.yaml"
    runs.write_text(yaml.safe_dump([one.run.model_dump(mode="json") for one in slow]))
    doubted = run_command("calibrate", str(runs), "-o", str(profile))
    assert doubted.code == 2
    assert "deepspeed: runs are" in doubted.stderr
    assert not profile.exists()
    result = run_command("calibrate", str(runs), "-o", str(profile), "--force")
    assert result.code == 0, result.stderr
    assert "Mean error of step time" in result.stdout
    fits = {(f.gpu, f.framework): f for f in load_profile(str(profile)).measured}
    fitted = fits["a100-sxm-80gb", "megatron"]
    assert fitted.sources == {"one": 4, "two": 4}
    assert fitted.mape_fitted < fitted.mape_before
    words = ("solve", "llama3-70b-128xa100", "--no-by-kind")
    default = run_command(*words)
    calibrated = run_command(*words, "--profile", str(profile))
    assert calibrated.code == 0
    assert calibrated.stdout != default.stdout
    judged = run_command("evidence", str(runs), "--profile", str(profile))
    assert judged.code == 0


@pytest.mark.parametrize("text", ["gpus: 1\n", "a: 1\n", "measured:\n- {gpu: x}\n"])
def test_a_broken_profile_is_refused_by_line(text: str, tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(text)
    with pytest.raises(SpecError, match=r"profile\.yaml:\d"):
        load_profile(str(profile))
