"""Plans side by side: time, memory sharding, collectives, and who wins where."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.claims import probability_text
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.base import SpecModel
from meshwright.spec.units import few_digits

if TYPE_CHECKING:
    from meshwright.results.comparison import (
        ComparedPlan,
        Comparison,
        HeadToHead,
        Ledger,
        LedgerEntry,
        PartSharding,
        Side,
        StageLedger,
        VariedRange,
    )

SHOWN = 0.02
"""Parts smaller than this share of the largest part are left out of sentences."""


def crossover_section(comparison: Comparison, varied: VariedRange) -> Lines:
    """Return the values at which the order of the plans changes."""
    in_spec = f" ({_plain(varied.value)} in the spec)" if varied.value else ""
    title = f"Where the order changes with {comparison.vary}, {_span(varied)}{in_spec}"
    lines = [
        f"at {_plain(one.at)}: {_order(one.before)} becomes {_order(one.after)}"
        for one in comparison.flips
    ]
    return Lines(title, tuple(lines or ["It does not change."]))


def head_to_head_section(comparison: Comparison, varied: VariedRange) -> Lines:
    """Return, for pairs of plans, which is faster where, and the numbers behind it."""
    lines = [line for pair in comparison.rules for line in _pair_lines(pair, varied)]
    return Lines("Which plan is faster where", tuple(lines))


def _pair_lines(pair: HeadToHead, varied: VariedRange) -> list[str]:
    lines = [_sentence(pair, varied)]
    if pair.sides:
        sides = "; ".join(_side(side) for side in pair.sides)
        lines.append(f"  {_margin(pair, varied)} {sides}.")
    return lines


def _sentence(pair: HeadToHead, varied: VariedRange) -> str:
    """Return which plan wins where, such as 'TP beats PP above 38 GB/s of pcie'."""
    last, winners = pair.spans[-1], [span.winner for span in pair.spans]
    if len(winners) == 1:
        return f"{last.winner} beats {pair.loser} from {_span(varied)}."
    if len(winners) == 2 and all(winners):
        where = f"above {_number(varied, last.low)}{_of(varied)}"
        return f"{last.winner} beats {pair.loser} {where}; below it loses."
    spans = [
        f"{span.winner or 'neither'} from {_plain(span.low)} to {_plain(span.high)}"
        for span in pair.spans
    ]
    return f"{pair.winner} or {pair.loser}: {', '.join(spans)}."


def _margin(pair: HeadToHead, varied: VariedRange) -> str:
    winner, loser = pair.sides
    at = _number(varied, pair.at)
    if len(pair.spans) > 1:
        return f"At {at} both take {seconds_text(winner.step_s)}:"
    return f"At {at} by {seconds_text(loser.step_s - winner.step_s)} a step:"


def _side(side: Side) -> str:
    """Return what a plan sends, and the parts on which it spends more."""
    most = max(side.pays_s.values(), default=0.0)
    paid = [
        f"{part} ({seconds_text(seconds)})"
        for part, seconds in side.pays_s.items()
        if seconds > SHOWN * most
    ]
    more = f", and spends more on {', '.join(paid)}" if paid else ""
    return f"{side.name} sends {few_digits(side.sent_gb)} GB a step over a link{more}"


def _span(varied: VariedRange) -> str:
    return f"{_plain(varied.low)} to {_number(varied, varied.high)}{_of(varied)}"


def _number(varied: VariedRange, value: float) -> str:
    return f"{_plain(value)} {varied.unit}".rstrip()


def _plain(value: float) -> str:
    """Return a number in four digits, large ones whole."""
    return f"{value:,.0f}" if 1e4 <= value < 1e12 else f"{value:,.4g}"


def _of(varied: VariedRange) -> str:
    return f" of {varied.about}" if varied.about else ""


def _order(names: tuple[str, ...]) -> str:
    return " before ".join(names) or "none fits"


def with_short_names(comparison: Comparison) -> Comparison:
    """Return the comparison with plans named by the fields in which they differ.

    Names stay as they are where the short ones would be empty or equal.
    """
    fields = {plan.name: _fields(plan.name) for plan in comparison.plans}
    shared = set.intersection(*map(set, fields.values())) if len(fields) > 1 else set()
    short = {
        name: ",".join(field for field in named if field not in shared)
        for name, named in fields.items()
    }
    if not all(short.values()) or len(set(short.values())) < len(short):
        return comparison
    plans = [
        plan.model_copy(update={"name": short[plan.name]}) for plan in comparison.plans
    ]
    renamed = {name: _renamed(getattr(comparison, name), short) for name in NAMING}
    return comparison.model_copy(update={"plans": tuple(plans), **renamed})


def _fields(name: str) -> list[str]:
    """Return the fields in a plan's name; commas inside brackets belong to a value."""
    return re.split(r",(?![^\[{]*[\]}])", name)


NAMING = ("flips", "rules")
"""Fields of a comparison that name its plans."""


def _renamed(part: Any, names: dict[str, str]) -> Any:
    """Return a part of a comparison with other names in place of the plans' names."""
    if isinstance(part, str):
        return names.get(part, part)
    if isinstance(part, tuple):
        return tuple(_renamed(one, names) for one in part)
    if isinstance(part, SpecModel):
        renamed = {name: _renamed(value, names) for name, value in part}
        return part.model_copy(update=renamed)
    return part


FASTEST_OF_THESE = "the fastest of these plans"

NamedPlans = list[tuple[str, PricedPlan]]


def compare_sections(comparison: Comparison) -> list[Section]:
    """Return plans part by part, and where their order changes."""
    comparison = with_short_names(comparison)
    fitting = [one for one in comparison.plans if one.plan is not None]
    plans = [(one.name, one.plan) for one in comparison.plans if one.plan is not None]
    is_alone = len(comparison.plans) == 1
    lines = [_verdict(plans, is_alone)] if plans else ["None of these plans fits."]
    lines += [f"{name}: {plan.plan}" for name, plan in plans]
    lines += [_misfit_line(one) for one in comparison.plans if one.plan is None]
    parts: list[Section] = [Lines(comparison.title, tuple(lines))]
    if plans:
        is_wide = len(plans) > MOST_COLUMNS
        parts.append(_table_of_many(plans) if is_wide else _step_table(plans))
    if any(one.holdings for one in fitting):
        parts.append(_sharding_table(fitting))
        parts += [table for one in fitting for table in _collective_tables(one)]
    if comparison.range:
        parts.append(crossover_section(comparison, comparison.range))
    if comparison.range and comparison.rules:
        parts.append(head_to_head_section(comparison, comparison.range))
    if comparison.note:
        parts.append(Lines("Where the order changes", (comparison.note,)))
    return parts


def _verdict(named: NamedPlans, is_alone: bool) -> str:
    """Return which plan is the fastest, by how much, and what makes the difference."""
    (name, best), *others = named
    if is_alone:
        return f"{name} takes {seconds_text(best.step_s)} a step; it is the only plan."
    step = f"{name} is {FASTEST_OF_THESE}: {seconds_text(best.step_s)} a step"
    if not others:
        return f"{step}; nothing else fits."
    other_name, other = others[0]
    gap_s = other.step_s - best.step_s
    if gap_s < 1e-9 * best.step_s:
        return f"{step}, as {other_name} does."
    parts = {**best.time_parts, **other.time_parts}
    more_s = {
        part: other.time_parts.get(part, 0.0) - best.time_parts.get(part, 0.0)
        for part in parts
    }
    part = max(more_s, key=more_s.__getitem__)
    return (
        f"{step}; {other_name} takes {gap_s / best.step_s:.1%} more, most of it in "
        f"{part} (+{seconds_text(more_s[part])})."
    )


def _misfit_line(compared: ComparedPlan) -> str:
    broken = "; ".join(map(str, compared.broken_rules))
    return f"{compared.name}: does not fit" + (f": {broken}" if broken else "")


def _step_table(named: NamedPlans) -> Table:
    plans = [plan for _, plan in named]
    names = dict.fromkeys(name for plan in plans for name in plan.time_parts)
    rows = [
        (name, *(seconds_text(plan.time_parts.get(name, 0.0)) for plan in plans))
        for name in names
        if any(plan.time_parts.get(name, 0.0) > 1e-9 * plan.step_s for plan in plans)
    ]
    rows.append(("step", *(seconds_text(plan.step_s) for plan in plans)))
    best = plans[0].step_s
    losses = [plan.step_s / best - 1 for plan in plans]
    rows.append(("loses", *(f"{loss:+.1%}" if loss else "wins" for loss in losses)))
    bubbles = [plan.time_parts.get("bubble", 0.0) / plan.step_s for plan in plans]
    rows.append(("bubble of the step", *(f"{bubble:.2%}" for bubble in bubbles)))
    tokens_per_s = [one.tokens_per_s_per_gpu * one.plan.world_size for one in plans]
    rows.append(("tokens/s", *(f"{rate:,.0f}" for rate in tokens_per_s)))
    rows.append(("MFU", *(f"{plan.mfu:.1%}" for plan in plans)))
    rows.append(("fullest GPU, GiB", *(f"{plan.peak_gib:.2f}" for plan in plans)))
    likely = (probability_text(plan.fit_probability) for plan in plans)
    rows.append(("fits with probability", *likely))
    host_gib = [max(stage.host_gib for stage in plan.stages) for plan in plans]
    if any(host_gib):
        rows.append(("its host, GiB", *(f"{gib:.2f}" for gib in host_gib)))
    heading = ("part", *(name for name, _ in named))
    return Table("Side by side, the fastest first", heading, tuple(rows))


MOST_COLUMNS = 6
"""Most plans that stand in columns; a screen has no room for more."""


def _table_of_many(named: NamedPlans) -> Table:
    """Return a row for each plan, with the parts of its step besides compute."""
    best = named[0][1].step_s
    rows = [
        (
            name,
            seconds_text(plan.step_s),
            f"{plan.step_s / best - 1:+.1%}" if plan.step_s > best else "wins",
            f"{plan.mfu:.1%}",
            f"{plan.peak_gib:.2f}",
            probability_text(plan.fit_probability),
            _beside_compute(plan),
        )
        for name, plan in named
    ]
    heading = ("plan", "step", "loses", "MFU", "GiB", "fits", "beside compute")
    return Table("Side by side, the fastest first", heading, tuple(rows))


def _beside_compute(plan: PricedPlan) -> str:
    """Return the parts of a step but compute, the longest first, of a percent each."""
    parts = sorted(plan.time_parts.items(), key=lambda part: -part[1])
    told = (
        f"{name} {seconds_text(seconds)}"
        for name, seconds in parts
        if name != "compute" and seconds > 0.01 * plan.step_s
    )
    return ", ".join(told) or "nothing of a percent"


SHARDING_TITLE = (
    "What a GPU holds, GiB (stages apart by ' / '): by how much an axis divides it; "
    "how many GPUs hold the same"
)


def _sharding_table(compared: list[ComparedPlan]) -> Table:
    plans = [one.plan.plan for one in compared if one.plan]
    layers = [" / ".join(_by_stage([s.layers for s in plan.stages])) for plan in plans]
    sequences = [plan.micro_batch * plan.microbatches for plan in plans]
    shardings = [{part.part: part for part in one.holdings} for one in compared]
    parts = dict.fromkeys(part for by_part in shardings for part in by_part)
    rows = [
        ("layers", *layers),
        ("sequences of a replica", *(f"{count:,}" for count in sequences)),
        *(
            (part, *(_sharding_text(by_part.get(part)) for by_part in shardings))
            for part in parts
        ),
    ]
    return Table(SHARDING_TITLE, ("part", *(one.name for one in compared)), tuple(rows))


def _sharding_text(part: PartSharding | None) -> str:
    if part is None:
        return "-"
    sizes = " / ".join(_by_stage([f"{gib:.2f}" for gib in part.gib]))
    words = ["host" if part.is_offloaded and not max(part.gib) else sizes]
    words += [f"{axis} ÷{by:.3g}" for axis, by in part.divided_by.items() if by > 1.005]
    if part.copies and part.copies > 1.005:
        words.append(f"{part.copies:.3g} copies")
    return ", ".join(words)


def _by_stage(values: list[str] | list[int]) -> list[str]:
    """Return the values of one or two stages, or the range over three or more."""
    shown = [str(value) for value in values]
    if len(shown) < 3 or len(set(shown)) == 1:
        return shown if len(set(shown)) > 1 else shown[:1]
    return [f"{min(values, key=float)}-{max(values, key=float)}"]


COLLECTIVES = (
    "where", "phase", "operation", "group", "MB", "a block", "a step", "seconds",
    "exposed",
)  # fmt: skip


def _collective_tables(compared: ComparedPlan) -> list[Table]:
    """Return a table for every group of stages that send the same, if anything."""
    stages = compared.collectives.stages if compared.collectives else ()
    return [_collective_table(compared, stage) for stage in stages if stage.entries]


def _collective_table(compared: ComparedPlan, stage: StageLedger) -> Table:
    is_staged = compared.plan is not None and compared.plan.plan.pp > 1
    whose = f", stage {_stage_numbers(stage.stages)}" if is_staged else ""
    links = dict.fromkeys(entry.link for entry in stage.entries)
    title = (
        f"Collectives of {compared.name}{whose}, paced by {', '.join(links)}: "
        "bytes of a call, calls of a block and of a step"
    )
    alike: dict[tuple[object, ...], list[LedgerEntry]] = {}
    for entry in stage.entries:
        key = (entry.block, entry.phase, entry.operation, entry.group, entry.bytes)
        alike.setdefault(key, []).append(entry)
    return Table(title, COLLECTIVES, tuple(_row(entries) for entries in alike.values()))


def _stage_numbers(stages: tuple[int, ...]) -> str:
    first, last = stages[0], stages[-1]
    is_run = len(stages) > 1 and last - first + 1 == len(stages)
    return f"{first} to {last}" if is_run else ", ".join(map(str, stages))


def _row(alike: list[LedgerEntry]) -> tuple[str, ...]:
    """Return a row that sums up collectives of one block that differ only in place."""
    first = alike[0]
    return (
        f"{first.block}: {', '.join(entry.where for entry in alike)}",
        first.phase,
        first.operation.replace("_", "-"),
        f"{first.group} x {first.ranks}",
        few_digits(first.bytes / 1e6),
        f"{sum(entry.count_per_layer for entry in alike):,}",
        f"{sum(entry.count_per_step for entry in alike):,}",
        seconds_text(math.fsum(entry.seconds for entry in alike)),
        seconds_text(math.fsum(entry.exposed_s for entry in alike)),
    )


HEADING = (
    "where",
    "phase",
    "operation",
    "group",
    "MB",
    "calls",
    "link",
    "seconds",
    "exposed",
)


def ledger_sections(ledger: Ledger) -> list[Section]:
    """Return a table for every group of stages with the same collectives."""
    if not ledger.stages:
        return [Lines("Collectives", ("There is no complete plan to list them for.",))]
    return [_ledger_table(stages) for stages in ledger.stages]


def _ledger_table(ledger: StageLedger) -> Table:
    stages = ", ".join(str(stage) for stage in ledger.stages)
    title = (
        f"Collectives of a GPU of stage {stages}: each once per block and micro-batch, "
        "or step; calls and seconds of a step"
    )
    return Table(title, HEADING, tuple(_ledger_row(entry) for entry in ledger.entries))


def _ledger_row(entry: LedgerEntry) -> tuple[str, ...]:
    is_hidden = entry.exposed_s < entry.seconds * (1 - 1e-9)
    exposed = f"{entry.exposed_s / entry.seconds:.0%}" if is_hidden else "all"
    return (
        f"{entry.block}: {entry.where}",
        entry.phase,
        entry.operation.replace("_", "-"),
        f"{entry.group} x {entry.ranks}",
        few_digits(entry.bytes / 1e6),
        f"{entry.count_per_step:,}",
        entry.link,
        seconds_text(entry.seconds),
        exposed,
    )
