"""The command line: what it prints where, and how it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright import __version__
from meshwright.loading.load import load_spec
from meshwright.spec.plan_fields import AXES
from tests.helpers.command import ran, run, unwrapped

FITS = "gpt2-xl-2xh100-nvlink"
FITS_NOT = "llama3-8b-2x3090-nvlink"


def test_a_table_answers_on_stdout_and_nothing_else_is_said() -> None:
    result = ran("solve", FITS)
    assert (result.code, result.stderr) == (0, "")
    assert unwrapped(result.stdout).startswith(load_spec(FITS).title)
    assert "Proven: none of" in result.stdout
    assert result.stdout.endswith("\n")
    assert not result.stdout.endswith("\n\n")
    assert "\x1b" not in result.stdout


def test_json_is_one_document_with_plan_bound_and_gap() -> None:
    result = ran("solve", FITS, "--format", "json")
    assert (result.code, result.stderr) == (0, "")
    answer = json.loads(result.stdout)
    plan = answer["plan"]
    degrees = [plan[axis] for axis in AXES]
    assert (answer["status"], answer["gap"], answer["gpus"]) == ("optimal", 0, 2)
    assert sorted(degrees) == [1, 1, 1, 1, 2]
    assert answer["bound_s"] == pytest.approx(
        answer.get("fastest", answer)["step_s"], rel=1e-6
    )
    assert answer["step_s"] <= 1.02 * answer["bound_s"]


def test_markdown_has_headings_and_tables() -> None:
    result = ran("solve", FITS, "--format", "markdown")
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout.startswith("### ")
    assert "| --- |" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("form", ["table", "json", "markdown"])
def test_an_output_file_holds_what_stdout_would_have(form: str, tmp_path: Path) -> None:
    path = tmp_path / "answer"
    shown = ran("solve", FITS, "--format", form)
    written = run("solve", FITS, "--format", form, "-o", str(path))
    assert (written.code, written.stdout, written.stderr) == (0, "", "")
    assert path.read_text(encoding="utf-8") == shown.stdout


def test_a_spec_that_fits_nowhere_leaves_with_1_and_the_nearest_miss() -> None:
    result = ran("solve", FITS_NOT)
    assert (result.code, result.stderr) == (1, "")
    assert "No plan fits" in result.stdout
    assert "GiB" in result.stdout
    answer = json.loads(ran("solve", FITS_NOT, "--format", "json").stdout)
    assert answer["status"] == "infeasible"
    assert answer["near_miss"]["broken_rules"][0]["rule"] == "memory"
    assert "memory" in [rule["rule"] for rule in answer["conflict"]["rules"]]
    assert unwrapped(answer["repair"]["sentence"]) in unwrapped(result.stdout)


def test_a_bad_spec_leaves_with_2_and_says_so_on_stderr_alone() -> None:
    result = run("solve", "llama3-8b-2xh100-nvlnk")
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: 'llama3-8b-2xh100-nvlnk' is neither a file")
    assert "did you mean llama3-8b-2xh100-nvlink" in result.stderr


def test_a_spec_is_found_by_path_as_by_name(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "model: gpt2-xl\ncluster: h100-nvlink-2\nframework: deepspeed\n"
        "training: {seq_len: 1024, global_batch: 512}\n"
    )
    assert run("solve", str(path), "-v") == ran("solve", FITS, "-v")


def test_a_pin_changes_the_plan() -> None:
    result = run("solve", FITS, "--pin", "tp=1", "--pin", "pp=2", "--format", "json")
    plan = json.loads(result.stdout)["plan"]
    assert (result.code, plan["tp"], plan["pp"]) == (0, 1, 2)


def test_top_shows_that_many_plans_best_first() -> None:
    answer = json.loads(ran("solve", FITS, "--top", "3", "--format", "json").stdout)
    times = [answer["step_s"], *(other["step_s"] for other in answer["others"])]
    assert len(times) == 3
    assert times == sorted(times)
    assert ran("solve", FITS, "--top", "3").code == 0


def test_by_kind_is_shown_unless_it_is_turned_off() -> None:
    asked = run("solve", FITS, "--by-kind", "--format", "json")
    unasked = ran("solve", FITS, "--format", "json")
    off = run("solve", FITS, "--no-by-kind", "--format", "json")
    kinds = [kind["kind"] for kind in json.loads(asked.stdout)["by_kind"]]
    assert sorted(kinds) == ["CP", "DP/ZeRO", "PP", "TP"]
    assert asked == unasked
    assert json.loads(off.stdout)["by_kind"] == []


@pytest.mark.parametrize("limit", ["0", "0.001", "1e9"])
def test_any_time_limit_gives_an_answer_or_says_that_there_is_none(limit: str) -> None:
    result = run("solve", FITS, "--time-limit", limit)
    assert result.code in {0, 3}
    assert result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("form", ["table", "json"])
def test_stdout_is_the_same_for_any_number_of_workers(form: str) -> None:
    results = [
        run("solve", FITS, "--workers", workers, "--format", form)
        for workers in ("1", "2", "8")
    ]
    assert results[0].code == 0
    assert results[1:] == results[:1] * 2


def test_stdout_is_the_same_twice() -> None:
    assert run("solve", FITS, "--top", "3") == ran("solve", FITS, "--top", "3")


def test_the_version_is_one_line() -> None:
    assert run("--version") == (0, f"meshwright {__version__}\n", "")


def test_an_option_cut_short_is_named_as_it_is() -> None:
    done = run("solve", "--seq", "2k")
    assert done.code == 2
    assert "--seq-len" in done.stderr
    assert "--seed" not in done.stderr


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_every_command(option: str) -> None:
    from meshwright.cli import app

    result = run(option)
    assert (result.code, result.stderr) == (0, "")
    names = [
        command.name or command.callback.__name__.replace("_", "-")
        for command in app.registered_commands
        if command.callback is not None
    ]
    assert "solve" in names
    assert all(name in result.stdout for name in names)


def test_help_for_a_command_names_its_options() -> None:
    result = run("solve", "--help")
    assert (result.code, result.stderr) == (0, "")
    for option in ("--pin", "--top", "--by-kind", "--time-limit", "--format"):
        assert option in result.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["solve", FITS, "--tops", "3"], "--tops"),
        (["solve"], "SPEC"),
        (["solv", FITS], "solv"),
        (["solve", FITS, "another"], "another"),
    ],
)
def test_a_command_line_that_is_not_understood_leaves_with_2(
    arguments: list[str], named: str
) -> None:
    result = run(*arguments)
    assert (result.code, result.stdout) == (2, "")
    assert named.lower() in result.stderr.lower()
    assert "Traceback" not in result.stderr


def test_progress_is_announced_only_once_an_answer_is_late(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshwright.cli import output

    monkeypatch.setattr(output, "DELAY_S", 3_600.0)
    with output.Progress() as silent:
        silent.say("first")
        assert capsys.readouterr().err == ""
        silent._start()
        silent.say("second")
    silent._start()
    assert capsys.readouterr() == ("", "first\nsecond\n")


LONG_NAME = "x" * 5_000


@pytest.mark.parametrize(
    "words",
    [
        ["solve", LONG_NAME],
        ["solve", FITS, "-o", LONG_NAME],
        ["solve", FITS, "--ranks", LONG_NAME],
        ["solve", FITS, "--profile", LONG_NAME],
        ["solve", FITS, "--pin", LONG_NAME],
        ["solve", FITS, "--pin", "tp=" + "9" * 5_000],
        ["solve", FITS, "--seed", str(2**31)],
        ["explain", FITS, "--plan", LONG_NAME],
        ["explain", FITS, "--plan", "," * 100_000],
        ["compare", FITS, "--vary", f"levels.{'9' * 5_000}=1:2"],
        ["compare", FITS, "--vary", LONG_NAME],
        ["search", LONG_NAME],
        ["search", "[" + LONG_NAME],
        ["search", FITS, "--store", LONG_NAME],
        ["search", FITS, "--seed", str(2**31)],
        ["search", FITS, "--best", LONG_NAME],
        ["topology", LONG_NAME],
        ["evidence", LONG_NAME],
        ["calibrate", LONG_NAME, "-o", "profile.yaml"],
        ["import", LONG_NAME, "file"],
        ["import", "hostfile", LONG_NAME],
        ["import", "nccl_tests", LONG_NAME, "--onto", "dgx-a100", "--ranks", "9" * 30],
        ["gemm", "8", "8", "8", "--vram", LONG_NAME],
        ["gemm", "8", "8", "8", "--gpu", LONG_NAME],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_no_option_is_too_long_to_be_refused_in_a_few_lines(words: list[str]) -> None:
    result = run(*words)
    assert result.code == 2, result.stderr[-500:]
    assert "Traceback" not in result.stderr
    assert len(result.stderr) < 2_100


def test_a_plan_of_endless_text_is_refused_at_once() -> None:
    result = run("explain", FITS, "--plan", "tp=1," * 200_000)
    assert result.code == 2
    assert "--plan: 1,000,000 characters; expected a file, or at most" in result.stderr
