"""Runs a whole search: resumes it, solves its cases, exports and sums up rows."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.reading.document import shown
from meshwright.spec.spec import Spec
from meshwright.sweeps.cases import Case, Row, SolveSettings, Value
from meshwright.sweeps.export import check_kind, export
from meshwright.sweeps.metrics import METRICS
from meshwright.sweeps.pools import InProcessPool, Pool, Task, open_pool
from meshwright.sweeps.store import Store
from meshwright.sweeps.summary import (
    STEPS,
    SearchResult,
    keep_best,
    summarise,
    trade_off_search,
)
from meshwright.sweeps.sweep import Search
from meshwright.sweeps.worker import check_memory_limit


@dataclass(frozen=True)
class SearchOptions:
    """How to run a search: its store, its outputs, its workers, what to sum up."""

    store: Path
    settings: SolveSettings
    resume: bool = True
    outputs: Sequence[Path] = ()
    best: str | None = None
    group: str | None = None
    front: Sequence[str] | None = None
    within: str | None = None
    backend: str = "processes"
    workers: int | None = None
    address: str | None = None


@dataclass(frozen=True)
class SummaryFields:
    """The content of the summary: set by options, else by the sweep file."""

    best: str
    """The metric that makes a row the best of its group."""
    group: str | None
    """The axis whose values make groups."""
    front: tuple[str, ...]
    """The metrics of the front; empty for no front."""


def run_search(search: Search, asked: SearchOptions) -> SearchResult:
    """Return what a search found; after Ctrl-C, what it found until then.

    Raises:
        MeshwrightError: options or the store cannot be used.
    """
    if asked.within is not None:
        search = trade_off_search(search, asked.within)
    summary = summary_fields(search, asked)
    with Store(asked.store) as store:
        solve = _follow_trade_off if asked.within in STEPS else _solve_cases
        rows, left = solve(search, asked, summary, store)
    for path in asked.outputs:
        export(rows, path, summary.front)
    return summarise(
        search.title, rows, summary.best, summary.group, summary.front, left
    )


def _solve_cases(
    search: Search, asked: SearchOptions, summary: SummaryFields, store: Store
) -> tuple[list[Row], int]:
    """Return the rows of all cases, and how many cases Ctrl-C left unsolved."""
    from joblib import cpu_count

    progress = SearchProgress(len(search.cases), summary.best, summary.group)
    run = SearchRun(search.cases, asked.settings, store, progress.take)
    with suppress(KeyboardInterrupt):
        if asked.resume:
            run.resume()
        workers = asked.workers or cpu_count()
        if run.is_open:
            with progress, open_pool(asked.backend, workers, asked.address) as pool:
                run.solve(pool)
    return run.rows, len(search.cases) - len(run.rows)


def _follow_trade_off(
    search: Search, asked: SearchOptions, summary: SummaryFields, store: Store
) -> tuple[list[Row], int]:
    """Return the points of a front, and 1 if Ctrl-C left some unfound.

    How many cases that takes is not known beforehand: progress has no total.
    """
    progress = SearchProgress(None, summary.best, summary.group)
    trade_off = TradeOff(asked.settings, store, asked.resume, progress.take)
    spec = search.cases[0].spec
    assert spec is not None
    assert asked.within is not None
    with progress:
        try:
            trade_off.follow(spec, asked.within)
        except KeyboardInterrupt:
            return trade_off.rows, 1
    return trade_off.rows, 0


def summary_fields(search: Search, asked: SearchOptions) -> SummaryFields:
    """Return what to sum up; refuse options that cannot be met before any solve.

    Raises:
        SpecError: an option names no metric, axis or kind of file.
    """
    for path in asked.outputs:
        check_kind(path)
    check_memory_limit(asked.settings.memory_limit_gib)
    names = asked.front or ()
    for name in (*names, *filter(None, [asked.best])):
        _check_one("--front" if name in names else "--best", name, list(METRICS))
    if asked.front is not None and len(set(names)) not in (2, 3):
        accepted = f"expected two or three of {', '.join(METRICS)}"
        raise SpecError(f"--front {','.join(names)}: {accepted}")
    if asked.group is not None:
        _check_one("--group", asked.group, search.axes)
    fields = search.fields
    return SummaryFields(
        asked.best or fields.best,
        asked.group or fields.group or ("model" if "model" in search.axes else None),
        tuple(names) or fields.front or (),
    )


def _check_one(option: str, name: str, accepted: Sequence[str]) -> None:
    if name not in accepted:
        names = ", ".join(accepted) or "none: the search has no axes"
        raise SpecError(f"{option}: {shown(name)}: expected one of {names}")


OnRow = Callable[[Row, bool], None]
"""Called with each row, and whether it was stored before."""


@dataclass
class SearchRun:
    """The cases of a search, and the rows found for them so far."""

    cases: Sequence[Case]
    settings: SolveSettings
    store: Store
    on_row: OnRow = lambda _row, _is_old: None
    found: dict[str, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Compute the key of each case; equal cases share a key and are solved once."""
        self.keys = self.settings.keys(list(self.cases))
        self._first: dict[str, Case] = {}
        for key, case in zip(self.keys, self.cases, strict=True):
            self._first.setdefault(key, case)

    @property
    def is_open(self) -> bool:
        """Return whether a case has no row yet."""
        return len(self.found) < len(self._first)

    def resume(self) -> None:
        """Take the rows that the store has of these cases.

        Raises:
            StoreError: the store cannot be read.
        """
        for row in self.store.get(list(self._first), self.settings.limits):
            self._take(row, is_old=True)

    def solve(self, pool: Pool) -> None:
        """Solve the cases that have no row, and store each row as it comes.

        Raises:
            StoreError: a row cannot be written.
        """
        for row in pool.rows(self._tasks()):
            self.store.put(row, self._first[row.key], self.settings.limits)
            self._take(row, is_old=False)

    def _tasks(self) -> Iterator[Task]:
        """Yield the cases that have no row, not even one stored meanwhile by others."""
        for key in [key for key in self._first if key not in self.found]:
            for row in self.store.get([key], self.settings.limits):
                self._take(row, is_old=True)
            if key not in self.found:
                yield Task(key, self._first[key], self.settings)

    def _take(self, row: Row, is_old: bool) -> None:
        case_row = _of_case(row, self._first[row.key])
        self.found[row.key] = case_row
        self.on_row(case_row, is_old)

    @property
    def rows(self) -> list[Row]:
        """Return the rows found, in the order of the cases."""
        return [
            _of_case(self.found[key], case)
            for key, case in zip(self.keys, self.cases, strict=True)
            if key in self.found
        ]


def _of_case(row: Row, case: Case) -> Row:
    """Return a row with the axes of a case; a search with others may have stored it."""
    return row.model_copy(update={"name": case.name, "axes": case.axes})


@dataclass
class TradeOff:
    """Solves one spec again and again until its front is complete."""

    settings: SolveSettings
    store: Store
    resume: bool
    on_row: OnRow
    rows: list[Row] = field(default_factory=list)
    """Points of the front; the rows between them are only in the store."""

    def solve(self, case: Case) -> Row:
        """Return the row of a case, from the store or solved in this process."""
        run = SearchRun([case], self.settings, self.store, self.on_row)
        if self.resume:
            run.resume()
        run.solve(InProcessPool())
        return run.rows[0]

    def follow(self, spec: Spec, against: str) -> None:
        """Solve all cases that the front against a metric needs; keep its points."""
        spread = self.settings.profile.memory_spread(spec.framework)
        for row in STEPS[against](spec.with_memory_spread(spread), self.solve):
            self.rows.append(row)


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
            f"{name} {getattr(row, self.metric):.4g}"
            for name, row in self._best.items()
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
