"""What happens to stored results when processes are killed and disks are full."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from meshwright.cost.profile import Profile
from meshwright.errors import SpecError
from meshwright.sweeps.cases import Case, SolveSettings
from meshwright.sweeps.pools import InProcessPool
from meshwright.sweeps.run_search import SearchRun
from meshwright.sweeps.store import SCHEMA, Store, StoreError
from tests.helpers import killed_search
from tests.helpers.searches import ENVIRONMENT, SWEEP, cases, changed, solved, written

KILLS = 20

MANY = changed("{log2: [256, 1024]}", "{range: [32, 1024, 32]}")
"""64 cases: more than twenty short lives can solve."""


@pytest.mark.slow
def test_search_killed_twenty_times_has_the_rows_of_one_left_alone(
    tmp_path: Path,
) -> None:
    sweep, store = written(tmp_path, MANY), tmp_path / "own.sqlite"
    words = [killed_search.__file__, sweep, str(store), str(KILLS), "1"]
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    counts = [int(line) for line in done.stdout.split()]
    assert len(counts) == KILLS
    assert counts == sorted(counts), "a row was lost"
    assert 0 < counts[-1] <= 64
    assert solved(tmp_path, MANY) == solved(tmp_path, MANY, "undisturbed.sqlite")


@pytest.mark.slow
def test_command_killed_with_its_workers_at_work_is_resumed(tmp_path: Path) -> None:
    sweep, store = written(tmp_path, MANY), tmp_path / "own.sqlite"
    words = ["-m", "meshwright", "search", sweep, "--store", str(store)]
    command = [sys.executable, *words, "--profile", "unfitted", "--workers", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env=ENVIRONMENT
    ) as process:
        wait_for_rows(store, process)
        workers = children(process.pid)
        process.kill()
    assert workers
    wait_for_end(workers)
    before = count(store)
    assert 0 < before < 64
    rows = solved(tmp_path, MANY)
    assert rows == solved(tmp_path, MANY, "undisturbed.sqlite")


def children(pid: int) -> list[Path]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [Path(f"/proc/{one}") for file in lists for one in file.read_text().split()]


def wait_for_end(processes: list[Path]) -> None:
    """Wait until none is left: workers end by themselves after who started them."""
    while any(
        process.exists() and "\nState:\tZ" not in state(process)
        for process in processes
    ):
        time.sleep(0.05)


def state(process: Path) -> str:
    try:
        return (process / "status").read_text(encoding="utf-8")
    except OSError:
        return "\nState:\tZ"


def wait_for_rows(store: Path, process: subprocess.Popen[bytes]) -> None:
    while not (store.exists() and count(store)):
        assert process.poll() is None, "the search ended before it could be killed"
        time.sleep(0.02)


def count(store: Path) -> int:
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        try:
            return int(db.execute("SELECT count(*) FROM results").fetchone()[0])
        except sqlite3.OperationalError:  # not made yet
            return 0


def test_what_is_stored_is_not_solved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = solved(tmp_path)
    monkeypatch.setattr("meshwright.sweeps.pools.solve_case", None)
    assert solved(tmp_path) == rows


def test_keys_tell_all_that_an_answer_depends_on(tmp_path: Path) -> None:
    found = cases(tmp_path)
    keys = SolveSettings().keys(found)
    assert len(set(keys)) == len(found)
    assert SolveSettings(time_limit_s=9.0, memory_limit_gib=1.0).keys(found) == keys
    profile = Profile(gpus={"inline": {"matmul": 0.9}})
    assert not {*SolveSettings(profile).keys(found)} & {*keys}
    assert not {*SolveSettings(seed=1).keys(found)} & {*keys}
    assert not {*SolveSettings(version="0.0.0").keys(found)} & {*keys}
    other = cases(tmp_path, changed("tokens: 1000000000", "tokens: 1000000001"))
    assert not {*SolveSettings().keys(other)} & {*keys}


def test_what_is_not_proven_holds_under_the_same_limits_alone(tmp_path: Path) -> None:
    (row, *_), (case, *_) = solved(tmp_path), cases(tmp_path)
    with Store(tmp_path / "other.sqlite") as store:
        for status in ("feasible", "unknown", "failed"):
            found = row.model_copy(update={"status": status})
            store.put(found, case, "1 s")
            is_kept = status != "failed"
            assert [*store.get([row.key], "1 s")] == ([found] if is_kept else [])
            assert [*store.get([row.key], "2 s")] == []
        store.put(row, case, "1 s")
        assert [*store.get([row.key], "2 s")] == [row]
        store.put(row.model_copy(update={"status": "failed"}), case, "1 s")
        assert [*store.get([row.key], "2 s")] == [row], "a proof was overwritten"


def test_row_has_the_axes_of_the_search_that_asks(tmp_path: Path) -> None:
    solved(tmp_path)
    text = changed(
        "cluster.count: [1, 2]", "cluster.count: [2]\n  framework: [megatron]"
    )
    rows = solved(tmp_path, text)
    assert {row.axes["framework"] for row in rows} == {"megatron"}
    assert {row.axes["cluster.count"] for row in rows} == {2}


def test_searches_share_a_store_from_its_first_moment(tmp_path: Path) -> None:
    halves = [changed("[1, 2]", f"[{count}]") for count in (1, 2)]
    failures: list[BaseException] = []

    def search(text: str) -> None:
        try:
            (tmp_path / str(hash(text))).mkdir()
            found = cases(tmp_path / str(hash(text)), text)
            with Store(tmp_path / "own.sqlite") as store:
                run = SearchRun(found, SolveSettings(), store)
                run.resume()
                run.solve(InProcessPool())
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=search, args=(halve,)) for halve in (*halves, SWEEP)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert count(tmp_path / "own.sqlite") == 6
    assert solved(tmp_path) == solved(tmp_path, name="undisturbed.sqlite")


def test_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    result = cases(tmp_path, MANY)
    path = tmp_path / "own.sqlite"
    with Store(path) as store:
        store._db.execute("PRAGMA max_page_count = 12")
        run = SearchRun(result, SolveSettings(), store)
        with pytest.raises(StoreError, match=r"disk is full.*was stored is safe"):
            run.solve(InProcessPool())
        found = list(run.found)
    assert 0 < len(found) < len(result)
    with Store(path) as store:
        again = SearchRun(result, SolveSettings(), store)
        again.resume()
        assert list(again.found) == found


def test_file_size_limit_is_told_and_loses_nothing(tmp_path: Path) -> None:
    """As a quota would: writes fail for good after so many bytes."""
    sweep, store = written(tmp_path, MANY), tmp_path / "own.sqlite"
    text = (
        "import resource, signal, sys; from tests.helpers.killed_search import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))\n"
        "search(sys.argv[1], Path(sys.argv[2]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, sweep, str(store)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert done.returncode == 1
    assert f"StoreError: --store {store}: " in done.stderr
    assert 0 < killed_search.stored(sweep, store) < 64


@pytest.mark.parametrize("place", ["/proc/own.sqlite", "/nowhere/own.sqlite"])
def test_folder_that_cannot_be_written_is_told(place: str) -> None:
    with pytest.raises(SpecError, match=f"--store {place}: .*; expected"):
        Store(Path(place))


def fill(path: Path) -> None:
    with Store(path) as store:
        for number in range(200):
            bad = Case(f"case {number}", {}, None, "because of this " * 20)
            store.put(bad.row(f"{number:064}"), bad, "")


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_store_cut_short_is_told_and_left_as_it_is(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "own.sqlite"
    fill(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    broken = path.read_bytes()
    with pytest.raises(SpecError, match="expected a store of `meshwright search`"):
        Store(path)
    assert path.read_bytes() == broken


def test_file_that_is_no_store_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be one " * 99)
    with pytest.raises(SpecError, match="file is not a database"):
        Store(path)
    assert path.read_text().startswith("not a database")
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE mine (x)")
    with pytest.raises(SpecError, match="holds something else; name another"):
        Store(other)


def test_store_of_another_schema_is_told(tmp_path: Path) -> None:
    path = tmp_path / "own.sqlite"
    Store(path).__exit__(None, None, None)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    with pytest.raises(SpecError, match=f"has schema {SCHEMA + 1}, this version reads"):
        Store(path)


def test_failed_case_is_stored_and_tried_again(tmp_path: Path) -> None:
    bad = Case("bad", {}, None, "no such thing")
    with Store(tmp_path / "own.sqlite") as store:
        for _ in range(2):
            run = SearchRun([bad], SolveSettings(), store)
            run.resume()
            assert run.rows == []
            run.solve(InProcessPool())
            assert [row.error for row in run.rows] == ["no such thing"]
    assert count(tmp_path / "own.sqlite") == 1


def altered(tmp_path: Path, *statements: str) -> Path:
    """Return a store with rows that somebody else has changed."""
    solved(tmp_path)
    path = tmp_path / "own.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
    return path


DEEP = "[" * 40_000

ROWS = {
    "no JSON": ("'{'", "row: '{': expected the JSON of a row"),
    "nothing": ("'null'", "row: nothing: expected the JSON of a row"),
    "deep": (f"'{DEEP}'", "...: expected the JSON of a row"),
    "bytes": ("x'ff00ff'", "row: '': expected the JSON of a row"),
    "a number": ("5", "row: 5: expected the JSON of a row"),
    "other fields": ("'{\"a\": 1}'", "key: "),
    "other key": ("json_set(row, '$.key', 'b')", "key: 'b': expected that of the row"),
    "endless": (
        """replace(json_remove(row, '$.step_s'), '{"key"', '{"step_s":1e400,"key"')""",
        "step_s: expected a finite number",
    ),
    "many digits": ("json_set(row, '$.gpus', '" + "9" * 5_000 + "')", "gpus: "),
    "no stages": ("json_set(row, '$.plan.stages', 5)", "plan.stages: 5"),
    "huge": ("hex(zeroblob(20000000))", "too big"),
}


@pytest.mark.parametrize(("value", "told"), ROWS.values(), ids=ROWS)
def test_rows_that_are_none_are_told(tmp_path: Path, value: str, told: str) -> None:
    path = altered(tmp_path, f"UPDATE results SET row = {value}")
    found = cases(tmp_path)
    with Store(path) as store, pytest.raises(StoreError) as error:
        SearchRun(found, SolveSettings(), store).resume()
    assert str(error.value).startswith(f"--store {path}: ")
    assert told in str(error.value)
    assert len(str(error.value)) < 2_000


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE parts (key TEXT REFERENCES results (key))",
        "CREATE VIEW other AS SELECT 1",
        "CREATE TRIGGER t AFTER INSERT ON results BEGIN DELETE FROM results; END",
        "ALTER TABLE results DROP COLUMN limits",
        "ALTER TABLE results ADD COLUMN more TEXT",
        "ALTER TABLE results RENAME COLUMN row TO line",
        "ALTER TABLE results ADD COLUMN sum TEXT AS (row || row)",
    ],
)
def test_stores_with_other_tables_are_refused(tmp_path: Path, statement: str) -> None:
    path = altered(tmp_path, statement)
    with pytest.raises(SpecError, match="has other tables or columns than a store"):
        Store(path)


def test_a_view_in_place_of_the_table_is_refused(tmp_path: Path) -> None:
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT '' key,"
        " '' spec, '' version, '' name, '' status, '' limits, i row FROM n"
    )
    path = altered(tmp_path, "DROP TABLE results", f"CREATE VIEW results AS {endless}")
    with pytest.raises(SpecError, match="has other tables or columns than a store"):
        Store(path)
