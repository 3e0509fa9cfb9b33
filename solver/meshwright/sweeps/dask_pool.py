"""Workers of a Dask cluster, or of one that is started here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshwright.errors import SpecError
from meshwright.sweeps.pools import Pool, Task, no_library
from meshwright.sweeps.row import Row
from meshwright.sweeps.worker import solve_case

WAIT_S = 30
"""Seconds that a scheduler may take to answer."""


class DaskPool(Pool):
    """Workers of Dask, which tries a case again, a few times, when its worker dies."""

    def __init__(self, client: Any, workers: int) -> None:
        """Take a client that is connected to a scheduler."""
        self._client = client
        self.workers = max(workers, sum(client.ncores().values()))

    def submit(self, task: Task) -> Any:
        """Hand out a case and return its future."""
        return self._client.submit(solve_case, *task, pure=False)

    def done(self, handles: list[Any]) -> list[Any]:
        """Wait until a future is done, and return all that are."""
        from distributed import wait

        # The caller may have a client of their own, whose events are others.
        with self._client.as_current():
            return list(wait(handles, return_when="FIRST_COMPLETED").done)

    def row(self, handle: Any, task: Task) -> Row:
        """Return the row of a future, or the row that says how its workers died."""
        error = handle.exception()
        if error is not None:
            return task.failed(f"{type(error).__name__}: {error}")
        row: Row = handle.result()
        return row


@contextmanager
def dask_pool(workers: int, address: str | None) -> Iterator[Pool]:
    """Open a pool on a scheduler, or on processes of this machine.

    Raises:
        SpecError: Dask is not installed, or no scheduler answers.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise no_library("dask") from None
    if address is not None:
        try:
            client = Client(address, timeout=WAIT_S)
        except (OSError, ValueError) as error:
            raise SpecError(
                f"--address {address}: no Dask scheduler: {error}"
            ) from None
        with client:
            yield DaskPool(client, workers)
        return
    options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        yield DaskPool(client, workers)
