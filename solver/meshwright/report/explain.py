"""An explanation as titled tables and lines: the answer first, then why."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.degrees import degree_sections
from meshwright.report.ledger import ledger_sections
from meshwright.report.plan_text import plan_lines
from meshwright.report.tables import (
    Lines,
    Section,
    Table,
    kind_table,
    seconds_text,
)
from meshwright.results.explanation import (
    Change,
    Explanation,
    Gap,
    Repair,
    Slack,
    Standing,
)
from meshwright.results.priced_plan import PricedPlan

MOST_REPAIRS = 8

STOPPED = "Stopped before changes were looked at."

UNDECIDED = (
    "Undecided.",
    "No plan was found, and not all were looked at.",
    "Whether one fits is open.",
)


def explain_sections(own: Explanation) -> list[Section]:
    """Return what there is to say, the verdict, the reason and the mend first."""
    parts: list[Section] = [Lines(own.title, _verdict(own))]
    if own.broken_rules:
        parts.append(Lines("Broken rules", tuple(_broken(own))))
    if own.conflict and own.conflict.rules:
        rules = [f"{rule.rule}: {rule.sentence}" for rule in own.conflict.rules]
        title = "Smallest conflict: no plan keeps all of these, whatever else it does"
        parts.append(Lines(title, tuple(rules)))
    if own.repairs:
        parts.append(_repair_table(own.repairs[:MOST_REPAIRS]))
    if own.fits and own.plan:
        parts += _fitting(own, own.plan)
    if own.collectives:
        parts += ledger_sections(own.collectives)
    return parts


def _verdict(own: Explanation) -> tuple[str, str, str]:
    """Return the first three lines: does it fit, why, what to change."""
    if not own.fits:
        return _refusal(own)
    assert own.plan is not None
    step = seconds_text(own.plan.step_s)
    if own.status != "fits":
        plan = plan_lines(own.plan.plan)[0]
        return "A plan fits.", f"The best takes {step} a step.{_doubt(own)}", plan
    best = own.best.best if own.best else None
    place = _place(own.standing) if own.standing else ""
    loss = own.plan.step_s / best.step_s - 1 if best else 0.0
    told = f"{loss:.1%} slower than the best plan" if loss > 1e-9 else "the best plan"
    change = f"Change {own.helps[0].change}." if own.helps else "No one field gains."
    change = STOPPED if own.is_stopped else change
    return "Fits.", f"It takes {step} a step, {told}{place}.", change


def _doubt(own: Explanation) -> str:
    """Return how much faster another plan may be, where that is open."""
    certificate = own.best.certificate if own.best else None
    if own.status == "optimal" or certificate is None:
        return ""
    least = seconds_text(certificate.bound_s)
    return f" Not proven: none takes less than {least} (gap {certificate.gap:.2%})."


def _place(standing: Standing) -> str:
    """Return where a plan stands among all that fit."""
    ranks = f"{standing.first:,}"
    if standing.last > standing.first:
        ranks += f" to {standing.last:,}"
    return f"; rank {ranks} of {standing.of:,}, ahead of {standing.beaten:.0%}"


def _refusal(own: Explanation) -> tuple[str, str, str]:
    if own.status == "unknown":
        return UNDECIDED
    verdict = "Does not fit." if own.status == "does_not_fit" else "No plan fits."
    if own.is_stopped:
        return verdict, f"What clashes was not worked out{_needs(own)}.", STOPPED
    rules = own.conflict.rules if own.conflict else ()
    names = _joined([rule.rule for rule in rules])
    why = f"Because of {names or 'the model, the GPUs and the framework alone'}"
    why = f"{why}{_needs(own)}."
    if not own.repairs:
        return verdict, why, "No repair is known."
    return verdict, why, f"Change {own.repairs[0].sentence}."


def _joined(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _needs(own: Explanation) -> str:
    """Return what the plan that comes closest needs of memory, if that is too much."""
    miss = next((rule for rule in own.broken_rules if rule.rule == "memory"), None)
    if miss is None or miss.need is None or miss.have is None:
        return ""
    return f": {miss.where} needs {miss.need:.1f} GiB, {miss.have:.1f} usable"


def _broken(own: Explanation) -> Iterator[str]:
    if own.conflict and own.conflict.witness:
        yield f"The plan that comes closest is {own.conflict.witness}"
    yield from map(str, own.broken_rules)
    if own.memory and any(rule.rule == "memory" for rule in own.broken_rules):
        parts = [f"{name} {gib:.2f}" for name, gib in own.memory.parts.items() if gib]
        yield f"Its fullest GPU, GiB: {', '.join(parts)}"


def _repair_table(repairs: tuple[Repair, ...]) -> Table:
    rows = tuple(
        (
            " and ".join(repair.edits) + (f" ({repair.note})" if repair.note else ""),
            seconds_text(repair.step_s),
            f"{1 + repair.price:.2f} x",
            repair.plan.brief,
        )
        for repair in repairs
    )
    heading = ("edit", "step", "price", "the plan then")
    title = f"Repairs, each solved again; the price is against {repairs[0].against}"
    return Table(title, heading, rows)


def _fitting(own: Explanation, plan: PricedPlan) -> Iterator[Section]:
    best = own.best.best if own.best else None
    if best and own.gap:
        yield _gap_table(plan, best, own.gap)
    yield Lines("Slack", tuple(_slack_lines(own.slack)))
    if own.helps:
        yield _change_table("One field left open", own.helps, plan)
    if own.best and own.best.by_kind and best:
        yield kind_table(best, own.best.by_kind)
    if own.degrees:
        yield from degree_sections(own.degrees, plan)
    if own.binding:
        yield _change_table("What binds: the best plan without it", own.binding, plan)
    if own.marginal_values:
        yield _change_table("Worth of a little more", own.marginal_values, plan)


def _slack_lines(slack: tuple[Slack, ...]) -> Iterator[str]:
    """Yield what is left of capacities, then the names of the rules that hold."""
    for own in slack:
        if own.need is not None and own.have is not None:
            where = f" ({own.where})" if own.where else ""
            numbers = f"{own.need:.4g} of {own.have:.4g} {own.unit}{where}"
            yield f"{own.rule}: {own.sentence}: {numbers}"
    kept = dict.fromkeys(own.rule for own in slack if own.need is None)
    if kept:
        yield f"Kept: {', '.join(kept)}"


def _gap_table(plan: PricedPlan, best: PricedPlan, gap: Gap) -> Table:
    """Return the way from the best plan's step to this one's, part by part."""
    rows = [
        (
            name,
            seconds_text(best.time_parts.get(name, 0.0)),
            seconds_text(plan.time_parts.get(name, 0.0)),
            f"{more:+.4f}",
        )
        for name, more in gap.terms.items()
        if plan.time_parts.get(name, 0.0) + best.time_parts.get(name, 0.0) > 0
    ]
    total = (seconds_text(best.step_s), seconds_text(plan.step_s))
    rows.append(("step", *total, f"{gap.step_s:+.4f}"))
    heading = ("part", "best", "this", "difference, s")
    return Table("Distance to the best plan, part by part", heading, tuple(rows))


def _change_table(title: str, changes: tuple[Change, ...], plan: PricedPlan) -> Table:
    rows = []
    for own in changes:
        if own.step_s is None:
            rows.append((own.change, "-", "none fits", "-"))
            continue
        rate = own.tokens_per_s_per_gpu
        told = f"{rate / plan.tokens_per_s_per_gpu - 1:+.1%}" if rate else "-"
        loss = f"{own.step_s / plan.step_s - 1:+.1%}"
        rows.append((own.change, seconds_text(own.step_s), loss, told))
    heading = ("change", "step", "step time", "tokens/s/GPU")
    return Table(title, heading, tuple(rows))
