"""`meshwright search` as users run it: files, formats, exit codes, Ctrl-C."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwright.sweeps.cases import Row
from meshwright.sweeps.metrics import METRICS
from meshwright.sweeps.run_search import SearchProgress, SearchRun
from tests.helpers.command import Result
from tests.helpers.command import run as run_command
from tests.helpers.extent import gate
from tests.helpers.searches import ENVIRONMENT, changed, solved, written

pytestmark = pytest.mark.usefixtures("kept_processes")

FAST = ("--profile", "unfitted", "--workers", "1")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def search(text: str, *arguments: str) -> Result:
    return run_command("search", written(Path(), text), *FAST, *arguments)


def test_table_has_best_of_groups_and_front(tmp_path: Path) -> None:
    text = changed(
        "cluster.count: [1, 2]", "cluster.count: [1, 2]\n  framework: [fsdp]"
    )
    options = ("--group", "cluster.count", "--best", "step_s", "--front", "step_s,gpus")
    result = search(text, *options)
    assert result.code == 0
    assert "6 cases: 6 feasible, 0 infeasible" in result.stdout
    assert "Best step_s" in result.stdout
    assert "Front of step_s and gpus: 2" in result.stdout
    assert "note: results are in sweep.sqlite" in result.stderr
    assert (tmp_path / "sweep.sqlite").exists()


def test_every_format_says_the_same(tmp_path: Path) -> None:
    text = changed("[1, 2]", "[1]")
    table, again = search(text), search(text)
    assert table == again
    data = json.loads(search(text, "--format", "json").stdout)
    rows = [Row.model_validate(one) for one in data["rows"]]
    assert rows == solved(tmp_path, text, profile="unfitted")
    best = max(rows, key=lambda given: given.tokens_per_s_per_gpu or 0)
    assert data["best"] == {"all cases": best.key}
    assert data["counts"] == {"optimal": 3, "left": 0}
    markdown = search(text, "--format", "markdown").stdout
    assert best.plan is not None
    assert best.plan.brief in markdown
    assert markdown.startswith("### sweep")


def test_files_have_all_rows(tmp_path: Path) -> None:
    text = changed("memory_gib: 4,", "memory_gib: 3.2,")
    outputs = [word for kind in ("csv", "json") for word in ("-o", f"rows.{kind}")]
    assert search(text, *outputs).code == 0
    rows = solved(tmp_path, text, profile="unfitted")
    data = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert [Row.model_validate(one) for one in data] == rows
    lines = list(csv.DictReader(io.StringIO((tmp_path / "rows.csv").read_text())))
    assert len(lines) == 6
    for line, row in zip(lines, rows, strict=True):
        assert line["axis.training.seq_len"] == str(row.axes["training.seq_len"])
        assert line["status"] == row.status
        for name in METRICS:
            value = getattr(row, name)
            assert line[name] == ("" if value is None else str(value))
        assert line["plan.tp"] == ("" if row.plan is None else str(row.plan.tp))
        assert line["conflict"] == " ".join(row.conflict)


def test_parquet_has_all_rows(tmp_path: Path) -> None:
    reason = "columns are written by pyarrow: pip install 'meshwright[parquet]'"
    parquet = pytest.importorskip("pyarrow.parquet", reason=reason)
    assert search(changed("[1, 2]", "[1]"), "-o", "rows.parquet").code == 0
    table = parquet.read_table(tmp_path / "rows.parquet")
    rows = solved(tmp_path, changed("[1, 2]", "[1]"))
    assert table.column("step_s").to_pylist() == [row.step_s for row in rows]
    assert table.column("axis.training.seq_len").to_pylist() == [256, 512, 1024]


def test_page_has_every_row(tmp_path: Path) -> None:
    assert search(changed("[1, 2]", "[1]"), "-o", "page.html").code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for row in solved(tmp_path, changed("[1, 2]", "[1]")):
        assert row.name in page


def test_infeasible_cases_are_grouped_by_conflict() -> None:
    result = search(changed("memory_gib: 4,", "memory_gib: 0.05,"))
    assert result.code == 1
    assert "6 cases: 0 feasible, 6 infeasible" in result.stdout
    (line,) = [
        splitline
        for splitline in result.stdout.splitlines()
        if splitline.startswith("memory ")
    ]
    assert line.split()[1] == "6"


def test_cases_that_cannot_be_are_told_and_stop_nothing() -> None:
    text = changed("vocab: 8000}", "vocab: 8000, learned_positions: 512}")
    result = search(text)
    assert result.code == 0
    assert "6 cases: 4 feasible, 0 infeasible, 2 failed" in result.stdout
    assert "2 x " in result.stdout
    assert "1024 is above model.learned_positions" in result.stdout
    worse = search(text.replace("learned_positions: 512", "learned_positions: 2"))
    assert worse.code == 2


def test_no_resume_solves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    text = changed("[1, 2]", "[1]")
    solves: list[int] = []
    real = SearchRun.solve

    def count(run: SearchRun, pool: object) -> None:
        before = len(run.found)
        real(run, pool)  # type: ignore[arg-type]
        solves.append(len(run.found) - before)

    monkeypatch.setattr(SearchRun, "solve", count)
    for extra in ((), (), ("--no-resume",)):
        assert search(text, *extra).code == 0
    assert solves == [3, 3]


def test_time_limit_leaves_cases_undecided_or_unproven() -> None:
    result = search(changed("[1, 2]", "[2]"), "--time-limit", "0")
    told = result.stdout
    assert result.code in (0, 3)
    assert (result.code == 3) == ("unknown" in told)
    assert "0 infeasible" in told


@pytest.mark.slow
def test_front_within_one_spec(tmp_path: Path) -> None:
    text = changed("[1, 2]", "[2]", changed("{log2: [256, 1024]}", "[1024]"))
    some = gate(("ways", "risk"), everything=("ways", "gpus", "peak_gib", "risk"))
    for against in some:
        result = search(text, "--within", against, "--store", f"{against}.sqlite")
        assert result.code == 0
        assert f"Front of step_s and {against}" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--best", "speed"], "--best: 'speed': expected one of step_s, "),
        (["--front", "step_s"], "--front step_s: expected two or three of step_s, "),
        (["--front", "step_s,pace"], "--front: 'pace': expected one of step_s, "),
        (["--group", "model"], "--group: 'model': expected one of cluster.count, "),
        (["--within", "ways"], "--within: 6 cases; expected one spec"),
        (["-o", "rows.xls"], "--output rows.xls: expected NAME.csv, NAME.parquet, "),
        (["-o", "/dev/null/rows.csv"], "--output /dev/null/rows.csv: not a directory"),
        (["--store", "/dev/null/x.sql"], "--store /dev/null/x.sql: not a directory"),
        (["--store", "/proc/x.sqlite"], "--store /proc/x.sqlite: unable to open"),
        (["--address", "tcp://x:1"], "--address tcp://x:1: needs --backend dask"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    arguments: list[str], told: str
) -> None:
    result = search(changed("[1, 2]", "[1, 2]"), *arguments)
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: " + told)


@pytest.mark.slow
def test_ctrl_c_ends_with_a_summary_and_a_store_to_go_on_from(tmp_path: Path) -> None:
    text = changed("{log2: [256, 1024]}", "{range: [2, 4000, 2]}")
    words = ["-m", "meshwright", "search", written(tmp_path, text), *FAST]
    with subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
        # What runs in the background of a shell was told to ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        log = tmp_path / "sweep.sqlite-wal"
        while not (log.exists() and log.stat().st_size > 100_000):
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate()
    assert process.returncode == 3
    assert " left" in stdout
    assert "interrupted: " in stderr
    assert "Traceback" not in stderr
    left = int(stdout.split(" left")[0].rsplit(maxsplit=1)[-1].replace(",", ""))
    assert 0 < left < 4000


def test_progress_off_a_terminal_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = solved(tmp_path)
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(
        "meshwright.sweeps.run_search.time.monotonic", lambda: float(next(clock))
    )
    with SearchProgress(len(rows), "step_s", "cluster.count") as found:
        for row in rows:
            found.take(row, is_old=False)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[-1].startswith("6 feasible, 0 infeasible; best step_s: 1 ")
    assert lines[-1].endswith("6 of 6 at 0.1/s, 0 s to go")


def test_progress_without_a_total_says_how_many_are_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = solved(tmp_path)
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(
        "meshwright.sweeps.run_search.time.monotonic", lambda: float(next(clock))
    )
    with SearchProgress(None, "step_s", None) as progress:
        for row in rows:
            progress.take(row, is_old=False)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("6 feasible, 0 infeasible; best step_s: all cases ")
    assert last.endswith("; 6 done at 0.1/s")


@pytest.mark.parametrize(("total", "count"), [(6, "6/6"), (None, "6 done")])
def test_progress_on_a_terminal_is_a_bar(
    total: int | None, count: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    rows = solved(tmp_path)
    with SearchProgress(total, "step_s", None) as found:
        for row in rows:
            found.take(row, is_old=False)
    assert count in stream.getvalue()
    assert "6 feasible" in stream.getvalue()
