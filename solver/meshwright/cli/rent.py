"""`meshwright search --clouds`: what to rent."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.cli.exit_codes import FOUND, NONE_FITS, UNDECIDED
from meshwright.cli.options import Format, formatted, tell, write

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
    from meshwright.errors import SpecError
    from meshwright.escape import printable

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

    from meshwright.errors import SpecError
    from meshwright.escape import printable
    from meshwright.spec.units import Days

    try:
        return float(TypeAdapter(Days).validate_python(text))
    except ValidationError as error:
        told = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise SpecError(f"{option} {printable(text[:60])}: {told}") from None


def find(
    spec: str | None,
    asked: Asked,
    *,
    prices: Path | None,
    tokens: str | None,
    budget: str | None,
    deadline: str | None,
    workers: int | None,
    time_limit: float | None,
    profile: str,
    seed: int,
) -> RentalAnswer:
    """Return what to rent for what the command line asks."""
    from meshwright.api.rent import rent
    from meshwright.cli.interrupts import interruptible
    from meshwright.cli.progress import Progress
    from meshwright.loading.price_list import offered_specs, priced_machines

    budget_usd = amount("--budget", budget, "100000") if budget else None
    deadline_days = days("--deadline", deadline) if deadline else None
    run_tokens = amount("--tokens", tokens, "2T") if tokens else None
    notes: list[str] = []
    with interruptible() as interrupt, Progress() as progress:
        machines = priced_machines(prices)
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

    data = answer.model_dump(mode="json")
    text = formatted(output_format, lambda: rental_sections(answer), lambda: data)
    write(text, None)


def exit_code(answer: RentalAnswer) -> int:
    """Return 3 if choices are undecided; else whether something can be rented."""
    if answer.status == "unknown":
        return UNDECIDED
    return FOUND if answer.front else NONE_FITS
