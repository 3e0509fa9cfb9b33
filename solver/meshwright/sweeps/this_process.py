"""This process as a pool of one worker."""

from __future__ import annotations

from meshwright.sweeps.pools import Pool, Task
from meshwright.sweeps.row import Row
from meshwright.sweeps.worker import solve_case


class Here(Pool):
    """Solves a case when it is handed out."""

    workers = 1

    def submit(self, task: Task) -> list[Row]:
        """Solve a case."""
        return [solve_case(*task)]

    def done(self, handles: list[list[Row]]) -> list[list[Row]]:
        """Return the first."""
        return handles[:1]

    def row(self, handle: list[Row], _task: Task) -> Row:
        """Return its row."""
        return handle[0]
