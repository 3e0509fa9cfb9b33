"""A training run and machines to rent for it, as tables and lines."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.claims import short_plan_text
from meshwright.results.training_run import (
    Chinchilla,
    Compression,
    DeadlineCheck,
    Failures,
    Rental,
    RentalAnswer,
    RunReport,
    StragglerPrice,
)
from meshwright.spec.open_spec import ANY_REGION, NO_CLOUD
from meshwright.spec.units import counted, few_digits
from meshwright.surface import option


def run_sections(run: RunReport | None) -> list[Section]:
    """Return the report on a run: first its length and its cost."""
    if run is None:
        return []
    parts: list[Section] = [Lines("The run", tuple(_lines(run)))]
    if saving := _saving(run):
        parts.append(_compression_table(saving))
    return parts


def _saving(run: RunReport) -> tuple[Compression, ...]:
    """Return the schemes with which the run is shorter."""
    return tuple(scheme for scheme in run.compression if (scheme.saved_days or 0.0) > 0)


def run_lines(run: RunReport) -> Iterator[str]:
    """Yield how long a run takes, what it costs, and whether it meets its deadline."""
    if run.tokens is not None:
        yield _length(run)
    yield from _prices(run)
    if run.deadline:
        yield _deadline_line(run.deadline)


def _lines(run: RunReport) -> Iterator[str]:
    yield from run_lines(run)
    if run.flops_6nd is not None:
        exact = f"{run.flops_exact:.4g} exactly"
        yield f"FLOPs: {run.flops_6nd:.4g} by 6ND, {exact}"
    yield f"MFU {run.mfu:.1%}, HFU {run.hfu:.1%} (with what is recomputed)"
    yield (
        f"State of {run.params / 1e9:,.2f}B parameters: {run.state_gb:,.0f} GB, so "
        f"{run.least_gpus:,} GPU{'s' if run.least_gpus > 1 else ''} at least"
    )
    if run.chinchilla:
        yield _optimum_line(run.chinchilla)
    if run.failures:
        yield from _failure_lines(run.failures)
    yield from _straggler_lines(run.straggler)
    if run.compression and not _saving(run):
        yield "No compression of gradients saves time"


def _length(run: RunReport) -> str:
    steps = f"{_tokens(run.tokens or 0.0, 4)} tokens in {run.steps:,.0f} steps"
    if run.days is None or run.ideal_days is None:
        return f"{steps}: never, failures leave no time"
    lost = (
        "" if run.days == run.ideal_days else f" ({run.ideal_days:,.1f} without loss)"
    )
    return f"{steps}: {run.days:,.1f} days{lost}, {run.gpu_hours:,.0f} GPU hours"


def _prices(run: RunReport) -> Iterator[str]:
    known = []
    if run.cost_usd is not None:
        known.append(f"{run.cost_usd:,.0f} USD")
    if run.usd_per_mtoken is not None:
        known.append(f"{few_digits(run.usd_per_mtoken)} USD per million tokens")
    if run.energy_mwh is not None:
        known.append(f"{few_digits(run.energy_mwh)} MWh at the GPUs' power limit")
    if known:
        yield ", ".join(known)


def _deadline_line(deadline: DeadlineCheck) -> str:
    verdict = "met" if deadline.is_met else "missed"
    needed = (
        f", {deadline.rate_needed:.3g} of the rate would do"
        if deadline.rate_needed
        else ""
    )
    by_then = f"{_tokens(deadline.tokens, 4)} tokens by then"
    return f"Deadline of {deadline.days:g} days: {verdict}{needed}; {by_then}"


def _optimum_line(optimum: Chinchilla) -> str:
    tokens = _tokens(optimum.tokens, 4)
    best = f"{optimum.params / 1e9:,.4g}B parameters on {tokens} tokens"
    way = "over" if optimum.overtrained >= 1 else "under"
    factor = max(optimum.overtrained, 1 / optimum.overtrained)
    return (
        f"Compute-optimal for {optimum.budget_flops:.4g} FLOPs: {best}; this one is "
        f"{way}-trained {factor:.3g} times: {few_digits(optimum.tokens_per_param)} "
        "tokens a parameter"
    )


def _failure_lines(failures: Failures) -> Iterator[str]:
    count = "" if failures.expected is None else f", {failures.expected:,.1f} expected"
    yield f"A failure every {few_digits(failures.mtbf_hours)} hours{count}"
    if failures.interval_s is None or failures.goodput is None:
        return
    young_s, stall_s = failures.young_s or 0.0, failures.stall_s or 0.0
    yield (
        f"Checkpoints of {failures.checkpoint_gb:,.0f} GB every "
        f"{few_digits(failures.interval_s / 60)} minutes (Daly; "
        f"{few_digits(young_s / 60)} by Young), each stalls {seconds_text(stall_s)}"
    )
    yield from _interval_reason(failures)
    lost = (
        "" if failures.lost_days is None else f", {failures.lost_days:,.2f} days lost"
    )
    yield f"Goodput {failures.goodput:.2%}{lost}"


def _interval_reason(failures: Failures) -> Iterator[str]:
    """Yield the reason for the interval of checkpoints, unless it is failures alone."""
    if failures.write_s is None or failures.failures_alone_s is None:
        return
    if failures.set_by == "storage" and failures.failures_alone_s < failures.write_s:
        yield (
            "Storage sets that, not failures: one takes "
            f"{seconds_text(failures.write_s)} to write, and failures ask for one "
            f"every {seconds_text(failures.failures_alone_s)}"
        )
    elif failures.short_gains is not None:
        is_storage = failures.set_by == "storage"
        who = "Storage sets what is practical, not failures"
        yield (
            f"{who if is_storage else 'Failures do ask for that'}: it would write "
            f"{failures.storage_share:.0%} of the time, "
            f"{few_digits(failures.storage_tb_h or 0.0)} TB an hour, and gain "
            f"{failures.short_gains:.2%} of the time over one every 5 minutes"
        )


def _straggler_lines(straggler: StragglerPrice) -> Iterator[str]:
    usd = (
        ""
        if straggler.one_slow_usd is None
        else f", {straggler.one_slow_usd:,.0f} USD a run"
    )
    more = seconds_text(straggler.one_slow_s)
    yield f"One GPU {straggler.slowdown:.0%} slower: {more} more a step{usd}"
    if straggler.jitter:
        yield (
            f"Jitter of {straggler.jitter:.1%}: the slowest GPU takes "
            f"{seconds_text(straggler.jitter_s)} more a step"
        )


def _compression_table(schemes: tuple[Compression, ...]) -> Table:
    rows = tuple(
        (
            scheme.scheme,
            f"{scheme.share:.1%}",
            seconds_text(scheme.traffic_s),
            seconds_text(scheme.exposed_s),
            seconds_text(scheme.encode_s),
            seconds_text(scheme.step_s),
            "-" if scheme.saved_days is None else f"{scheme.saved_days:,.2f}",
            "-" if scheme.saved_usd is None else f"{scheme.saved_usd:,.0f}",
        )
        for scheme in schemes
    )
    heading = (
        "scheme", "bytes", "traffic", "exposed", "to encode", "step", "days saved",
        "USD saved",
    )  # fmt: skip
    title = "Compressed gradients, of one step (what quality they cost is not modelled)"
    return Table(title, heading, rows)


HEADING = ("instance", "count", "GPUs", "plan", "step", "days", "USD", "status")


def rental_sections(answer: RentalAnswer) -> list[Section]:
    """Return the sections of an answer: the front, or the limit that none keeps."""
    title = f"What to rent: {answer.title}, {_tokens(answer.tokens)} tokens"
    return [Lines(title, tuple(_summary(answer))), *_tables(answer)]


def _tokens(tokens: float, digits: int = 6) -> str:
    """Return tokens as `--tokens` takes them."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if tokens >= size:
            return f"{tokens / size:,.{digits}g}{unit}"
    return f"{tokens:,.0f}"


def _duration(days: float) -> str:
    return f"{days:,.4g} days" if days >= 1 else f"{days * 24:.3g} hours"


def _summary(answer: RentalAnswer) -> Iterator[str]:
    yield answer.model.text
    types = len({(rental.cloud, rental.instance) for rental in answer.rentals})
    if answer.clouds == (NO_CLOUD,):
        told = f"{counted(types, 'kind')} of machine at prices of the spec"
    else:
        told = f"{counted(types, 'instance type')} of {', '.join(answer.clouds)}"
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
    dates = [str(rental) for rental in answer.dates]
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
    most = max(rental.count for rental in answer.rentals)
    return {
        "budget": "nothing; the budget binds, no choice keeps it in any time",
        "deadline": "nothing; the deadline binds, no choice keeps it at any price "
        f"(up to {most:,} machines; see {option('count')})",
        "each": "nothing; no choice keeps the budget in any time, nor the deadline at "
        f"any price (up to {most:,} machines; see {option('count')})",
        "both": "nothing; each alone can be kept, not both together",
    }.get(answer.binds, "no choice has a plan that fits")


def _tables(answer: RentalAnswer) -> Iterator[Table]:
    if answer.front:
        yield _table("Front of price against time, the cheapest first", answer.front)
    in_time = " within the deadline" if answer.deadline_days is not None else ""
    in_budget = " within the budget" if answer.budget_usd is not None else ""
    for title, rental in (
        (f"The cheapest{in_time}", answer.cheapest_in_time),
        (f"The fastest{in_budget}", answer.fastest_in_budget),
    ):
        if rental is not None:
            yield _table(title, (rental,))
    shown = [*answer.front, answer.cheapest_in_time, answer.fastest_in_budget]
    rentals = {rental.instance: rental for rental in shown if rental is not None}
    if rentals:
        yield _rental_prices(tuple(rentals.values()))


def _table(title: str, rentals: tuple[Rental, ...]) -> Table:
    rows = tuple(
        (
            rental.instance,
            f"{rental.count:,}",
            f"{rental.gpus:,}",
            short_plan_text(rental.plan) if rental.plan else "-",
            seconds_text(rental.step_s or 0.0),
            few_digits(rental.days or 0.0),
            f"{rental.usd:,.0f}",
            rental.status or "-",
        )
        for rental in rentals
    )
    return Table(title, HEADING, rows)


def _where(rental: Rental) -> str:
    """Return the cloud of a price and its region, as far as they are said."""
    if rental.cloud == NO_CLOUD:
        return "the spec"
    region = "" if rental.region == ANY_REGION else f" {rental.region}"
    return f"{rental.cloud}{region}"


def _rental_prices(rentals: tuple[Rental, ...]) -> Table:
    rows = tuple(
        (
            rental.instance,
            _where(rental),
            f"{rental.gpus_per_node} x {rental.gpu}",
            "-" if rental.network_gbit_s is None else f"{rental.network_gbit_s:,.0f}",
            f"{rental.hour_usd:,.2f}",
            str(rental.price_date or "-"),
        )
        for rental in rentals
    )
    heading = ("instance", "where", "GPUs", "Gbit/s", "USD/h", "list price of")
    return Table("Prices", heading, rows)
