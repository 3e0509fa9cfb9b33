"""Probes are plans that can be launched, and what they tell is read back."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from meshwright.cost.profile import load_profile
from meshwright.evidence.price import price_run
from meshwright.evidence.runs import read_runs
from tests.helpers.command import run

SPEC = "gpt-1.3b-2xh100-nvlink"


@pytest.mark.slow
def test_probes_are_launched_measured_and_calibrated(tmp_path: Path) -> None:
    result = run("probe", SPEC, "-k", "2", "-o", str(tmp_path))
    assert result.code == 0, result.stderr
    assert "To launch them" in result.stdout
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"spec.yaml", "probe-1.yaml", "probe-2.yaml", "runs.yaml"}
    written = tmp_path / "launch"
    written.mkdir()
    spec, plan = str(tmp_path / "spec.yaml"), str(tmp_path / "probe-1.yaml")
    exported = run("export", spec, "--plan", plan, "-o", str(written))
    assert exported.code == 0, exported.stderr
    comment = Path(plan).read_text().splitlines()[0]
    assert exported.stdout.splitlines()[0] == comment.replace("# ", "plan: ")
    assert any(written.iterdir())
    runs = tmp_path / "runs.yaml"
    data = yaml.safe_load(runs.read_text())
    priced = [price_run(run) for run in read_runs(runs)]
    assert str(priced[0].plan) == comment[2:]
    for entry, one in zip(data, priced, strict=True):
        entry["measured"] = {"step_time_s": 1.1 * one.step_s, "fits": True}
    runs.write_text(yaml.safe_dump(data))
    profile = tmp_path / "profile.yaml"
    found = run("calibrate", str(runs), "-o", str(profile))
    assert found.code == 0, found.stderr
    assert load_profile(str(profile)).measured[0].rows == 2
    assert run("solve", SPEC, "--profile", str(profile)).code == 0


def test_more_nodes_than_there_are_is_bad_input() -> None:
    result = run("probe", SPEC, "--nodes", "9")
    assert (result.code, result.stdout) == (2, "")
    assert "--nodes 9: expected 1 to 1" in result.stderr
