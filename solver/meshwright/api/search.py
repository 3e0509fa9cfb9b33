"""Solves many specs: `meshwright.search`, and `meshwright.rent`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meshwright import DEFAULT_PROFILE
from meshwright.api.arguments import checked
from meshwright.api.options import OnProgress, StrPath, or_endless, quiet, read_profile
from meshwright.api.solve import model_size
from meshwright.cost.profile import Profile
from meshwright.deadline import Deadline, Interrupt
from meshwright.errors import SpecError
from meshwright.loading.asked import Asked, OpenCount, count_of
from meshwright.loading.price_list import Offered, offered_specs, priced_machines
from meshwright.loading.sources import Source
from meshwright.planner.options import Options
from meshwright.results.training_run import RentalAnswer
from meshwright.spec.base import to_amount
from meshwright.surface import sent
from meshwright.sweeps.cases import SolveSettings
from meshwright.sweeps.open_choices import OpenChoice
from meshwright.sweeps.pools import rental_pool
from meshwright.sweeps.rentals import RunLimits, ToSolve, ranked, rental_choices
from meshwright.sweeps.run_search import SearchOptions, run_search
from meshwright.sweeps.summary import SearchResult
from meshwright.sweeps.sweep import Search, read_search

BACKENDS = ("processes", "dask", "ray")


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


@checked
def rent(
    spec: Source | None = None,
    *,
    tokens: float | str | None = None,
    budget_usd: float | None = None,
    deadline_days: float | None = None,
    prices: StrPath | None = "clouds",
    notes: list[str] | None = None,
    model: str | Mapping[str, Any] | None = None,
    count: OpenCount | str | None = None,
    framework: str | None = None,
    seq_len: int | str | None = None,
    batch: int | None = None,
    precision: str | None = None,
    lora: int | None = None,
    workers: int | None = None,
    time_limit_s: float | None = None,
    profile: str | Profile = DEFAULT_PROFILE,
    seed: int = 0,
) -> RentalAnswer:
    """Return which machines to rent for a run: the front of price against time.

    Args:
        spec: A spec of training: a path, a bundled name, YAML text or a mapping. Not
            needed with `model`; the machines are those that have a price.
        tokens: Tokens of the run, as a number or as '2T'; or `run.tokens` of the spec.
        budget_usd: What the whole run may cost.
        deadline_days: Days that the whole run may take.
        prices: A file of prices; 'clouds' for the bundled list prices; None for the
            machines of the spec at the prices that it has.
        notes: Gets what was assumed.
        model: As in `load`.
        count: Machines of each kind, as in `load`; without it up to what is offered.
        framework: As in `load`.
        seq_len: As in `load`.
        batch: As in `load`.
        precision: As in `load`.
        lora: As in `load`.
        workers: How many choices are solved at a time; without it one per core.
        time_limit_s: Stop after so many seconds, with the front so far.
        profile: As in `solve`.
        seed: The seed of CP-SAT.

    Raises:
        SpecError: names the argument, or the file, line, field and value.

    Example:
        >>> import meshwright as mw
        >>> told = mw.rent(
        ...     model="qwen2.5-0.5b", tokens="1B", count=1, workers=1
        ... )
        >>> told.front[0].usd < 100
        True
    """
    for name, value in (("budget_usd", budget_usd), ("deadline_days", deadline_days)):
        if value is not None and not 0 < value < math.inf:
            raise SpecError(f"{name}: {value!r}: expected a number above 0")
    path = Path(prices) if prices is not None and prices != "clouds" else None
    asked = Asked(
        model=model,
        count=count_of(count, "count"),
        framework=framework,
        seq_len=seq_len,
        batch=batch,
        precision=precision,
        lora=lora,
    )
    told = [] if notes is None else notes
    machines = None if prices is None else priced_machines(path)
    with sent():
        offered = offered_specs(spec, asked, machines, tokens_of(tokens), told)
    return rent_offered(
        offered,
        budget_usd=budget_usd,
        deadline_days=deadline_days,
        workers=workers,
        time_limit_s=time_limit_s,
        profile=profile,
        seed=seed,
    )


def tokens_of(tokens: float | str | None) -> float | None:
    """Return the tokens of a run, of a number or of text such as '2T'.

    Raises:
        SpecError: names the argument and its value.
    """
    number = to_amount(tokens) if isinstance(tokens, str) else tokens
    if tokens is not None and not 0 < (number or 0) < math.inf:
        raise SpecError(f"tokens: {tokens!r}: expected a number above 0, such as '2T'")
    return number


def rent_offered(
    offered: Offered,
    *,
    budget_usd: float | None = None,
    deadline_days: float | None = None,
    workers: int | None = None,
    time_limit_s: float | None = None,
    profile: str | Profile = DEFAULT_PROFILE,
    seed: int = 0,
    on_progress: OnProgress = quiet,
    interrupt: Interrupt | None = None,
) -> RentalAnswer:
    """Return the front of price against time of a run on machines that are offered.

    Args:
        offered: The specs of the question on every machine.
        budget_usd: What the whole run may cost.
        deadline_days: What the whole run may take.
        workers: How many choices are solved at a time; the answer is the same for any.
            Without it one per core.
        time_limit_s: Stop after so many seconds, with the front so far.
        profile: Efficiencies: a file of `meshwright calibrate`, or a bundled name.
        seed: The seed of CP-SAT.
        on_progress: Called with a line whenever something else is being done.
        interrupt: Brings on the end of the time limit once its `is_asked` is set.

    Raises:
        SpecError: the profile cannot be read, or steps take days.
    """
    fitted = read_profile(profile)
    interrupt = interrupt or Interrupt()
    options = Options(seed=seed, profile=fitted, interrupt=interrupt)
    deadline = Deadline(or_endless(time_limit_s), interrupt)
    choices = rental_choices(offered.specs, fitted)
    limits = RunLimits(or_endless(budget_usd), or_endless(deadline_days))

    def solve_all(asked: list[ToSolve]) -> list[OpenChoice]:
        solved = sum(found.choice.step_s is not None for found in choices)
        first = asked[0].choice.spec.cluster
        on_progress(
            f"{solved:,} solved of {len(choices):,} choices; looking at "
            f"{first.count:,} x {first.topology.name} and {len(asked) - 1} more"
        )
        return pool(asked)

    with interrupt.heeded(), rental_pool(workers, options, deadline) as pool:
        found = ranked(choices, limits, solve_all)
    spec = offered.specs[0].spec
    status = "optimal" if found.front else "infeasible"
    return RentalAnswer(
        title=f"{spec.model.name}, {spec.framework}, {spec.training.precision}",
        status=status if found.is_whole else "unknown",
        model=model_size(spec),
        tokens=spec.run.tokens or 0.0,
        budget_usd=budget_usd,
        deadline_days=deadline_days,
        front=tuple(map(found.told, found.front)),
        binds=found.binds,
        cheapest_in_time=found.told(found.in_time) if found.in_time else None,
        fastest_in_budget=found.told(found.in_budget) if found.in_budget else None,
        closed=found.closed,
        rentals=found.rentals,
        impossible=len(offered.errors),
        why_impossible=offered.errors[0] if offered.errors else "",
    )
