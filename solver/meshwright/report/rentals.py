"""What to rent, as tables."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.plan_text import short_plan_text
from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.rentals import Rental, RentalAnswer

HEADING = ("instance", "count", "GPUs", "plan", "step", "days", "USD", "status")


def rental_sections(answer: RentalAnswer) -> list[Section]:
    """Return the sections of an answer: the front, or what cannot be kept."""
    return [Lines(_title(answer), tuple(_summary(answer))), *_tables(answer)]


def _title(answer: RentalAnswer) -> str:
    return f"What to rent: {answer.title}, {_tokens(answer.tokens)} tokens"


def _tokens(tokens: float) -> str:
    """Return tokens as `--tokens` takes them."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if tokens >= size:
            return f"{tokens / size:,.6g}{unit}"
    return f"{tokens:,.0f}"


def _few_digits(days: float) -> str:
    """Return days with three digits, or those before the point."""
    return f"{days:,.0f}" if days >= 100 else f"{days:.3g}"


def _duration(days: float) -> str:
    return f"{days:,.4g} days" if days >= 1 else f"{days * 24:.3g} hours"


def _summary(answer: RentalAnswer) -> Iterator[str]:
    yield answer.model.text
    types = len({(own.cloud, own.instance) for own in answer.rentals})
    told = f"{types} instance types of {', '.join(answer.clouds)}"
    if answer.dates:
        told += f"; list prices of {' to '.join(_ends(answer))}, on demand"
    yield told
    yield f"{_limits(answer)}: {_verdict(answer)}"
    closed = answer.closed
    yield (
        f"Of {len(answer.rentals):,} choices {closed.solved:,} were solved, "
        f"{closed.bounded:,} are worse by a bound, {closed.none_fits:,} have no plan"
        + (f", {closed.undecided:,} undecided" if closed.undecided else "")
    )
    if answer.impossible:
        yield f"{answer.impossible:,} more cannot be: {answer.why_impossible}"


def _ends(answer: RentalAnswer) -> list[str]:
    dates = [str(own) for own in answer.dates]
    return list(dict.fromkeys((dates[0], dates[-1])))


def _limits(answer: RentalAnswer) -> str:
    limits = []
    if answer.budget_usd is not None:
        limits.append(f"{answer.budget_usd:,.0f} USD")
    if answer.deadline_days is not None:
        limits.append(_duration(answer.deadline_days))
    return "Within " + " and ".join(limits) if limits else "Without limits"


def _verdict(answer: RentalAnswer) -> str:
    """Return in words what was found, or what binds."""
    if answer.status == "unknown":
        return "not all was looked at; what follows is the best so far"
    if answer.front:
        return f"{len(answer.front)} to choose from, each cheaper or faster than others"
    return {
        "budget": "nothing; the budget binds, no choice keeps it in any time",
        "deadline": "nothing; the deadline binds, no choice keeps it at any price "
        f"(up to {max(own.count for own in answer.rentals):,} machines; see --count)",
        "both": "nothing; each alone can be kept, not both together",
    }.get(answer.binds, "no choice has a plan that fits")


def _tables(answer: RentalAnswer) -> Iterator[Table]:
    if answer.front:
        yield _table("Front of price against time, the cheapest first", answer.front)
    for title, own in (
        ("The cheapest within the deadline", answer.cheapest_in_time),
        ("The fastest within the budget", answer.fastest_in_budget),
    ):
        if own is not None:
            yield _table(title, (own,))
    shown = [*answer.front, answer.cheapest_in_time, answer.fastest_in_budget]
    rentals = {own.instance: own for own in shown if own is not None}
    if rentals:
        yield _prices(tuple(rentals.values()))


def _table(title: str, rentals: tuple[Rental, ...]) -> Table:
    rows = tuple(
        (
            own.instance,
            f"{own.count:,}",
            f"{own.gpus:,}",
            short_plan_text(own.plan) if own.plan else "-",
            seconds_text(own.step_s or 0.0),
            _few_digits(own.days or 0.0),
            f"{own.usd:,.0f}",
            own.status or "-",
        )
        for own in rentals
    )
    return Table(title, HEADING, rows)


def _prices(rentals: tuple[Rental, ...]) -> Table:
    rows = tuple(
        (
            own.instance,
            f"{own.cloud} {own.region}",
            f"{own.gpus_per_node} x {own.gpu}",
            "-" if own.network_gbit_s is None else f"{own.network_gbit_s:,.0f}",
            f"{own.hour_usd:,.2f}",
            str(own.price_date or "no date"),
        )
        for own in rentals
    )
    heading = ("instance", "where", "GPUs", "Gbit/s", "USD/h", "list price of")
    return Table("Prices", heading, rows)
