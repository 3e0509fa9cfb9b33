"""Calibration: it finds what made the runs, does no harm, and says what it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.check import check
from meshwright.cost.efficiency import Efficiency
from meshwright.errors import SpecError
from meshwright.evidence.calibrate import NAMES, calibrate, efficiency_at
from meshwright.evidence.price import Priced, price_run
from meshwright.evidence.run import Run
from meshwright.job import make_job
from meshwright.profile import Fitted, load_profile
from tests.command import run as run_command
from tests.test_evidence import row

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


def only(priced: list[Priced]) -> Fitted:
    (fitted,) = calibrate(priced).profiles
    return fitted


def test_the_efficiency_that_made_the_runs_is_found() -> None:
    fitted = only(made_with(TRUTH))
    assert fitted.mape_before > 0.2
    assert fitted.mape_fitted < 0.01
    assert fitted.mape_cross_validated is not None
    assert fitted.mape_cross_validated < fitted.mape_before / 2
    assert fitted.efficiency.dispatch_s == pytest.approx(TRUTH.dispatch_s, rel=0.05)
    assert fitted.efficiency.gemm == pytest.approx(TRUTH.gemm, rel=0.1)


def test_runs_that_agree_with_the_defaults_leave_them_alone() -> None:
    fitted = only(made_with(Efficiency()))
    assert fitted.mape_fitted < 1e-6
    default = Efficiency().model_dump()
    assert fitted.efficiency.model_dump() == pytest.approx(default, rel=1e-4)


def test_three_runs_already_help() -> None:
    runs = made_with(TRUTH, widths=(4096,))
    fitted = only(runs[:3])
    assert fitted.rows == 3
    assert fitted.mape_cross_validated is None
    errors = [
        abs(
            check(make_job(r.spec, fitted.efficiency), r.plan).step_s
            / (r.run.step_s or 0)
            - 1
        )
        for r in runs[3:]
    ]
    before = [abs(r.step_s / (r.run.step_s or 0) - 1) for r in runs[3:]]
    assert sum(errors) < sum(before) / 2


def test_what_the_runs_do_not_tell_stays_at_its_default_and_is_named() -> None:
    fitted = only(made_with(TRUTH))
    # No run gathers weights, none has fused attention, none is cut by one launch.
    assert {"gather_overlap", "attention"} <= set(fitted.unidentified)
    assert fitted.efficiency.gather_overlap == Efficiency().gather_overlap


def test_parameters_stay_within_their_limits() -> None:
    import numpy as np

    for far in (-50.0, 50.0):
        fitted = efficiency_at(np.full(len(NAMES), far))
        assert Efficiency.model_validate(fitted.model_dump()) == fitted


def test_a_profile_is_written_read_and_used(tmp_path: Path) -> None:
    runs = Path(__file__).parents[1] / "benchmarks" / "runs" / "narayanan21.yaml"
    profile = tmp_path / "profile.yaml"
    result = run_command("calibrate", str(runs), "-o", str(profile))
    assert result.code == 0
    assert "Mean error of step time" in result.stdout
    fits = {(f.gpu, f.framework): f for f in load_profile(profile).profiles}
    fitted = fits["a100-sxm-80gb", "megatron"]
    assert fitted.sources == {"narayanan21": fitted.rows}
    assert fitted.mape_fitted < fitted.mape_before
    spec = "gpt3-175b-1024xa100"
    default = run_command("solve", spec)
    calibrated = run_command("solve", spec, "--profile", str(profile))
    assert calibrated.code == 0
    assert calibrated.stdout != default.stdout
    judged = run_command("evidence", str(runs), "--profile", str(profile))
    assert judged.code == 0


def test_a_profile_for_other_machines_is_refused(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(
        "profiles:\n"
        "- {gpu: h100-sxm-80gb, framework: fsdp, efficiency: {gemm: 0.7}, rows: 1,\n"
        "   sources: {a: 1}, mape_before: 0.2, mape_fitted: 0.1}\n"
    )
    result = run_command("solve", "gpt3-175b-1024xa100", "--profile", str(profile))
    assert result.code == 2
    assert "it has h100-sxm-80gb with fsdp" in result.stderr


@pytest.mark.parametrize("text", ["profiles: 1\n", "a: 1\n", "profiles:\n- {gpu: x}\n"])
def test_a_broken_profile_is_refused_by_line(text: str, tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(text)
    with pytest.raises(SpecError, match=r"profile\.yaml:\d"):
        load_profile(profile)
