"""A whole search: read, resume, solve, export, sum up."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.reading.messages import shown
from meshwright.sweeps.case import Recipe
from meshwright.sweeps.export import check_kind, export
from meshwright.sweeps.limits import check_memory_limit
from meshwright.sweeps.metrics import METRICS
from meshwright.sweeps.pools import open_pool
from meshwright.sweeps.row import Row
from meshwright.sweeps.run import Run
from meshwright.sweeps.store import Store
from meshwright.sweeps.summary import SearchResult, summarise
from meshwright.sweeps.sweep import Search
from meshwright.sweeps.trade import Trace, is_stepwise, within
from meshwright.sweeps.watch import Watch


@dataclass(frozen=True)
class Asked:
    """What is asked for beside the search itself."""

    store: Path
    recipe: Recipe
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
class Wanted:
    """What to sum up, from the sweep file unless the command line says else."""

    best: str
    group: str | None
    front: tuple[str, ...]


def wanted(search: Search, asked: Asked) -> Wanted:
    """Return what to sum up, and refuse what cannot be done before anything is.

    Raises:
        SpecError: an option names no metric, axis or kind of file.
    """
    for path in asked.outputs:
        check_kind(path)
    check_memory_limit(asked.recipe.memory_limit_gib)
    names = asked.front or ()
    for name in (*names, *filter(None, [asked.best])):
        _check_one("--front" if name in names else "--best", name, list(METRICS))
    if asked.front is not None and len(set(names)) not in (2, 3):
        accepted = f"expected two or three of {', '.join(METRICS)}"
        raise SpecError(f"--front {','.join(names)}: {accepted}")
    if asked.group is not None:
        _check_one("--group", asked.group, search.axes)
    fields = search.fields
    return Wanted(
        asked.best or fields.best,
        asked.group or fields.group or ("model" if "model" in search.axes else None),
        tuple(names) or fields.front or (),
    )


def _check_one(option: str, name: str, accepted: Sequence[str]) -> None:
    if name not in accepted:
        names = ", ".join(accepted) or "none: the search has no axes"
        raise SpecError(f"{option}: {shown(name)}: expected one of {names}")


def run_search(search: Search, asked: Asked) -> SearchResult:
    """Return what a search found; Ctrl-C leaves cases.

    Raises:
        MeshwrightError: options or the store cannot be used.
    """
    if asked.within is not None:
        search = within(search, asked.within)
    want = wanted(search, asked)
    with Store(asked.store) as store:
        solved = _traced if is_stepwise(asked.within) else _swept
        rows, left = solved(search, asked, want, store)
    for path in asked.outputs:
        export(rows, path)
    return summarise(search.title, rows, want.best, want.group, want.front, left)


def _swept(
    search: Search, asked: Asked, want: Wanted, store: Store
) -> tuple[list[Row], int]:
    """Return the rows of all cases, and how many Ctrl-C left."""
    from joblib import cpu_count

    watch = Watch(len(search.cases), want.best, want.group)
    run = Run(search.cases, asked.recipe, store, watch.take)
    with suppress(KeyboardInterrupt):
        if asked.resume:
            run.resume()
        workers = asked.workers or cpu_count()
        if run.is_open:
            with watch, open_pool(asked.backend, workers, asked.address) as pool:
                run.solve(pool)
    return run.rows, len(search.cases) - len(run.rows)


def _traced(
    search: Search, asked: Asked, want: Wanted, store: Store
) -> tuple[list[Row], int]:
    """Return the rows on the way to a front, and 1 if Ctrl-C left some."""
    watch = Watch(0, want.best, want.group)
    trace = Trace(asked.recipe, store, asked.resume, watch.take)
    spec = search.cases[0].spec
    assert spec is not None
    assert asked.within is not None
    with watch:
        try:
            trace.follow(spec, asked.within)
        except KeyboardInterrupt:
            return trace.rows, 1
    return trace.rows, 0
