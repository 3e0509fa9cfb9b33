"""A pool of one worker: this process."""

from __future__ import annotations

from meshwright.sweeps.pools import Pool, Task
from meshwright.sweeps.row import Row
from meshwright.sweeps.worker import solve_case


class InProcessPool(Pool):
    """Solves a case when it is handed out; its handle is a list with the row."""

    workers = 1

    def submit(self, task: Task) -> list[Row]:
        """Solve a case and return its handle."""
        return [solve_case(*task)]

    def done(self, handles: list[list[Row]]) -> list[list[Row]]:
        """Return the first handle; all are done."""
        return handles[:1]

    def row(self, handle: list[Row], _task: Task) -> Row:
        """Return the row of a handle."""
        return handle[0]
