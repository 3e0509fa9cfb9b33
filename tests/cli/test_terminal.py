"""What terminals show: nothing over 80 columns, colours only where they are seen."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cli import app
from meshwright.cli.output import TimeLeft, duration_text, screen, without_colour
from meshwright.report.tables import Lines, Section, Table, sections_as_text, wrapped
from tests.docs.pages import ROOT
from tests.helpers.command import run

FITS = "gpt2-xl-2xh100-nvlink"
DATA = ROOT / "tests/data"

SWEEP = """\
base:
  model: llama3-8b
  cluster: h100-nvlink-2
  training: {seq_len: 4096, global_batch: 32}
sweep:
  training.global_batch: [16, 32]
  training.seq_len: [4096]
"""

pytestmark = pytest.mark.usefixtures("kept_processes")

COMMANDS: dict[str, list[str]] = {
    "solve": ["solve", FITS, "--top", "3"],
    "solve: stages": ["solve", "llama2-13b-8xa100", "--pin", "pp=8", "--no-by-kind"],
    "solve: none fits": ["solve", "llama3-8b-2x4090-pcie"],
    "solve: serving": ["solve", "serve-llama3-8b-1xa100"],
    "solve: a run": ["solve", "mpt-30b-512xh100-90days"],
    "solve: --ideal": ["solve", FITS, "--ideal"],
    "explain": ["explain", FITS],
    "explain: a plan": ["explain", FITS, "--plan", "tp=1,zero=0", "--collectives"],
    "explain: none fits": ["explain", "llama3-8b-2x4090-pcie"],
    "explain: serving": ["explain", "serve-llama3-70b-2x4090-pcie"],
    "explain: rules": ["explain", "--rules", "torchtitan"],
    "compare": ["compare", FITS],
    "compare: plans": ["compare", "llama2-13b-8xa100", "--plan", "tp=8", "--plan",
                       "tp=1,pp=8"],
    "simulate": ["simulate", FITS, "--samples", "50", "--jitter", "0.05"],
    "topology": ["topology", "dgx-h100-pod"],
    "topology: a host": ["topology", "dgx-1v"],
    "gemm": ["gemm", "8192", "8192", "8192", "--gpu", "h100-sxm-80gb"],
    "evidence": ["evidence", str(ROOT / "benchmarks/runs/torchao.yaml")],
    "calibrate": ["calibrate", str(ROOT / "benchmarks/runs/torchao.yaml"), "-o",
                  "fitted.yaml"],
    "import": ["import", "nvidia_smi", str(DATA / "topo.txt"), "--gpu",
               "a100-sxm-80gb", "-o", "topology.yaml"],
    "export": ["export", FITS, "-o", "files"],
    "search": ["search", "sweep.yaml"],
    "search: to rent": ["search", "--model", "gpt2-xl", "--tokens", "10B", "--prices",
                        str(DATA / "prices.yaml"), "--seq-len", "1024", "--count",
                        "1,2"],
    "probe": ["probe", FITS, "-k", "2"],
    "compare-trace": ["compare-trace", "trace.json", str(DATA / "kineto-cpu.json")],
    "check": ["check", str(ROOT / "specs/llama3-8b-2x4090-pcie.yaml")],
    "diagnose": ["diagnose", str(DATA / "slow_run.log"), "--cluster", "dgx-h100"],
    "verify": ["verify", "certificate.json.gz"],
    "mcp": ["mcp", "--skill"],
}  # fmt: skip


def test_every_command_is_among_them() -> None:
    verbs = {
        registered_command.name or registered_command.callback.__name__
        for registered_command in app.registered_commands
        if registered_command.callback
    }
    # A schema is JSON, which no terminal folds; init asks, and ui serves until it ends.
    assert verbs - {"schema", "init", "ui"} == {words[0] for words in COMMANDS.values()}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_over_80_columns(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    if name == "compare-trace":
        assert run("solve", FITS, "--trace", "trace.json").code == 0
    if name == "verify":
        assert run("solve", FITS, "--certificate", "certificate.json.gz").code == 0
    result = run(*COMMANDS[name])
    assert result.code in {0, 1}, result.stderr
    assert result.stdout or name == "import"  # which prints data, and notes on it
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []


def test_the_verdict_of_compare_and_explain_is_in_the_first_three_lines() -> None:
    lines = run("compare", FITS).stdout.splitlines()
    assert "is the fastest of these plans:" in "".join(lines[:3])
    assert "more" in "".join(lines[:3])
    fits = run("explain", FITS, "--plan", "pp=2").stdout.splitlines()
    assert "Fits" in "".join(fits[:3])
    not_fits = run("explain", "llama3-8b-2x4090-pcie").stdout.splitlines()
    assert "No plan fits." in "".join(not_fits[:3])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    assert screen(Terminal()) == (90, True)
    assert screen(io.StringIO()) == (90, False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert screen(Terminal()) == (90, False)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert screen(Terminal()) == (90, False)
    monkeypatch.delenv("COLUMNS")
    assert screen(io.StringIO()) == (None, False)


@pytest.mark.parametrize(("asked", "width"), [("1", 40), ("80", 80), ("500", 120)])
def test_columns_are_those_asked_for_within_reason(
    asked: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", asked)
    assert screen(io.StringIO()).width == width


SECTIONS: list[Section] = [
    Lines("A title", ("one line",)),
    Table("A table", ("name", "value"), (("a", "1"), ("b", "2")), (0.25, 1.0)),
]


def test_colour_adds_nothing_but_codes() -> None:
    coloured = sections_as_text(SECTIONS, 80, True)
    assert "\x1b[1m" in coloured
    assert without_colour(coloured) == sections_as_text(SECTIONS, 80)


def test_terminals_draw_bars_and_files_do_not() -> None:
    assert "a  ████████████" in sections_as_text(SECTIONS, 80)
    assert "█" not in sections_as_text(SECTIONS)


words = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=60)


@given(st.lists(words, max_size=12), st.integers(40, 120), st.integers(0, 8))
def test_wrapping_keeps_all_and_fits(this: list[str], width: int, indent: int) -> None:
    line = " " * indent + " ".join(this)
    pieces = wrapped(line, width)
    assert all(len(piece) <= width for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(line.split())


cells = st.text(st.characters(categories=["L", "N"]), max_size=50)


@given(st.lists(st.lists(cells, min_size=4, max_size=4), min_size=1, max_size=5))
def test_any_table_fits_80_columns(rows: list[list[str]]) -> None:
    heading = ("name", "one", "two", "a longer name of a column")
    table = Table("T", heading, tuple((a, b, c, d) for a, b, c, d in rows))
    text = sections_as_text([table], 80)
    assert all(len(line) <= 80 for line in text.splitlines())
    shown = "".join(text.split())
    for row in rows:
        for cell in row:
            assert all(letter in shown for letter in cell)


@pytest.mark.parametrize(
    ("first", "shown"),
    [("43.3 ms", "saves 43.3 ms"), ("+2 %", "saves +2 %"), ("a", "a")],
)
def test_a_number_that_heads_a_row_has_its_name(first: str, shown: str) -> None:
    rows = ((first, "x" * 40, "y" * 40), ("b", "x" * 40, "y" * 40))
    table = Table("T", ("saves", "change", "option"), rows)
    assert sections_as_text([table], 80).splitlines()[1] == shown


def test_time_left_follows_the_rate() -> None:
    left = TimeLeft()
    assert left.seconds("0 of 40 cases", 10.0) is None
    assert left.seconds("10 of 40 cases", 15.0) == pytest.approx(15.0)
    assert left.seconds("20 of 40 cases", 20.0) == pytest.approx(10.0)
    assert left.seconds("proving", 21.0) is None
    assert left.seconds("1,000 of 1,000 groups of plans to bound", 30.0) is None
    assert left.seconds("250 of 1,000 groups of plans to bound", 33.0) == 1.0


def test_durations_are_short() -> None:
    told = [duration_text(s) for s in (0.2, 59.6, 600.0, 7_200.0)]
    assert told == ["1 s", "60 s", "10 min", "2.0 h"]


def completion(folder: Path, **environment: str) -> str:
    """Return what the installed script prints to a shell that asks it."""
    script = folder / "meshwright"
    script.write_text("from meshwright.__main__ import main\n\nmain()\n")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "solver"), **environment},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("asked", ["bash_source", "zsh_source", "source_fish"])
def test_shells_get_their_completion(asked: str, tmp_path: Path) -> None:
    shell = asked.replace("source", "").strip("_")
    assert f"complete_{shell}" in completion(tmp_path, _MESHWRIGHT_COMPLETE=asked)


def test_completion_names_commands(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "meshwright comp", "COMP_CWORD": "1"}
    told = completion(tmp_path, _MESHWRIGHT_COMPLETE="complete_bash", **words)
    assert told.split() == ["compare", "compare-trace"]
