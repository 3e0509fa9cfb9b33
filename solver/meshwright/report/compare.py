"""Plans side by side: time, who holds what, what is sent, and who wins where."""

from __future__ import annotations

from meshwright.report.short_names import shortened
from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.report.turns import rule_section, turn_section
from meshwright.results.comparison import Compared, Comparison, Holding
from meshwright.results.ledger import Entry, StageLedger
from meshwright.results.priced_plan import PricedPlan

Plans = list[tuple[str, PricedPlan]]


def compare_sections(own: Comparison) -> list[Section]:
    """Return plans term by term, and where their order turns."""
    own = shortened(own)
    fitting = [one for one in own.plans if one.plan is not None]
    plans = [(one.name, one.plan) for one in own.plans if one.plan is not None]
    lines = [f"{name}: {plan.plan}" for name, plan in plans]
    lines += [_missing(one) for one in own.plans if one.plan is None]
    parts: list[Section] = [Lines(own.title, tuple(lines))]
    if plans:
        parts.append(_step_table(plans))
    if any(one.holdings for one in fitting):
        parts.append(_holding_table(fitting))
        parts += [table for one in fitting for table in _collective_tables(one)]
    if own.range:
        parts.append(turn_section(own, own.range))
    if own.range and own.rules:
        parts.append(rule_section(own, own.range))
    if own.note:
        parts.append(Lines("Where the order turns", (own.note,)))
    return parts


def _missing(own: Compared) -> str:
    broken = "; ".join(map(str, own.broken_rules))
    return f"{own.name}: does not fit" + (f": {broken}" if broken else "")


def _step_table(own: Plans) -> Table:
    plans = [plan for _, plan in own]
    names = dict.fromkeys(name for plan in plans for name in plan.time_parts)
    rows = [
        (name, *(seconds_text(plan.time_parts.get(name, 0.0)) for plan in plans))
        for name in names
        if any(plan.time_parts.get(name, 0.0) > 1e-9 * plan.step_s for plan in plans)
    ]
    rows.append(("step", *(seconds_text(plan.step_s) for plan in plans)))
    best = plans[0].step_s
    losses = [plan.step_s / best - 1 for plan in plans]
    rows.append(("loses", *(f"{own:+.1%}" if own else "wins" for own in losses)))
    bubbles = [plan.time_parts.get("bubble", 0.0) / plan.step_s for plan in plans]
    rows.append(("bubble of the step", *(f"{own:.2%}" for own in bubbles)))
    rows.append(("tokens/s", *(f"{_tokens_per_s(plan):,.0f}" for plan in plans)))
    rows.append(("MFU", *(f"{plan.mfu:.1%}" for plan in plans)))
    rows.append(("fullest GPU, GiB", *(f"{plan.peak_gib:.2f}" for plan in plans)))
    hosts = [max(stage.host_gib for stage in plan.stages) for plan in plans]
    if any(hosts):
        rows.append(("its host, GiB", *(f"{own:.2f}" for own in hosts)))
    heading = ("part", *(name for name, _ in own))
    return Table("Side by side, the fastest first", heading, tuple(rows))


def _tokens_per_s(plan: PricedPlan) -> float:
    return plan.tokens_per_s_per_gpu * plan.plan.world_size


HOLDING_TITLE = (
    "What a GPU holds, GiB (stages apart by ' / '): by how much an axis divides it; "
    "how many GPUs hold the same"
)


def _holding_table(own: list[Compared]) -> Table:
    plans = [one.plan.plan for one in own if one.plan]
    layers = [" / ".join(_runs([s.layers for s in plan.stages])) for plan in plans]
    sequences = [plan.micro_batch * plan.microbatches for plan in plans]
    held = [{holding.part: holding for holding in one.holdings} for one in own]
    parts = dict.fromkeys(part for holdings in held for part in holdings)
    rows = [
        ("layers", *layers),
        ("sequences of a replica", *(f"{count:,}" for count in sequences)),
        *((part, *(_held(one.get(part)) for one in held)) for part in parts),
    ]
    return Table(HOLDING_TITLE, ("part", *(one.name for one in own)), tuple(rows))


def _held(own: Holding | None) -> str:
    if own is None:
        return "-"
    sizes = " / ".join(_runs([f"{gib:.2f}" for gib in own.gib]))
    told = ["host" if own.is_offloaded and not max(own.gib) else sizes]
    told += [f"{axis} ÷{by:.3g}" for axis, by in own.divided_by.items() if by > 1.005]
    if own.copies and own.copies > 1.005:
        told.append(f"{own.copies:.3g} copies")
    return ", ".join(told)


def _runs(own: list[str] | list[int]) -> list[str]:
    """Return what stages have: each where they are two, least and most of more."""
    shown = [str(one) for one in own]
    if len(shown) < 3 or len(set(shown)) == 1:
        return shown if len(set(shown)) > 1 else shown[:1]
    return [f"{min(own, key=float)}-{max(own, key=float)}"]


COLLECTIVES = (
    "where", "phase", "operation", "group", "MB", "a block", "a step", "seconds",
    "exposed",
)  # fmt: skip


def _collective_tables(own: Compared) -> list[Table]:
    """Return a table of each kind of stage that sends anything."""
    stages = own.collectives.stages if own.collectives else ()
    return [_collective_table(own, stage) for stage in stages if stage.entries]


def _collective_table(own: Compared, stage: StageLedger) -> Table:
    is_staged = own.plan is not None and own.plan.plan.pp > 1
    whose = f", stage {_numbers(stage.stages)}" if is_staged else ""
    links = dict.fromkeys(entry.link for entry in stage.entries)
    title = (
        f"Collectives of {own.name}{whose}, paced by {', '.join(links)}: "
        "bytes of a call, calls of a block and of a step"
    )
    alike: dict[tuple[object, ...], list[Entry]] = {}
    for entry in stage.entries:
        key = (entry.block, entry.phase, entry.operation, entry.group, entry.bytes)
        alike.setdefault(key, []).append(entry)
    return Table(title, COLLECTIVES, tuple(_row(each) for each in alike.values()))


def _numbers(stages: tuple[int, ...]) -> str:
    first, last = stages[0], stages[-1]
    is_run = len(stages) > 1 and last - first + 1 == len(stages)
    return f"{first} to {last}" if is_run else ", ".join(map(str, stages))


def _row(alike: list[Entry]) -> tuple[str, ...]:
    """Return what alike collectives of one block have together."""
    own = alike[0]
    return (
        f"{own.block}: {', '.join(entry.where for entry in alike)}",
        own.phase,
        own.operation.replace("_", "-"),
        f"{own.group} x {own.ranks}",
        f"{own.bytes / 1e6:,.3g}",
        f"{sum(entry.count_per_layer for entry in alike):,}",
        f"{sum(entry.count_per_step for entry in alike):,}",
        seconds_text(sum(entry.seconds for entry in alike)),
        seconds_text(sum(entry.exposed_s for entry in alike)),
    )
