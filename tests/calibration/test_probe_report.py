"""Probes are plans that can be launched, and the runs to fill in are read back."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from meshwright.calibration.probe_report import TEMPLATE
from meshwright.cost.profile import load_profile
from meshwright.evidence.price import price_run
from meshwright.evidence.runs import RunConfig, read_runs
from meshwright.frameworks.base.switches import SWITCHES
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


SAID_AS = {"context_exchange": "cp_comm_type", "tuned": None}


def test_the_template_is_read_and_says_nothing_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "runs.yaml"
    assert run("calibrate", "--template", "-o", str(path)).code == 0
    assert path.read_text() == TEMPLATE
    first, second = read_runs(path)
    assert (first.spec, second.spec) == ("llama2-13b-8xa100", None)
    assert {first.step_s, second.step_s} == {None}


def test_every_switch_is_a_field_of_runs_and_is_in_the_template() -> None:
    config = yaml.safe_load(TEMPLATE)[1]["config"]
    for switch in SWITCHES:
        field = SAID_AS.get(switch.field, switch.field)
        assert field is None or (field in RunConfig.model_fields and field in config)


def test_neither_runs_nor_template_is_bad_input() -> None:
    result = run("calibrate")
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr == (
        "error: calibrate: expected RUNS, or SPEC and LOG, with --output; or "
        "--template\n"
    )


def test_the_help_has_the_fields_of_runs() -> None:
    shown = run("calibrate", "--help").stdout
    for word in ("step_time_s", "peak_memory_gb", "fits", "loss_chunks", "--template"):
        assert word in shown
