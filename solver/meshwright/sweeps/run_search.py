"""Runs a whole search: resumes it, solves its cases, exports and sums up rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.reading.messages import shown
from meshwright.sweeps.export import check_kind, export
from meshwright.sweeps.limits import check_memory_limit
from meshwright.sweeps.metrics import METRICS
from meshwright.sweeps.pools import open_pool
from meshwright.sweeps.row import Row
from meshwright.sweeps.search_case import SolveSettings
from meshwright.sweeps.search_progress import SearchProgress
from meshwright.sweeps.search_run import SearchRun
from meshwright.sweeps.store import Store
from meshwright.sweeps.summary import SearchResult, summarise
from meshwright.sweeps.sweep import Search
from meshwright.sweeps.trade_off import TradeOff, is_stepwise, trade_off_search


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
    """What to sum up: as the options say, else as the sweep file says."""

    best: str
    """The metric that makes a row the best of its group."""
    group: str | None
    """The axis whose values make groups."""
    front: tuple[str, ...]
    """The metrics of the front; empty for no front."""


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


def run_search(search: Search, asked: SearchOptions) -> SearchResult:
    """Return what a search found; after Ctrl-C, what it found until then.

    Raises:
        MeshwrightError: options or the store cannot be used.
    """
    if asked.within is not None:
        search = trade_off_search(search, asked.within)
    summary = summary_fields(search, asked)
    with Store(asked.store) as store:
        solve = _follow_trade_off if is_stepwise(asked.within) else _solve_cases
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
