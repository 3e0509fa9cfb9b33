"""A whole search: read, resume, solve, export, sum up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from meshwright.errors import SpecError
from meshwright.search.case import Recipe
from meshwright.search.export import check_kind, export
from meshwright.search.fields import Metric
from meshwright.search.limits import check_memory_limit
from meshwright.search.pools import open_pool
from meshwright.search.run import Run
from meshwright.search.store import Store
from meshwright.search.summary import Summary, summarise
from meshwright.search.sweep import Search
from meshwright.search.watch import Watch
from meshwright.spec.messages import shown


@dataclass(frozen=True)
class Asked:
    """What the command line asks for, beside the search itself."""

    store: Path
    recipe: Recipe
    resume: bool = True
    outputs: Sequence[Path] = ()
    best: str | None = None
    group: str | None = None
    front: str | None = None
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
    names = asked.front.split(",") if asked.front is not None else ()
    for name in (*names, *filter(None, [asked.best])):
        _check_one("--front" if name in names else "--best", name, get_args(Metric))
    if asked.front is not None and len(set(names)) not in (2, 3):
        accepted = f"expected two or three of {', '.join(get_args(Metric))}"
        raise SpecError(f"--front {asked.front}: {accepted}")
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


def run_search(search: Search, asked: Asked) -> tuple[Summary, bool]:
    """Return what a search found, and whether it was interrupted.

    Raises:
        MeshwrightError: options or the store cannot be used.
    """
    from joblib import cpu_count

    want = wanted(search, asked)
    with Store(asked.store) as store:
        watch = Watch(len(search.cases), want.best, want.group)
        run = Run(search.cases, asked.recipe, store, watch.take)
        is_interrupted = False
        try:
            if asked.resume:
                run.resume()
            if run.is_open:
                workers = asked.workers or cpu_count()
                with watch, open_pool(asked.backend, workers, asked.address) as pool:
                    run.solve(pool)
        except KeyboardInterrupt:
            is_interrupted = True
    for path in asked.outputs:
        export(run.rows, path)
    left = len(search.cases) - len(run.rows)
    summary = summarise(search.title, run.rows, want.best, want.group, want.front, left)
    return summary, is_interrupted
