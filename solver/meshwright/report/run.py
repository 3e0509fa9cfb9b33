"""The training run around the step, as lines and a table."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.training_run import (
    Chinchilla,
    Compression,
    Deadline,
    Failures,
    RunReport,
    StragglerPrice,
)


def run_sections(own: RunReport | None) -> list[Section]:
    """Return what there is to say about a run, days and money first."""
    if own is None:
        return []
    parts: list[Section] = [Lines("The run", tuple(_lines(own)))]
    if own.compression:
        parts.append(_compression_table(own.compression))
    return parts


def _lines(own: RunReport) -> Iterator[str]:
    if own.tokens is not None:
        yield _span(own)
    yield from _prices(own)
    if own.deadline:
        yield _until(own.deadline)
    if own.flops_6nd is not None:
        exact = f"{own.flops_exact:.4g} exactly"
        yield f"FLOPs: {own.flops_6nd:.4g} by 6ND, {exact}"
    yield f"MFU {own.mfu:.1%}, HFU {own.hfu:.1%} (with what is recomputed)"
    yield (
        f"State of {own.params / 1e9:,.2f}B parameters: {own.state_gb:,.0f} GB, so "
        f"{own.least_gpus:,} GPU{'s' if own.least_gpus > 1 else ''} at least"
    )
    if own.chinchilla:
        yield _best_model(own.chinchilla)
    if own.failures:
        yield from _failures(own.failures)
    yield from _straggler(own.straggler)


def _span(own: RunReport) -> str:
    run = f"{own.tokens:.4g} tokens in {own.steps:,.0f} steps"
    if own.days is None or own.ideal_days is None:
        return f"{run}: never, failures leave no time"
    lost = (
        "" if own.days == own.ideal_days else f" ({own.ideal_days:,.1f} without loss)"
    )
    return f"{run}: {own.days:,.1f} days{lost}, {own.gpu_hours:,.0f} GPU hours"


def _prices(own: RunReport) -> Iterator[str]:
    known = []
    if own.cost_usd is not None:
        known.append(f"{own.cost_usd:,.0f} USD")
    if own.usd_per_mtoken is not None:
        known.append(f"{own.usd_per_mtoken:,.3g} USD per million tokens")
    if own.energy_mwh is not None:
        known.append(f"{own.energy_mwh:,.3g} MWh at the GPUs' power limit")
    if known:
        yield ", ".join(known)


def _until(own: Deadline) -> str:
    verdict = "met" if own.is_met else "missed"
    needed = f", {own.rate_needed:.3g} of the rate would do" if own.rate_needed else ""
    by_then = f"{own.tokens:.4g} tokens by then"
    return f"Deadline of {own.days:g} days: {verdict}{needed}; {by_then}"


def _best_model(own: Chinchilla) -> str:
    best = f"{own.params / 1e9:,.4g}B parameters on {own.tokens:.4g} tokens"
    way = "over" if own.overtrained >= 1 else "under"
    factor = max(own.overtrained, 1 / own.overtrained)
    return (
        f"Compute-optimal for {own.budget_flops:.4g} FLOPs: {best}; this one is "
        f"{way}-trained {factor:.3g} times: {own.tokens_per_param:,.3g} tokens a "
        "parameter"
    )


def _failures(own: Failures) -> Iterator[str]:
    count = "" if own.expected is None else f", {own.expected:,.1f} expected"
    yield f"A failure every {own.mtbf_hours:,.3g} hours{count}"
    if own.interval_s is None or own.goodput is None:
        return
    yield (
        f"Checkpoints of {own.checkpoint_gb:,.0f} GB every "
        f"{own.interval_s / 60:,.3g} minutes (Daly; {(own.young_s or 0) / 60:,.3g} by "
        f"Young), each stalls {seconds_text(own.stall_s or 0.0)}"
    )
    yield from _what_sets_it(own)
    lost = "" if own.lost_days is None else f", {own.lost_days:,.2f} days lost"
    yield f"Goodput {own.goodput:.2%}{lost}"


def _what_sets_it(own: Failures) -> Iterator[str]:
    """Yield what sets the interval between checkpoints, where that is not plain."""
    if own.write_s is None or own.failures_alone_s is None:
        return
    if own.set_by == "storage" and own.failures_alone_s < own.write_s:
        yield (
            "Storage sets that, not failures: one takes "
            f"{seconds_text(own.write_s)} to write, and failures ask for one every "
            f"{seconds_text(own.failures_alone_s)}"
        )
    elif own.short_gains is not None:
        is_storage = own.set_by == "storage"
        who = "Storage sets what is practical, not failures"
        yield (
            f"{who if is_storage else 'Failures do ask for that'}: it would write "
            f"{own.storage_share:.0%} of the time, {own.storage_tb_h:,.3g} TB an hour, "
            f"and gain {own.short_gains:.2%} of the time over one every 5 minutes"
        )


def _straggler(own: StragglerPrice) -> Iterator[str]:
    usd = "" if own.one_slow_usd is None else f", {own.one_slow_usd:,.0f} USD a run"
    more = seconds_text(own.one_slow_s)
    yield f"One GPU {own.slowdown:.0%} slower: {more} more a step{usd}"
    if own.jitter:
        yield (
            f"Jitter of {own.jitter:.1%}: the slowest GPU takes "
            f"{seconds_text(own.jitter_s)} more a step"
        )


def _compression_table(every: tuple[Compression, ...]) -> Table:
    rows = tuple(
        (
            own.scheme,
            f"{own.share:.1%}",
            seconds_text(own.traffic_s),
            seconds_text(own.exposed_s),
            seconds_text(own.encode_s),
            seconds_text(own.step_s),
            "-" if own.saved_days is None else f"{own.saved_days:,.2f}",
            "-" if own.saved_usd is None else f"{own.saved_usd:,.0f}",
        )
        for own in every
    )
    heading = (
        "scheme", "bytes", "traffic", "exposed", "to encode", "step", "days saved",
        "USD saved",
    )  # fmt: skip
    title = "Compressed gradients, of one step (what quality they cost is not modelled)"
    return Table(title, heading, rows)
