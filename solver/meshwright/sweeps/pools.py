"""Pools of workers: processes of this machine, or a cluster of Dask or Ray.

All pools take cases and give back rows in the order in which they are done. Which
worker solves which case, and what follows when a worker dies, differs between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, NamedTuple

from meshwright.errors import SpecError
from meshwright.sweeps.row import Row
from meshwright.sweeps.search_case import Case, SolveSettings

AHEAD = 2
"""Cases handed out per worker: while one is solved, the next one waits."""


class Task(NamedTuple):
    """A case with its key and the settings of its solve."""

    key: str
    case: Case
    settings: SolveSettings

    def failed(self, error: str) -> Row:
        """Return the row of a case whose worker died before it made one."""
        return self.case.row(self.key).model_copy(update={"error": error})


class Pool(ABC):
    """Workers that solve cases; a handle stands for a case that was handed out."""

    workers: int

    @abstractmethod
    def submit(self, task: Task) -> Any:
        """Hand out a case and return its handle."""

    @abstractmethod
    def done(self, handles: list[Any]) -> list[Any]:
        """Wait until a handle is done, and return all that are."""

    @abstractmethod
    def row(self, handle: Any, task: Task) -> Row:
        """Return the row of a handle that is done."""

    def rows(self, tasks: Iterable[Task]) -> Iterator[Row]:
        """Yield the rows of all tasks as they are done."""
        left = iter(tasks)
        flying: list[tuple[Any, Task]] = []
        while True:
            for task in islice(left, AHEAD * self.workers - len(flying)):
                flying.append((self.submit(task), task))
            if not flying:
                return
            done = {id(handle) for handle in self.done([pair[0] for pair in flying])}
            ready = [pair for pair in flying if id(pair[0]) in done]
            flying = [pair for pair in flying if id(pair[0]) not in done]
            for pair in ready:
                yield self.row(*pair)


def no_library(backend: str) -> SpecError:
    """Return the error that says that the library of a backend is not installed."""
    told = f"needs {backend.capitalize()}: pip install 'meshwright[{backend}]'"
    return SpecError(f"--backend {backend}: {told}")


def open_pool(
    backend: str, workers: int, address: str | None
) -> AbstractContextManager[Pool]:
    """Return the pool of a backend, to be entered.

    Raises:
        SpecError: its library is not installed, or nothing answers at the address.
    """
    if backend == "dask":
        from meshwright.sweeps.dask_pool import dask_pool

        return dask_pool(workers, address)
    if backend == "ray":
        from meshwright.sweeps.ray_pool import ray_pool

        return ray_pool(workers, address)
    if address is not None:
        raise SpecError(f"--address {address}: needs --backend dask or ray")
    from meshwright.sweeps.process_pool import process_pool

    return process_pool(workers)
