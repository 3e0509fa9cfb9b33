"""Workers of a Ray cluster, or of one that is started here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshwright.errors import SpecError
from meshwright.sweeps.pools import Pool, Task, no_library
from meshwright.sweeps.row import Row
from meshwright.sweeps.worker import solve_case

TRIES = 2
"""Further tries of a case whose worker died."""


class RayPool(Pool):
    """Workers of Ray, which tries a case again elsewhere when its worker dies."""

    def __init__(self, ray: Any, workers: int) -> None:
        """Take the module `ray`, connected to a cluster."""
        self._ray = ray
        self._solve = ray.remote(max_retries=TRIES)(solve_case)
        self.workers = max(workers, int(ray.cluster_resources().get("CPU", 1)))

    def submit(self, task: Task) -> Any:
        """Hand out a case and return its future."""
        return self._solve.remote(*task)

    def done(self, handles: list[Any]) -> list[Any]:
        """Wait until a future is done, and return all that are."""
        return list(self._ray.wait(handles, num_returns=1)[0])

    def row(self, handle: Any, task: Task) -> Row:
        """Return the row of a future, or the row that says how its workers died."""
        try:
            row: Row = self._ray.get(handle)
        except self._ray.exceptions.RayError as error:
            return task.failed(f"{type(error).__name__}: {error}")
        return row


@contextmanager
def ray_pool(workers: int, address: str | None) -> Iterator[Pool]:
    """Open a pool on a cluster, or on processes of this machine.

    Raises:
        SpecError: Ray is not installed, or no cluster answers.
    """
    try:
        import ray
    except ImportError:
        raise no_library("ray") from None
    here: dict[str, Any] = (
        {} if address else {"num_cpus": workers, "include_dashboard": False}
    )
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", **here)
    except (OSError, ValueError) as error:
        raise SpecError(f"--address {address}: no Ray cluster: {error}") from None
    try:
        yield RayPool(ray, workers)
    finally:
        ray.shutdown()
