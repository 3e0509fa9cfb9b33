"""Solves many specs: `meshwright.search`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from meshwright import DEFAULT_PROFILE
from meshwright.api.arguments import checked
from meshwright.api.options import read_profile
from meshwright.cost.profile import Profile
from meshwright.errors import SpecError
from meshwright.loading.sources import Source
from meshwright.sweeps.cases import SolveSettings
from meshwright.sweeps.run_search import SearchOptions, run_search
from meshwright.sweeps.summary import SearchResult
from meshwright.sweeps.sweep import Search, read_search

BACKENDS = ("processes", "dask", "ray")

StrPath = str | os.PathLike[str]


@checked
def search(
    sweep: Source | Search,
    *,
    store: StrPath | None = None,
    resume: bool = True,
    outputs: Iterable[StrPath] = (),
    best: str | None = None,
    group: str | None = None,
    front: Sequence[str] | None = None,
    within: str | None = None,
    workers: int | None = None,
    backend: str = "processes",
    address: str | None = None,
    time_limit_s: float | None = None,
    memory_limit_gib: float | None = None,
    profile: str | Profile = DEFAULT_PROFILE,
    seed: int = 0,
) -> SearchResult:
    """Return the plans of many specs, which of them are best, and which trade off.

    Args:
        sweep: A sweep or a spec: a path, a bundled name, YAML text or a mapping. Or a
            folder, or a pattern such as 'specs/*.yaml'.
        store: The SQLite file into which results stream, and from which a search that
            was interrupted goes on. Without it nothing is kept.
        resume: Whether to take what the store has already.
        outputs: Files to write all rows to: NAME.csv, .parquet, .json or .html.
        best: The metric that makes a case best; without it that of the sweep.
        group: The axis whose values make groups; without it that of the sweep.
        front: Two or three metrics to trade off; without them those of the sweep.
        within: The front of one spec: its step time against 'peak_gib', 'risk', 'gpus'
            or 'ways' (techniques beyond data parallelism that a plan uses).
        workers: How many cases are solved at a time; without it one per core.
        backend: Who runs the workers: 'processes', 'dask' or 'ray'.
        address: Of a running Dask or Ray cluster.
        time_limit_s: Seconds that a case may take.
        memory_limit_gib: What a worker may hold.
        profile: Efficiencies: a file of `meshwright calibrate`, or bundled, `measured`
            (fitted to published runs) or `unfitted`.
        seed: The seed of CP-SAT.

    Raises:
        SpecError: the sweep or an option cannot be used; names the file, the line, the
            field, the value, and what is accepted.

    Example:
        >>> import meshwright as mw
        >>> sweep = {
        ...     "base": "llama3-8b-2xh100-nvlink",
        ...     "sweep": {"training.seq_len": [4096, 8192]},
        ... }
        >>> found = mw.search(sweep, best="mfu", workers=1)
        >>> [row.axes["training.seq_len"] for row in found.rows]
        [4096, 8192]
        >>> found.best["all cases"].status
        'optimal'
    """
    if backend not in BACKENDS:
        raise SpecError(f"backend: {backend!r}: expected {', '.join(BACKENDS)}")
    settings = SolveSettings(
        read_profile(profile), seed, time_limit_s, memory_limit_gib
    )
    found = sweep if isinstance(sweep, Search) else read_search(sweep)
    with _kept(store) as path:
        asked = SearchOptions(
            store=path,
            settings=settings,
            resume=resume,
            outputs=[Path(output) for output in outputs],
            best=best,
            group=group,
            front=front,
            within=within,
            backend=backend,
            workers=workers,
            address=address,
        )
        return run_search(found, asked)


@contextmanager
def _kept(store: StrPath | None) -> Iterator[Path]:
    """Yield the path of a store, in a temporary folder where none is named."""
    if store is not None:
        yield Path(store)
        return
    with TemporaryDirectory(prefix="meshwright-") as folder:
        yield Path(folder) / "search.sqlite"
