"""The same sweep on Dask and Ray, and what becomes of workers that die there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from meshwright.errors import SpecError
from meshwright.sweeps.cases import Row, SolveSettings
from meshwright.sweeps.pools import Pool, open_pool
from meshwright.sweeps.run_search import SearchRun
from meshwright.sweeps.store import Store
from tests.helpers.searches import SWEEP, cases, changed, solved

DASK = "needs distributed: pip install 'meshwright[dask]'"
RAY = "needs ray: pip install 'meshwright[ray]'"

MANY = changed("{log2: [256, 1024]}", "{range: [64, 1024, 64]}")
"""32 cases."""


def rows_of(pool: Pool, folder: Path, text: str = SWEEP) -> list[Row]:
    with Store(folder / "cluster.sqlite") as store:
        run = SearchRun(cases(folder, text), SolveSettings(), store)
        run.solve(pool)
        return run.rows


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dask_started_here_has_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason=DASK)
    with open_pool("dask", 2, None) as pool:
        assert rows_of(pool, tmp_path) == solved(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dask_worker_killed_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason=DASK)
    found = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(**found) as cluster,
        open_pool("dask", 2, cluster.scheduler_address) as pool,
        distributed.Client(cluster) as client,
    ):
        victim, *_ = client.run(os.getpid).values()
        with Store(tmp_path / "cluster.sqlite") as store:
            run = SearchRun(cases(tmp_path, MANY), SolveSettings(), store)

            def kill_after(row: Row, _is_old: bool) -> None:
                if len(run.found) == 8:
                    os.kill(victim, signal.SIGKILL)

            run.on_row = kill_after
            run.solve(pool)
        assert victim not in client.run(os.getpid).values()
    assert run.rows == solved(tmp_path, MANY)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_started_here_has_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason=RAY)
    with open_pool("ray", 2, None) as pool:
        assert rows_of(pool, tmp_path) == solved(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_scheduler_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason=DASK)
    monkeypatch.setattr("meshwright.sweeps.pools.SCHEDULER_WAIT_S", 0.2)
    with (
        pytest.raises(SpecError, match=r"--address tcp://127.0.0.1:9: no Dask"),
        open_pool("dask", 1, "tcp://127.0.0.1:9"),
    ):
        pass


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_library_that_is_missing_is_named(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("distributed", "ray"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    told = rf"--backend {backend}: needs .*pip install 'meshwright\[{backend}\]'"
    with pytest.raises(SpecError, match=told), open_pool(backend, 1, None):
        pass
