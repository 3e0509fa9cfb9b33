"""Progress of a search on stderr: a bar on a terminal, elsewhere a line at times."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

from meshwright.escape import printable
from meshwright.sweeps.row import Row, Value
from meshwright.sweeps.summary import keep_best

EVERY_S = 30.0
"""Seconds between two lines where stderr is no terminal."""

MOST_GROUPS = 6
"""Groups whose best row is shown below the bar."""


class SearchProgress:
    """Counts rows, and shows how many there are and which is the best so far."""

    def __init__(self, total: int | None, metric: str, group: str | None) -> None:
        """Prepare to show progress.

        Args:
            total: Number of cases; None where it is not known beforehand.
            metric: The metric by which one row is better than another.
            group: The axis whose values each have a best row; None for one group.
        """
        self.total, self.metric, self.group = total, metric, group
        self.counts: Counter[str] = Counter()
        self._best: dict[Value, Row] = {}
        self._start = self._last_line = time.monotonic()
        self._solved = 0
        self._bar: Any = None

    def __enter__(self) -> SearchProgress:
        """Show the bar, if stderr is a terminal."""
        if sys.stderr.isatty():
            self._bar = _bar(self.total)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def take(self, row: Row, is_old: bool) -> None:
        """Count a row; an old one comes from the store and says nothing of speed."""
        self.counts[row.status] += 1
        self._solved += not is_old
        keep_best(self._best, row, self.metric, self.group)
        self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if self._bar is not None:
            told = f"{self._per_s(now):.1f}/s  {self._words()}"
            self._bar.update(0, completed=self.counts.total(), told=told)
        elif now - self._last_line > EVERY_S:
            self._last_line = now
            print(f"{self._words()}; {self._pace(now)}", file=sys.stderr)

    def _words(self) -> str:
        counts = self.counts
        feasible = counts["optimal"] + counts["feasible"]
        told = [f"{feasible} feasible", f"{counts['infeasible']} infeasible"]
        told += [f"{counts[n]} {n}" for n in ("unknown", "failed") if counts[n]]
        best = [
            f"{name} {_short(row, self.metric)}" for name, row in self._best.items()
        ]
        shown = ", ".join(best[:MOST_GROUPS]) or "-"
        return printable(f"{', '.join(told)}; best {self.metric}: {shown}")

    def _pace(self, now: float) -> str:
        """Return how many cases are done, how fast, and how long the others take."""
        done, per_s = self.counts.total(), self._per_s(now)
        if self.total is None:
            return f"{done} done at {per_s:.1f}/s"
        left_s = (self.total - done) / per_s if per_s else float("inf")
        return f"{done} of {self.total} at {per_s:.1f}/s, {left_s:,.0f} s to go"

    def _per_s(self, now: float) -> float:
        return self._solved / max(now - self._start, 1e-9)


def _short(row: Row, metric: str) -> str:
    return f"{getattr(row, metric):.4g}"


def _bar(total: int | None) -> Any:
    """Return a bar; one that only pulses and counts where there is no total."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    sized = (MofNCompleteColumn(), TimeRemainingColumn())
    count = (TextColumn("{task.completed:.0f} done"),)
    columns = (
        BarColumn(20),
        *(count if total is None else sized),
        TextColumn("{task.fields[told]}", markup=False),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("", total=total, told="")
    return bar
