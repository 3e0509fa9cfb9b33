"""Commands on specs that leave machines or sequences open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.command import run

SPEC = """\
model: gpt-1.3b
cluster: {topology: dgx-a100, count: {min: 1, max: 2}}
training: {seq_len: 2048, global_batch: [24, 32]}
pins: {recompute: none, tp: 1}
objective: [usd_per_mtoken, simplest]
run: {gpu_hour_price: 2}
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    """Return the path of a spec with open machines and sequences."""
    path = tmp_path / "open.yaml"
    path.write_text(SPEC, encoding="utf-8")
    return str(path)


def test_solve_tells_the_choice_and_how_the_others_were_closed(spec: str) -> None:
    result = run("solve", spec, "--no-by-kind", "--verbose")
    assert result.code == 0
    assert "Left open: cluster.count and training.global_batch" in result.stdout
    assert "Best by usd_per_mtoken: 1 x dgx-a100 (8 GPUs), batch 32" in result.stdout
    assert "Of 4 choices, by usd_per_mtoken: " in result.stdout


def test_json_has_every_choice(spec: str) -> None:
    result = run("solve", spec, "--no-by-kind", "--format", "json")
    told = json.loads(result.stdout)["open"]
    assert told["levels"] == ["usd_per_mtoken"]
    assert told["chosen"]["global_batch"] == 32
    assert [one["number"] for one in told["choices"]] == [0, 1, 2, 3]
    closed = told["closed"]
    assert sum(closed.values()) == 4
    assert closed["undecided"] == 0


def test_files_are_written_for_the_numbers_chosen(spec: str, tmp_path: Path) -> None:
    out = {name: tmp_path / name for name in ("ranks", "files", "a.html", "a.json")}
    written = ("--ranks", out["ranks"], "--export", out["files"])
    pages = ("--report", out["a.html"], "--trace", out["a.json"])
    result = run("solve", spec, "--no-by-kind", *map(str, (*written, *pages)))
    assert result.code == 0, result.stderr
    assert "--global-batch-size 32" in (out["files"] / "launch.sh").read_text()
    assert len((out["ranks"] / "ranks.csv").read_text().splitlines()) == 9
    assert out["a.html"].stat().st_size > 1_000
    assert out["a.json"].stat().st_size > 1_000
    exported = run("export", spec, "-o", str(tmp_path / "again"))
    assert exported.code == 0, exported.stderr
    again = (tmp_path / "again" / "launch.sh").read_text()
    assert again == (out["files"] / "launch.sh").read_text()


def test_explain_tells_the_next_values(spec: str) -> None:
    result = run("explain", spec)
    assert result.code == 0
    assert "Open numbers: the next values" in result.stdout
    assert "cluster.count" in result.stdout


def test_options_of_the_command_line_close_what_is_open(spec: str) -> None:
    result = run("solve", spec, "--count", "2", "--batch", "24", "--no-by-kind")
    assert result.code == 0
    assert "Left open" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("compare", "SPEC"), "cluster.count: {'min': 1, 'max': 2} leaves it open"),
        (("search", "SPEC"), "cluster.count: {'min': 1, 'max': 2} leaves it open"),
        (("simulate", "SPEC"), "cluster.count: {'min': 1, 'max': 2} leaves it open"),
        (("explain", "SPEC", "--plan", "tp=1"), "--plan: for fixed numbers"),
        (("explain", "SPEC", "--collectives"), "--collectives: for fixed numbers"),
        (("solve", "SPEC", "--ideal"), "--ideal: for fixed numbers"),
        (("export", "SPEC", "--plan", "tp=1", "-o", "x"), "leaves it open"),
    ],
)
def test_commands_about_one_plan_refuse_open_numbers(
    spec: str, arguments: tuple[str, ...], told: str
) -> None:
    named = [spec if argument == "SPEC" else argument for argument in arguments]
    result = run(*named)
    assert (result.code, result.stdout) == (2, "")
    assert told in result.stderr
