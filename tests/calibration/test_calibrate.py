"""A calibration as a whole: the profile predicts what the beliefs do, and says so."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from meshwright.calibration.calibrate import calibrate, calibration_sections
from meshwright.cost.profile import load_profile
from meshwright.evidence.price import price_runs
from meshwright.plans.simplicity import combination
from meshwright.report.tables import sections_as_text
from tests.calibration.synthetic import PROFILE, planted
from tests.helpers.command import run


@pytest.mark.slow
def test_the_profile_has_the_switch_and_predicts_as_was_believed() -> None:
    runs = [one.run for one in planted(("gradients", "bf16"), factor=1.1)]
    found = calibrate(runs, PROFILE)
    assert found.profile.switches == {"megatron": {"gradients": "bf16"}}
    (band,) = found.bands
    assert band.step_after < band.step_before / 2
    assert band.memory_after.sigma <= band.memory_before.sigma
    again, _ = price_runs(runs, found.profile)
    assert {one.spec.training.gradients for one in again} == {"bf16"}
    steps = np.log([one.step_s for one in again])
    believed = found.code_bases["megatron"].log_steps
    assert np.abs(steps - believed).max() < 0.06
    ran = found.profile.run_before["megatron"]
    assert ran == Counter(combination(one.spec, one.plan) for one in again)
    text = sections_as_text(calibration_sections(found))
    assert "training.gradients: bf16" in text
    assert "Nine in ten measurements" in text


@pytest.mark.slow
def test_runs_that_nothing_explains_leave_a_wide_band_and_are_doubted() -> None:
    found = calibrate([one.run for one in planted(factor=0.1)], PROFILE)
    (band,) = found.bands
    assert band.step_after > 0.4
    assert "Doubtful runs" in sections_as_text(calibration_sections(found))


MILLISECONDS = """\
- {id: a, source_id: ours, spec: llama2-13b-8xa100, plan: 'tp=4,pp=1,zero=1',
   measured: {step_time_s: 16000}}
- {id: b, source_id: ours, spec: llama2-13b-8xa100, plan: 'tp=8,pp=1,zero=1',
   measured: {step_time_s: 19300}}
"""


def test_milliseconds_for_seconds_are_refused(tmp_path: Path) -> None:
    runs, profile = tmp_path / "runs.yaml", tmp_path / "profile.yaml"
    runs.write_text(MILLISECONDS)
    words = ("calibrate", str(runs), "-o", str(profile))
    refused = run(*words)
    assert (refused.code, refused.stdout) == (2, "")
    assert "times (in seconds) those that ran? --force" in refused.stderr
    assert not profile.exists()
    forced = run(*words, "--force")
    assert forced.code == 0
    assert "Doubtful runs" in forced.stdout
    assert profile.exists()
    seconds = MILLISECONDS.replace("16000", "16").replace("19300", "19.3")
    runs.write_text(seconds)
    assert run(*words).code == 0
    runs.write_text(seconds.replace("19.3", "19.3, peak_memory_gb: 60000"))
    refused = run(*words)
    assert refused.code == 2
    assert "b: peak_memory_gb: 60000 is more than a a100" in refused.stderr


def test_a_template_that_is_not_filled_in_is_refused(tmp_path: Path) -> None:
    runs, profile = tmp_path / "runs.yaml", tmp_path / "profile.yaml"
    assert run("calibrate", "--template", "-o", str(runs)).code == 0
    result = run("calibrate", str(runs), "-o", str(profile))
    assert (result.code, result.stdout) == (2, "")
    assert "runs.yaml: no run is measured; expected step_time_s" in result.stderr
    assert not profile.exists()


def test_outcomes_alone_tell_nothing_of_step_times(tmp_path: Path) -> None:
    runs, profile = tmp_path / "runs.yaml", tmp_path / "profile.yaml"
    runs.write_text(
        "- {id: a, source_id: ours, spec: llama2-13b-8xa100, measured: {fits: false},\n"
        "   plan: 'tp=2,pp=1,zero=2,micro_batch=2,recompute=none,offload=none'}\n"
    )
    result = run("calibrate", str(runs), "-o", str(profile))
    assert result.code == 0
    assert "No run has a step time: efficiencies stay as they were." in result.stdout
    assert "Fitted parameters" not in result.stdout


def test_a_spec_that_says_a_switch_keeps_it() -> None:
    (one, *_) = planted()
    profile = PROFILE.model_copy(
        update={"switches": {"megatron": {"gradients": "bf16", "fused.norm": False}}}
    )
    assert profile.applied_to(one.spec, ()).training.gradients == "bf16"
    kept = profile.applied_to(one.spec, {"gradients"})
    assert kept.training.gradients == one.spec.training.gradients
    assert "norm" not in (kept.training.fused or ())


@pytest.mark.parametrize(
    "switches", ["{a: 1}", "{gradients: fp8}", "{compile: 1}", "{overlap.tp: 'on'}"]
)
def test_what_is_no_switch_is_refused_by_line(switches: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(f"switches:\n  megatron: {switches}\n")
    result = run("solve", "gpt-1.3b-2xh100-nvlink", "--profile", str(path))
    assert (result.code, result.stdout) == (2, "")
    assert "profile.yaml:" in result.stderr
    assert load_profile("unfitted").switches == {}
