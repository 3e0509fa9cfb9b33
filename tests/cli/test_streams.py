"""Standard streams that are full, closed, or that nobody reads."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import typer

import meshwright
from meshwright.cli import app, main
from tests.calibration.test_calibrate import MILLISECONDS
from tests.helpers.command import run, unwrapped

FULL = "/dev/full"
SPEC = "gpt2-xl-2xh100-nvlink"
DATA = Path(__file__).parents[1] / "data"
SPECS = Path(__file__).parents[2] / "specs"

PRINTING = {
    "solve": [SPEC],
    "explain": [SPEC, "--plan", "tp=1,zero=0"],
    "compare": [SPEC, "--plan", "tp=1"],
    "compare-trace": ["trace.json", str(DATA / "kineto-gpu.json")],
    "simulate": [SPEC, "--plan", "tp=1", "--samples", "2"],
    "search": [SPEC, "--workers", "1"],
    "export": [SPEC, "-o", "exported"],
    "gemm": ["4096", "4096", "4096", "--gpu", "h100-sxm-80gb"],
    "topology": ["dgx-h100"],
    "schema": ["spec"],
    "evidence": ["runs.yaml"],
    "calibrate": ["--template"],
    "probe": [SPEC, "-k", "1", "-o", "probes"],
    "import": [str(DATA / "pretrain.sh")],
    "check": [str(SPECS / "llama3-8b-2x4090-pcie.yaml")],  # which does not fit
    "diagnose": [str(DATA / "slow_run.log"), "--cluster", "dgx-h100"],
    "mcp": ["--skill"],
    "verify": ["certificate.json.gz"],
}
"""By command, words with which it prints."""

pytestmark = [
    pytest.mark.skipif(
        not Path(FULL).exists(), reason="this system has no device that is always full"
    ),
    pytest.mark.usefixtures("kept_processes"),
]


def left_full(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Return how a command leaves whose stdout is full, and what it says."""
    with (
        open(FULL, "w", encoding="utf-8") as full,
        mock.patch("sys.argv", ["meshwright", *words]),
        mock.patch("sys.stdout", full),
        mock.patch("meshwright.cli.output.DELAY_S", 3_600.0),
        pytest.raises(SystemExit) as left,
    ):
        main()
    return int(str(left.value.code)), capsys.readouterr().err


def test_every_command_is_tried() -> None:
    names = {*typer.main.get_group(app).commands}
    assert {*PRINTING} == names - {"init", "ui"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "probe"))
        for name in [*PRINTING, "--help", "--version"]
    ],
)
def test_a_full_device_is_no_fault_of_ours(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.yaml").write_text(MILLISECONDS)
    if name == "compare-trace":
        assert run("solve", SPEC, "--trace", "trace.json").code == 0
    if name == "verify":
        assert run("solve", SPEC, "--certificate", "certificate.json.gz").code == 0
    code, told = left_full(capsys, name, *PRINTING.get(name, ()))
    assert code == 2
    assert told.endswith("error: standard output: no space left on device\n")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["search", SPEC, "--workers", "1", "-o", "rows.csv"], "rows.csv"),
        (["search", SPEC, "--workers", "1", "-o", "rows.json"], "rows.json"),
        pytest.param(
            ["search", SPEC, "--workers", "1", "-o", "rows.html"],
            "rows.html",
            marks=pytest.mark.slow,
        ),
        (["solve", SPEC, "--report", "page.html"], "page.html"),
        (["solve", SPEC, "--trace", "step.json"], "step.json"),
        (["schema", "spec", "-o", "schema.json"], "schema.json"),
        (["calibrate", "--template", "-o", "runs.yaml"], "runs.yaml"),
    ],
)
def test_a_file_on_a_full_device_is_named(
    words: list[str],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).symlink_to(FULL)
    done = run(*words)
    assert done.code == 2
    assert f"{name}: no space left on device" in done.stderr


PRINTS = """
from meshwright.__main__ import main
import sys
sys.argv = ["meshwright", "topology", "dgx-h100"]
main()
"""


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(meshwright.__file__).parents[1]),
}


@pytest.mark.parametrize(
    ("redirection", "code"),
    [(f">{FULL}", 2), (f"2>{FULL}", 0), (">&-", 0), ("<&- >&- 2>&-", 0)],
)
def test_processes_leave_as_they_should(redirection: str, code: int) -> None:
    """Python flushes once more at the end, which must not change the exit code."""
    words = [*python(PRINTS)]
    shell = ["bash", "-c", f'"$@" {redirection}', "bash", *words]
    done = subprocess.run(shell, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_nobody_reads_on() -> None:
    shell = '"$@" | true; exit ${PIPESTATUS[0]}'
    words = ["bash", "-c", shell, "bash", *python(PRINTS)]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")


STARTS = """
import os, signal
from meshwright.__main__ import main
listen = signal.signal
def started(*of):
    signal.signal = listen
    before = listen(*of)
    os.write(1, b"started\\n")
    return before
signal.signal = started
main()
"""
"""It says so once it listens to Ctrl-C: a loaded machine may take long to that."""


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.25, 0.4])
def test_ctrl_c_shows_no_traceback_from_the_start_on(delay_s: float) -> None:
    # A job of a shell may ignore it from the start.
    code = "import signal; signal.signal(2, signal.default_int_handler)\n" + STARTS
    with subprocess.Popen(
        python(code, "solve", SPEC),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode in (3, 130), stderr
    assert "Traceback" not in stderr
    assert "Exception ignored" not in stderr


def test_ctrl_c_while_a_class_is_made_is_no_fault() -> None:
    code = """
import sys
from unittest import mock
from meshwright import cli
from meshwright.__main__ import main
class Interrupts:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt
def makes_a_class():
    type("Made", (), {"field": Interrupts()})
with mock.patch.object(cli, "app", makes_a_class):
    main()
"""
    done = subprocess.run(python(code), capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (130, "")


def test_ctrl_c_that_the_shell_ignores_is_ignored() -> None:
    code = "import signal; signal.signal(2, signal.SIG_IGN)\n" + STARTS
    with subprocess.Popen(
        python(code, "topology", "dgx-h100"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("solve", SPEC, "-o", "typo/answer.txt"),
        ("solve", SPEC, "--report", "typo/answer.html"),
        ("explain", SPEC, "-o", "typo/answer.txt"),
        ("init", "-o", "typo/spec.yaml"),
        ("search", "context-length", "-o", "typo/rows.csv"),
        ("search", "context-length", "--store", "typo/rows.sqlite"),
        ("topology", "dgx-h100", "--plot", "typo/drawing.svg"),
    ],
    ids=" ".join,
)
def test_the_folder_of_a_file_is_not_made(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert result.code == 2
    assert "there is no folder typo; make it first" in unwrapped(result.stderr)
    assert not Path("typo").exists()
