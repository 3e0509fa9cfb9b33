"""Where cases are solved: processes here, or a cluster of Dask or Ray.

All three take cases and give back rows in the order in which they are done; which
worker has which case, and what becomes of it when that dies, is theirs to decide.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, NamedTuple

from meshwright.errors import SpecError
from meshwright.sweeps.case import Case, Recipe
from meshwright.sweeps.row import Row

AHEAD = 2
"""Cases handed out for each worker: one is solved while the next waits."""


class Task(NamedTuple):
    """A case with its key and how to solve it."""

    key: str
    case: Case
    recipe: Recipe

    def failed(self, error: str) -> Row:
        """Return the row of a case whose worker had no time to make one."""
        return self.case.row(self.key).model_copy(update={"error": error})


class Pool(ABC):
    """Workers that solve cases; handles stand for cases that are not done."""

    workers: int

    @abstractmethod
    def submit(self, task: Task) -> Any:
        """Hand out a case and return its handle."""

    @abstractmethod
    def done(self, handles: list[Any]) -> list[Any]:
        """Wait until one is done, and return all that are."""

    @abstractmethod
    def row(self, handle: Any, task: Task) -> Row:
        """Return the row of a case that is done."""

    def rows(self, tasks: Iterable[Task]) -> Iterator[Row]:
        """Yield the rows of all tasks as they are done."""
        left = iter(tasks)
        flying: list[tuple[Any, Task]] = []
        while True:
            for task in islice(left, AHEAD * self.workers - len(flying)):
                flying.append((self.submit(task), task))
            if not flying:
                return
            done = {
                id(handle) for handle in self.done([handle for handle, _ in flying])
            }
            ready = [pair for pair in flying if id(pair[0]) in done]
            flying = [pair for pair in flying if id(pair[0]) not in done]
            for pair in ready:
                yield self.row(*pair)


def no_library(backend: str) -> SpecError:
    """Return that the library of a backend is not installed."""
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
        from meshwright.sweeps.on_dask import dask_pool

        return dask_pool(workers, address)
    if backend == "ray":
        from meshwright.sweeps.on_ray import ray_pool

        return ray_pool(workers, address)
    if address is not None:
        raise SpecError(f"--address {address}: needs --backend dask or ray")
    from meshwright.sweeps.on_processes import process_pool

    return process_pool(workers)
