"""`meshwright search --clouds`: what to rent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.cli.exit_codes import FOUND, NONE_FITS, UNDECIDED
from meshwright.cli.options import Format, formatted, tell, write
from meshwright.errors import SpecError
from meshwright.escape import printable

if TYPE_CHECKING:
    from meshwright.loading.asked import Asked
    from meshwright.results.rentals import RentalAnswer

THOUSANDS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}

_AMOUNT = re.compile(r"\$?\s*([0-9][0-9_,]*\.?[0-9]*(?:e\+?[0-9]{1,2})?)\s*([kmbt]?)")


def amount(option: str, text: str, example: str) -> float:
    """Return a number above 0 from text such as 100000, 2.5M or 2T.

    Raises:
        SpecError: names the option, the text and an example.
    """
    found = _AMOUNT.fullmatch(text.strip().lower()) if len(text) < 40 else None
    number = 0.0
    if found:
        number = float(found[1].replace(",", "").replace("_", "")) * THOUSANDS[found[2]]
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
    """What the command line says of prices and of the run."""

    clouds: bool
    prices: Path | None
    budget: str | None
    deadline: str | None
    tokens: str | None

    @property
    def is_asked(self) -> bool:
        """Return whether any of it is said."""
        return any(own not in (None, False) for own in vars(self).values())


def find(
    spec: str | None,
    asked: Asked,
    rented: Rented,
    *,
    workers: int | None,
    time_limit: float | None,
    profile: str,
    seed: int,
) -> RentalAnswer:
    """Return what to rent for what the command line asks.

    Raises:
        SpecError: names the option, or the file, line, field and value.
    """
    from meshwright.api.rent import rent
    from meshwright.cli.interrupts import interruptible
    from meshwright.cli.progress import Progress
    from meshwright.loading.price_list import offered_specs, priced_machines

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
        return rent(
            offered,
            budget_usd=budget_usd,
            deadline_days=deadline_days,
            workers=workers,
            time_limit_s=time_limit,
            profile=profile,
            seed=seed,
            on_progress=progress.say,
            interrupt=interrupt,
        )


def show(answer: RentalAnswer, output_format: Format, outputs: Iterable[Path]) -> None:
    """Print what to rent, and write all choices to files."""
    from meshwright.report.rentals import rental_sections

    data = answer.to_dict()
    text = formatted(output_format, lambda: rental_sections(answer), lambda: data)
    write(text, None)
    for path in outputs:
        write(_written(answer, data, path), path)


def check_kind(path: Path) -> None:
    """Refuse a file of a kind that choices cannot be written to, before any solve.

    Raises:
        SpecError: names the kinds.
    """
    if path.suffix not in (".csv", ".json"):
        accepted = "expected NAME.csv or NAME.json of what to rent"
        raise SpecError(f"--output {printable(str(path))}: {accepted}")


def _written(answer: RentalAnswer, data: Any, path: Path) -> str:
    """Return all choices as CSV, or the answer as JSON."""
    from meshwright.sweeps.export import csv_text

    if path.suffix == ".json":
        return json.dumps(data, indent=2) + "\n"
    cells = [
        own.model_dump(mode="json", exclude={"plan"})
        | {"plan": str(own.plan) if own.plan else None}
        for own in answer.rentals
    ]
    return csv_text(cells)


def refuse_beside(given: Mapping[str, bool], why: str) -> None:
    """Refuse options that are for the other kind of search.

    Raises:
        SpecError: one of them was given.
    """
    for name, is_given in given.items():
        if is_given:
            raise SpecError(f"{name}: {why}")


def exit_code(answer: RentalAnswer) -> int:
    """Return 3 if choices are undecided; else whether something can be rented."""
    if answer.status == "unknown":
        return UNDECIDED
    return FOUND if answer.front else NONE_FITS
