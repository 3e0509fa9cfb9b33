"""The template is a good file of runs, and names every switch that a run can say."""

from __future__ import annotations

from pathlib import Path

import yaml

from meshwright.calibration.probe_report import TEMPLATE
from meshwright.evidence.runs import RunConfig, read_runs
from meshwright.frameworks.base.switches import SWITCHES
from tests.helpers.command import run

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
        "error: calibrate: expected RUNS and --output, or --template\n"
    )


def test_the_help_has_the_fields_of_runs() -> None:
    shown = run("calibrate", "--help").stdout
    for word in ("step_time_s", "peak_memory_gb", "fits", "loss_chunks", "--template"):
        assert word in shown
