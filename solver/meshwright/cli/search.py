"""`meshwright search`: many specs at once."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli import rent
from meshwright.cli.asked import (
    BatchOption,
    CountOption,
    FrameworkOption,
    ModelOption,
    PrecisionOption,
    SeqLenOption,
    in_words,
)
from meshwright.cli.exit_codes import BAD_INPUT, FOUND, NONE_FITS, UNDECIDED
from meshwright.cli.options import (
    LARGEST_SEED,
    Format,
    FormatOption,
    ProfileOption,
    check_writable,
    formatted,
    make_folder_of,
    tell,
    write,
)
from meshwright.errors import SpecError

if TYPE_CHECKING:
    from meshwright.sweeps.summary import SearchResult


RENT = "What to rent"

MOST_PAGE_BYTES = 2_000_000
"""Size up to which nothing is said of a page."""


class Backend(StrEnum):
    """Where cases are solved."""

    processes = "processes"
    dask = "dask"
    ray = "ray"


def search(
    sweep: Annotated[
        str | None,
        typer.Argument(
            help="A sweep (YAML, or a bundled name), a spec, a folder or a pattern; "
            "not needed with --model and --clouds."
        ),
    ] = None,
    clouds: Annotated[
        bool,
        typer.Option(
            "--clouds",
            help="Rank what to rent: instance types by their list prices.",
            rich_help_panel=RENT,
        ),
    ] = False,
    prices: Annotated[
        Path | None,
        typer.Option(help="Rank the machines of a price list.", rich_help_panel=RENT),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="USD for the run: 100000, 2.5M.", rich_help_panel=RENT),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(help="Of the run: 30d, 12h, '4 weeks'.", rich_help_panel=RENT),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(help="Of the run: 300e9, 2T.", rich_help_panel=RENT),
    ] = None,
    model: ModelOption = None,
    count: CountOption = None,
    framework: FrameworkOption = None,
    seq_len: SeqLenOption = None,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    store: Annotated[
        Path | None,
        typer.Option(help="Results stream into this SQLite file; default NAME.sqlite."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Take what the store has already."),
    ] = True,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "-o", "--output", help="All rows: NAME.csv, .parquet, .json or .html."
        ),
    ] = None,
    best: Annotated[
        str | None, typer.Option(help="The metric that makes a case best.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="The axis whose values make groups.")
    ] = None,
    front: Annotated[
        str | None, typer.Option(help="Two or three metrics to trade off: A,B[,C].")
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(
            help="The front of one spec: its step time against peak_gib, risk, gpus or "
            "ways (beyond data parallelism, that a plan uses)."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=512, help="Default: one per core.")
    ] = None,
    backend: Annotated[
        Backend, typer.Option(help="Who runs the workers.")
    ] = Backend.processes,
    address: Annotated[
        str | None, typer.Option(help="Of a running Dask or Ray cluster.")
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds that a case may take.")
    ] = None,
    memory_limit: Annotated[
        float | None, typer.Option(min=0.1, help="GiB that a worker may hold.")
    ] = None,
    profile: ProfileOption = DEFAULT_PROFILE,
    seed: Annotated[
        int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of CP-SAT.")
    ] = 0,
    output_format: FormatOption = Format.table,
) -> None:
    """Solve many specs, and say what is best, what trades off, and what fits not."""
    for path in output or ():
        check_writable(path)
    asked = in_words(
        (model, None, None, None, count, framework, seq_len, batch, precision)
    )
    rented = rent.Rented(clouds, prices, budget, deadline, tokens)
    if rented.is_asked:
        rent.refuse_beside(
            {
                "--store": store is not None,
                "--best": best is not None,
                "--group": group is not None,
                "--front": front is not None,
                "--within": within is not None,
                "--backend": backend is not Backend.processes,
                "--address": address is not None,
                "--memory-limit": memory_limit is not None,
            },
            "for sweeps; what to rent is one front of price against time",
        )
        for path in output or ():
            rent.check_kind(path)
        answer = rent.find(
            sweep,
            asked,
            rented,
            workers=workers,
            time_limit=time_limit,
            profile=profile,
            seed=seed,
        )
        rent.show(answer, output_format, output or ())
        raise typer.Exit(rent.exit_code(answer))
    if sweep is None:
        told = "missing; expected a sweep, or --model NAME --tokens 2T --clouds"
        raise SpecError(f"SWEEP: {told}")
    rent.refuse_beside(
        {
            f"--{name.replace('_', '-')}": own is not None
            for name, own in vars(asked).items()
        },
        "for what to rent, beside --clouds; a sweep has it in its base",
    )
    from meshwright.api.search import search as search_specs
    from meshwright.sweeps.sweep import read_search
    from meshwright.sweeps.tables import search_sections

    store = store or Path(f"{Path(sweep).stem or 'search'}.sqlite")
    specs = read_search(sweep)
    tell(specs.notes)
    for path in output or ():
        make_folder_of(path, "--output")
    make_folder_of(store, "--store")
    found = search_specs(
        specs,
        store=store,
        resume=resume,
        outputs=output or (),
        best=best,
        group=group,
        front=front.split(",") if front is not None else None,
        within=within,
        workers=workers,
        backend=backend.value,
        address=address,
        time_limit_s=time_limit,
        memory_limit_gib=memory_limit,
        profile=profile,
        seed=seed,
    )
    text = formatted(output_format, lambda: search_sections(found), found.to_dict)
    write(text, None)
    tell([f"results are in {store}", *_large(output or (), len(found.rows))])
    if found.left:
        tell([f"interrupted: {found.left} cases left; run it again to go on"])
    raise typer.Exit(exit_code(found))


def _large(outputs: Sequence[Path], cases: int) -> list[str]:
    """Return why pages are larger than what is sent along without a thought."""
    return [
        f"{path} has {path.stat().st_size / 1e6:.1f} MB: 1.9 draw charts, the rest "
        f"are {cases:,} cases"
        for path in outputs
        if path.suffix == ".html" and path.stat().st_size > MOST_PAGE_BYTES
    ]


def exit_code(found: SearchResult) -> int:
    """Return 3 if cases are undecided; else whether one has a plan, or all are bad."""
    counts = found.counts
    if found.left or counts["unknown"]:
        return UNDECIDED
    if counts["optimal"] or counts["feasible"]:
        return FOUND
    return NONE_FITS if counts["infeasible"] else BAD_INPUT
