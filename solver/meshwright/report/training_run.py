"""The report on a training run, as lines and a table."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.training_run import (
    Chinchilla,
    Compression,
    DeadlineCheck,
    Failures,
    RunReport,
    StragglerPrice,
)


def run_sections(run: RunReport | None) -> list[Section]:
    """Return the report on a run: first its length and its cost."""
    if run is None:
        return []
    parts: list[Section] = [Lines("The run", tuple(_lines(run)))]
    if run.compression:
        parts.append(_compression_table(run.compression))
    return parts


def _lines(run: RunReport) -> Iterator[str]:
    if run.tokens is not None:
        yield _length(run)
    yield from _prices(run)
    if run.deadline:
        yield _deadline_line(run.deadline)
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


def _length(run: RunReport) -> str:
    steps = f"{run.tokens:.4g} tokens in {run.steps:,.0f} steps"
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
        known.append(f"{run.usd_per_mtoken:,.3g} USD per million tokens")
    if run.energy_mwh is not None:
        known.append(f"{run.energy_mwh:,.3g} MWh at the GPUs' power limit")
    if known:
        yield ", ".join(known)


def _deadline_line(deadline: DeadlineCheck) -> str:
    verdict = "met" if deadline.is_met else "missed"
    needed = (
        f", {deadline.rate_needed:.3g} of the rate would do"
        if deadline.rate_needed
        else ""
    )
    by_then = f"{deadline.tokens:.4g} tokens by then"
    return f"Deadline of {deadline.days:g} days: {verdict}{needed}; {by_then}"


def _optimum_line(optimum: Chinchilla) -> str:
    best = f"{optimum.params / 1e9:,.4g}B parameters on {optimum.tokens:.4g} tokens"
    way = "over" if optimum.overtrained >= 1 else "under"
    factor = max(optimum.overtrained, 1 / optimum.overtrained)
    return (
        f"Compute-optimal for {optimum.budget_flops:.4g} FLOPs: {best}; this one is "
        f"{way}-trained {factor:.3g} times: {optimum.tokens_per_param:,.3g} tokens a "
        "parameter"
    )


def _failure_lines(failures: Failures) -> Iterator[str]:
    count = "" if failures.expected is None else f", {failures.expected:,.1f} expected"
    yield f"A failure every {failures.mtbf_hours:,.3g} hours{count}"
    if failures.interval_s is None or failures.goodput is None:
        return
    young_s, stall_s = failures.young_s or 0.0, failures.stall_s or 0.0
    yield (
        f"Checkpoints of {failures.checkpoint_gb:,.0f} GB every "
        f"{failures.interval_s / 60:,.3g} minutes (Daly; {young_s / 60:,.3g} by "
        f"Young), each stalls {seconds_text(stall_s)}"
    )
    yield from _interval_reason(failures)
    lost = (
        "" if failures.lost_days is None else f", {failures.lost_days:,.2f} days lost"
    )
    yield f"Goodput {failures.goodput:.2%}{lost}"


def _interval_reason(failures: Failures) -> Iterator[str]:
    """Yield what sets the interval between checkpoints, unless failures plainly do."""
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
            f"{failures.storage_tb_h:,.3g} TB an hour, and gain "
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
