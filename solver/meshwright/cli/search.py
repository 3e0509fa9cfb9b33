"""`meshwright search`: many specs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.errors import BAD_INPUT, FOUND, NONE_FITS, UNDECIDED
from meshwright.cli.options import Words, in_words
from meshwright.cli.output import Format, show, tell, write
from meshwright.errors import SpecError, refuse_given
from meshwright.escape import printable

if TYPE_CHECKING:
    from meshwright.loading.asked import Asked
    from meshwright.results.training_run import RentalAnswer
    from meshwright.sweeps.summary import SearchResult


def amount(option: str, text: str, example: str) -> float:
    """Return a number above 0 from text such as 100000, 2.5M or 2T.

    Raises:
        SpecError: names the option, the text and an example.
    """
    from meshwright.spec.base import to_amount

    number = to_amount(text) or 0.0
    if not 0 < number < 1e18:
        told = f"expected a number above 0, such as {example}"
        raise SpecError(f"{option} {printable(text[:60])}: {told}")
    return number


def days(option: str, text: str) -> float:
    """Return days from text such as 30d, 12h or '4 weeks'.

    Raises:
        SpecError: names the option, the text and what is accepted.
    """
    from pydantic import TypeAdapter, ValidationError

    from meshwright.spec.units import Days

    try:
        return float(TypeAdapter(Days).validate_python(text))
    except ValidationError as error:
        told = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise SpecError(f"{option} {printable(text[:60])}: {told}") from None


@dataclass(frozen=True)
class Rented:
    """The options on prices and on the run."""

    clouds: bool
    prices: Path | None
    budget: str | None
    deadline: str | None
    tokens: str | None

    @property
    def is_asked(self) -> bool:
        """Return whether any of them is given."""
        return any(option not in (None, False) for option in vars(self).values())


def _rent(
    spec: str | None,
    asked: Asked,
    rented: Rented,
    outputs: Sequence[Path],
    output_format: Format,
    **effort: Any,
) -> int:
    """Print what to rent, write all choices to files, and return the exit code.

    It is 3 if choices are undecided; else it says whether something can be rented.

    Raises:
        SpecError: names the option, or the file, line, field and value.
    """
    for path in outputs:
        if path.suffix not in (".csv", ".json"):
            accepted = "expected NAME.csv or NAME.json of what to rent"
            raise SpecError(f"--output {printable(str(path))}: {accepted}")
    from meshwright.api.search import rent_offered
    from meshwright.cli.output import Progress, interruptible
    from meshwright.loading.price_list import offered_specs, priced_machines
    from meshwright.report.runs import rental_sections

    budget, deadline, tokens = rented.budget, rented.deadline, rented.tokens
    budget_usd = None if budget is None else amount("--budget", budget, "100000")
    deadline_days = None if deadline is None else days("--deadline", deadline)
    run_tokens = None if tokens is None else amount("--tokens", tokens, "2T")
    has_list = rented.clouds or rented.prices is not None
    notes: list[str] = []
    with interruptible() as interrupt, Progress() as progress:
        machines = priced_machines(rented.prices) if has_list else None
        offered = offered_specs(spec, asked, machines, run_tokens, notes)
        tell(notes)
        answer = rent_offered(
            offered,
            budget_usd=budget_usd,
            deadline_days=deadline_days,
            on_progress=progress.say,
            interrupt=interrupt,
            **effort,
        )
    show(partial(rental_sections, answer), answer.to_dict, output_format)
    for path in outputs:
        write(_rentals_as_file(answer, path), path)
    if answer.status == "unknown":
        return UNDECIDED
    return FOUND if answer.front else NONE_FITS


def _rentals_as_file(answer: RentalAnswer, path: Path) -> str:
    """Return all choices as CSV, or the answer as JSON."""
    from meshwright.sweeps.export import csv_text

    if path.suffix == ".json":
        return answer.to_json()
    cells = [
        rental.model_dump(mode="json", exclude={"plan"})
        | {"plan": str(rental.plan) if rental.plan else None}
        for rental in answer.rentals
    ]
    return csv_text(cells)


MOST_PAGE_BYTES = 2_000_000
"""Size above which a note tells how large a page is."""

Backend = Literal["processes", "dask", "ray"]
"""Where cases are solved."""


def search(
    sweep: str | None = None,
    clouds: bool = False,
    prices: Path | None = None,
    budget: str | None = None,
    deadline: str | None = None,
    tokens: str | None = None,
    model: str | None = None,
    count: str | None = None,
    framework: str | None = None,
    seq_len: str | None = None,
    batch: int | None = None,
    precision: str | None = None,
    store: Path | None = None,
    resume: bool = True,
    output: list[Path] | None = None,
    best: str | None = None,
    group: str | None = None,
    front: str | None = None,
    within: str | None = None,
    workers: int | None = None,
    backend: Backend = "processes",
    address: str | None = None,
    time_limit: float | None = None,
    memory_limit: float | None = None,
    profile: str = DEFAULT_PROFILE,
    seed: int = 0,
    output_format: Format = "table",
) -> None:
    """Solve many specs; list the best, the trade-offs, and those that do not fit."""
    training = framework, seq_len, batch, precision
    asked = in_words(Words(model, None, None, None, count, *training))
    rented = Rented(clouds, prices, budget, deadline, tokens)
    effort: dict[str, Any] = {"workers": workers, "time_limit_s": time_limit}
    effort |= {"profile": profile, "seed": seed}
    if rented.is_asked:
        refuse_given(
            {
                "--store": store is not None,
                "--best": best is not None,
                "--group": group is not None,
                "--front": front is not None,
                "--within": within is not None,
                "--backend": backend != "processes",
                "--address": address is not None,
                "--memory-limit": memory_limit is not None,
            },
            "for sweeps; what to rent is one front of price against time",
        )
        raise typer.Exit(
            _rent(sweep, asked, rented, output or (), output_format, **effort)
        )
    if sweep is None:
        told = "missing; expected a sweep, or --model NAME --tokens 2T --clouds"
        raise SpecError(f"SWEEP: {told}")
    refuse_given(
        {
            f"--{name.replace('_', '-')}": option not in (None, ())
            for name, option in vars(asked).items()
        },
        "for what to rent, beside --clouds; a sweep has it in its base",
    )
    from meshwright.api.search import search as search_specs
    from meshwright.sweeps.export import search_sections
    from meshwright.sweeps.sweep import read_search

    store = store or Path(f"{Path(sweep).stem or 'search'}.sqlite")
    specs = read_search(sweep)
    tell(specs.notes)
    found = search_specs(
        specs,
        store=store,
        resume=resume,
        outputs=output or (),
        best=best,
        group=group,
        front=front.split(",") if front is not None else None,
        within=within,
        backend=backend,
        address=address,
        memory_limit_gib=memory_limit,
        **effort,
    )
    show(partial(search_sections, found), found.to_dict, output_format)
    tell([f"results are in {store}", *_large(output or (), len(found.rows))])
    if found.left:
        tell([f"interrupted: {found.left} cases left; run it again to go on"])
    raise typer.Exit(exit_code(found))


def _large(outputs: Sequence[Path], cases: int) -> list[str]:
    """Return notes on pages that are too large to be mailed without a thought."""
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
