"""Rows, and what becomes of cases and workers that go wrong."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.errors import InternalError, SpecError
from meshwright.planner.solve import solve
from meshwright.results.priced_plan import PricedPlan
from meshwright.sweeps import pools as pool_module
from meshwright.sweeps import worker
from meshwright.sweeps.cases import Case, Row, SolveSettings
from meshwright.sweeps.metrics import METRICS
from meshwright.sweeps.pools import DIED, open_pool, process_pool
from meshwright.sweeps.run_search import SearchRun
from meshwright.sweeps.store import Store
from meshwright.sweeps.summary import compared
from meshwright.sweeps.worker import TimeUp, memory_limit, solve_case, time_limit
from tests.helpers import misbehaving
from tests.helpers.extent import gate
from tests.helpers.misbehaving import BREAKS, DIES, DIES_ONCE, HANGS, HOARDS
from tests.helpers.searches import SWEEP, cases, changed, solved


def with_lengths(*lengths: int) -> str:
    return changed("{log2: [256, 1024]}", str(list(lengths)))


def run(
    folder: Path, text: str, workers: int = 2, settings: SolveSettings | None = None
) -> dict[tuple[object, ...], Row]:
    """Return the rows of a sweep by their axes, solved by processes."""
    with Store(folder / f"{workers}.sqlite") as store:
        search_run = SearchRun(cases(folder, text), settings or SolveSettings(), store)
        with process_pool(workers) as pool:
            search_run.solve(pool)
        return {tuple(row.axes.values()): row for row in search_run.rows}


@pytest.fixture
def misbehave(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DIED", str(tmp_path / "died"))
    monkeypatch.setattr(pool_module, "solve_case", misbehaving.solve_case)


@pytest.mark.slow
def test_rows_are_the_same_in_this_process_and_on_any_number_of_workers(
    tmp_path: Path,
) -> None:
    alone = solved(tmp_path)
    for workers in (1, 3):
        assert list(run(tmp_path, SWEEP, workers).values()) == alone


def test_metrics_follow_from_the_plan(tmp_path: Path) -> None:
    """USD 0.50 and 250 W a GPU, a billion tokens, 8 sequences a step."""
    case = cases(tmp_path)[5]
    assert case.spec is not None
    (*_, row) = solved(tmp_path)
    best = solve(case.spec).best
    assert isinstance(best, PricedPlan)
    gpus, tokens = 4, 8 * 1024
    assert row.axes == {"cluster.count": 2, "training.seq_len": 1024}
    assert (row.step_s, row.plan) == (best.step_s, best.plan)
    assert row.tokens_per_s == pytest.approx(tokens / best.step_s)
    assert row.tokens_per_s_per_gpu == pytest.approx(tokens / best.step_s / gpus)
    steps = 1e6 / tokens
    hours = steps * best.step_s / 3600
    assert row.usd_per_mtoken == pytest.approx(gpus * 0.5 * hours)
    assert row.kwh_per_mtoken == pytest.approx(gpus * 0.25 * hours)
    assert row.train_days == pytest.approx(1e3 * hours / 24)
    fullest = max(stage.total_gib for stage in best.stages)
    assert row.peak_gib == fullest
    assert row.headroom_gib == pytest.approx(4 * 0.97 - fullest)
    assert row.memory is not None
    assert row.memory.total_gib == fullest
    assert row.certificate is not None
    assert row.certificate.gap == 0
    assert sum(row.time_parts.values()) == pytest.approx(best.step_s)


def test_metrics_that_nobody_can_know_are_left_out(tmp_path: Path) -> None:
    text = changed(", tdp_w: 250", "", changed("  run: {", "  # {"))
    for row in solved(tmp_path, text):
        missing = {name for name in METRICS if getattr(row, name) is None}
        # Without a profile no runs are known, and nothing is doubted.
        unknown = {"usd_per_mtoken", "kwh_per_mtoken", "train_days", "doubted_s"}
        assert missing == unknown


def test_cases_are_answered_and_compared_as_solve_recommends(tmp_path: Path) -> None:
    """The fastest plan of a case may be beyond what was run, as seven machines' is."""
    found = mw.search(
        {
            "base": {
                "model": "llama3-70b",
                "cluster": {"topology": "dgx-a100", "count": 6},
                "training": {"seq_len": 4096, "global_batch": 120},
                "framework": "megatron",
                "run": {"gpu_hour_price": 2},
            },
            "sweep": {"cluster.count": [6, 7]},
            "best": "usd_per_mtoken",
        },
        store=tmp_path / "rows.sqlite",
        workers=1,
    )
    for row, count in zip(found.rows, (6, 7), strict=True):
        spec = mw.load(
            model="llama3-70b",
            cluster="dgx-a100",
            count=count,
            seq_len=4096,
            batch=120,
            framework="megatron",
        )
        best = mw.solve(spec, by_kind=False, safety=False).best
        assert best is not None
        assert row.plan == best.plan
        assert row.doubted_s == pytest.approx(best.doubted_s)
        assert row.certificate is not None
        assert row.certificate.is_of_doubted
    (best_row,) = found.best.values()
    prices = {(row.doubted_s or 0.0) * (row.gpus or 0): row for row in found.rows}
    assert best_row == prices[min(prices)]
    assert compared(best_row, "gpus") == best_row.gpus


def test_price_of_a_gpu_is_used_unless_the_run_has_one(tmp_path: Path) -> None:
    found = changed("tdp_w: 250", "tdp_w: 250, hour_usd: 3")
    dear = solved(tmp_path, changed(", gpu_hour_price: 0.5", "", found), "dear.sqlite")
    cheap = solved(tmp_path, found, "cheap.sqlite")
    for first, second in zip(dear, cheap, strict=True):
        assert first.usd_per_mtoken is not None
        assert second.usd_per_mtoken is not None
        assert first.usd_per_mtoken == pytest.approx(6 * second.usd_per_mtoken)


def test_infeasible_rows_name_the_rules_that_leave_no_plan(tmp_path: Path) -> None:
    for row in solved(tmp_path, changed("memory_gib: 4,", "memory_gib: 0.05,")):
        assert row.status == "infeasible"
        assert row.conflict == ("memory",)
        assert "memory" in row.sentence
        assert row.plan is None


def test_equal_specs_are_solved_once_and_have_a_row_each(tmp_path: Path) -> None:
    text = changed("[1, 2]", "[1, 1]")
    with Store(tmp_path / "own.sqlite") as store:
        search_run = SearchRun(cases(tmp_path, text), SolveSettings(), store)
        seen: list[str] = []
        search_run.on_row = lambda row, _is_old: seen.append(row.key)
        with open_pool("processes", 1, None) as pool:
            search_run.solve(pool)
    assert len(seen) == len(set(seen)) == 3
    assert len(search_run.rows) == 6


@pytest.mark.slow
def test_case_that_kills_its_worker_fails_and_all_others_are_solved(
    tmp_path: Path, misbehave: None
) -> None:
    """In the gate on one count of nodes: a death starts processes three times."""
    counts = gate([1], everything=[1, 2])
    lengths = with_lengths(256, DIES, 512, DIES_ONCE, 1024)
    rows = run(tmp_path, changed("[1, 2]", str(counts), lengths))
    assert len(rows) == 5 * len(counts)
    for (_, length), row in rows.items():
        is_bad = length == DIES
        assert row.status == ("failed" if is_bad else "optimal")
        assert row.error == (DIED if is_bad else "")
    for row in solved(tmp_path, changed("[1, 2]", str(counts))):
        assert rows[tuple(row.axes.values())] == row


@pytest.mark.slow
def test_case_that_breaks_is_a_row(tmp_path: Path, misbehave: None) -> None:
    rows = run(tmp_path, with_lengths(256, BREAKS))
    assert rows[1, BREAKS].error == "ZeroDivisionError: by design"
    assert rows[1, 256].status == "optimal"


@pytest.mark.slow
def test_case_that_hangs_is_stopped(tmp_path: Path, misbehave: None) -> None:
    rows = run(tmp_path, with_lengths(HANGS, 256), 2, SolveSettings(time_limit_s=0.5))
    assert rows[1, HANGS].status == "unknown"
    assert rows[1, HANGS].sentence == "stopped after 0.5 s and 1 s of grace"
    assert rows[1, 256].plan is not None


@pytest.mark.slow
def test_case_that_needs_too_much_memory_is_stopped(
    tmp_path: Path, misbehave: None
) -> None:
    rows = run(
        tmp_path, with_lengths(HOARDS, 256), 1, SolveSettings(memory_limit_gib=1.5)
    )
    assert rows[1, HOARDS].error == "needs more than 1.5 GiB of memory"
    assert rows[1, 256].status == "optimal"


def test_time_limit_stops_a_thread_and_leaves_others_alone() -> None:
    stopped: list[bool] = []

    def hang() -> None:
        try:
            with time_limit(0.05):
                while True:
                    pass
        except TimeUp:
            stopped.append(True)

    thread = threading.Thread(target=hang)
    thread.start()
    thread.join(timeout=60)
    assert stopped == [True]


def test_time_limit_raises_nothing_after_its_block() -> None:
    for _ in range(500):
        with contextlib.suppress(TimeUp), time_limit(0.0005):
            sum(range(5_000))
        sum(number for number in range(500))
    with time_limit(None):
        pass


def test_memory_limit_ends_with_its_block() -> None:
    with pytest.raises(MemoryError), memory_limit(0.5):
        bytearray(2**30)
    assert len(bytearray(2**30)) == 2**30


def test_errors_of_the_solver_become_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (case, *_) = cases(tmp_path)

    def row_after(error: Exception) -> Row:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(worker, "solve", fail)
        return solve_case("key", case, SolveSettings())

    assert row_after(SpecError("steps take days")).error == "steps take days"
    told = row_after(InternalError("off")).error
    assert told == "internal error, please report it: off"
    assert row_after(KeyError("x")).error == "KeyError: 'x'"


def test_worker_of_another_version_answers_nothing(tmp_path: Path) -> None:
    (case, *_) = cases(tmp_path)
    row = solve_case("key", case, SolveSettings(version="0.0.0"))
    assert row.status == "failed"
    assert row.error.startswith("the worker has meshwright ")


def test_case_without_a_spec_is_never_solved() -> None:
    row = solve_case("key", Case("name", {}, None, "because"), SolveSettings())
    assert (row.status, row.error) == ("failed", "because")


def test_address_needs_a_cluster() -> None:
    with pytest.raises(SpecError, match="--address x: needs --backend dask or ray"):
        open_pool("processes", 1, "x")
