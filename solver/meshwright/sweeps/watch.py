"""How far a search is, on stderr: a bar on a terminal, elsewhere a line at times."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

from meshwright.escape import printable
from meshwright.sweeps.row import Row, Value
from meshwright.sweeps.summary import keep_best

EVERY_S = 30.0
"""Seconds between lines where there is no terminal."""

MOST_GROUPS = 6
"""Groups whose best is shown below the bar."""


class Watch:
    """Counts rows, and shows how many there are and which is the best so far."""

    def __init__(self, total: int, metric: str, group: str | None) -> None:
        """Prepare for so many cases."""
        self.total, self.metric, self.group = total, metric, group
        self.counts: Counter[str] = Counter()
        self._best: dict[Value, Row] = {}
        self._start = self._told = time.monotonic()
        self._solved = 0
        self._bar: Any = None

    def __enter__(self) -> Watch:
        """Begin to show."""
        if sys.stderr.isatty():
            self._bar = _bar(self.total)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        if self._bar is not None:
            self._bar.stop()

    def take(self, row: Row, is_old: bool) -> None:
        """Count a row."""
        self.counts[row.status] += 1
        self._solved += not is_old
        keep_best(self._best, row, self.metric, self.group)
        self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if self._bar is not None:
            told = f"{self._per_s(now):.1f}/s  {self._words()}"
            self._bar.update(0, completed=self.counts.total(), told=told)
        elif now - self._told > EVERY_S:
            self._told = now
            print(f"{self._words()}; {self._pace(now)}", file=sys.stderr)

    def _words(self) -> str:
        counts = self.counts
        feasible = counts["optimal"] + counts["feasible"]
        told = f"{feasible} feasible, {counts['infeasible']} infeasible"
        others = [f"{counts[name]} {name}" for name in ("unknown", "failed")]
        told = ", ".join([told, *(text for text in others if text[0] != "0")])
        best = [
            f"{name} {_short(row, self.metric)}" for name, row in self._best.items()
        ]
        shown = ", ".join(best[:MOST_GROUPS]) or "-"
        return printable(f"{told}; best {self.metric}: {shown}")

    def _pace(self, now: float) -> str:
        per_s = self._per_s(now)
        left_s = (self.total - self.counts.total()) / per_s if per_s else float("inf")
        done = f"{self.counts.total()} of {self.total}"
        return f"{done} at {per_s:.1f}/s, {left_s:,.0f} s to go"

    def _per_s(self, now: float) -> float:
        return self._solved / max(now - self._start, 1e-9)


def _short(row: Row, metric: str) -> str:
    return f"{getattr(row, metric):.4g}"


def _bar(total: int) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[told]}", markup=False),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("", total=total, told="")
    return bar
