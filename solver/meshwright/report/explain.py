"""An explanation as titled tables and lines: the answer first, then why."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.degrees import degree_sections
from meshwright.report.judged_plan import (
    judged_lines,
    nearest_lines,
    origin_text,
    standing_text,
)
from meshwright.report.ledger import ledger_sections
from meshwright.report.near_plans import cost_sections, near_sections
from meshwright.report.open_answer import next_value_sections, open_sections
from meshwright.report.plan_text import plan_lines
from meshwright.report.safety import probability_text, safety_lines
from meshwright.report.solve import kind_table
from meshwright.report.tables import (
    Lines,
    Section,
    Table,
    seconds_text,
)
from meshwright.results.claims import plan_claims, proof_claim
from meshwright.results.explanation import (
    Change,
    Conflict,
    Explanation,
    GapToBest,
    Repair,
    Slack,
)
from meshwright.results.priced_plan import PricedPlan
from meshwright.rules.sums import ARITHMETIC

MOST_REPAIRS = 8

UNSOURCED = ("", "the spec", ARITHMETIC)
"""Sources that say no more than the sentence of a rule."""

CONFLICT = "Smallest conflict: no plan keeps all of these, whatever else it does"
ALONE = "No plan fits without --plan either; the repairs below leave it out"

STOPPED = "Stopped before changes were looked at."

UNDECIDED = (
    "Undecided.",
    "No plan was found, and not all were looked at.",
    "Whether one fits is open.",
)


def explain_sections(explanation: Explanation) -> list[Section]:
    """Return an explanation: the verdict, the reason and the best repair first."""
    parts: list[Section] = [Lines(explanation.title, _verdict(explanation))]
    parts += named_plan_sections(explanation)
    parts += open_sections(explanation.open)
    parts += next_value_sections(explanation.next_values)
    if explanation.judged:
        parts.append(judged_lines(explanation))
    if explanation.broken_rules:
        parts.append(Lines("Broken rules", tuple(_broken_lines(explanation))))
    if explanation.conflict and explanation.conflict.rules:
        parts.append(_conflict_lines(CONFLICT, explanation.conflict))
    if explanation.conflict_alone:
        parts.append(_conflict_lines(ALONE, explanation.conflict_alone))
    if explanation.nearest_plan:
        parts.append(nearest_lines(explanation.nearest_plan))
    if explanation.repairs:
        parts.append(_repair_table(explanation.repairs[:MOST_REPAIRS]))
    if explanation.fits and explanation.plan:
        parts += _fitting(explanation, explanation.plan)
    if explanation.collectives:
        parts += ledger_sections(explanation.collectives)
    return parts


def named_plan_sections(explanation: Explanation) -> Iterator[Section]:
    """Yield which plan is recommended, which is the fastest, and what is proven."""
    outcome = explanation.best
    if outcome is not None and outcome.best is not None:
        claims = (*plan_claims(outcome), proof_claim(outcome))
        title = "The recommended plan and the fastest plan"
        yield Lines(title, tuple(filter(None, claims)))


def _conflict_lines(title: str, conflict: Conflict) -> Lines:
    return Lines(title, tuple(map(str, conflict.rules)))


def _verdict(explanation: Explanation) -> tuple[str, str, str]:
    """Return three lines: whether it fits, why, and what to change."""
    if not explanation.fits:
        return _refusal(explanation)
    assert explanation.plan is not None
    step = seconds_text(explanation.plan.step_s)
    if explanation.status != "fits":
        plan = plan_lines(explanation.plan.plan)[0]
        return "A plan fits.", f"The recommended plan takes {step} a step.", plan
    change = (
        f"Change {explanation.helps[0].change}."
        if explanation.helps
        else "No one field gains."
    )
    change = STOPPED if explanation.is_stopped else change
    return (
        "Fits.",
        f"It takes {step} a step, {standing_text(explanation)}.",
        change,
    )


def _refusal(explanation: Explanation) -> tuple[str, str, str]:
    if explanation.status == "unknown":
        return (*UNDECIDED[:2], explanation.left_open or UNDECIDED[2])
    verdict = (
        "Does not fit." if explanation.status == "does_not_fit" else "No plan fits."
    )
    if explanation.is_stopped:
        return (
            verdict,
            f"What clashes was not worked out{_memory_need(explanation)}.",
            explanation.left_open or STOPPED,
        )
    rules = explanation.conflict.rules if explanation.conflict else ()
    names = _joined([rule.rule for rule in rules])
    why = f"Because of {names or 'the model, the GPUs and the framework alone'}"
    why = f"{why}{_memory_need(explanation) or _arithmetic(explanation)}."
    if not explanation.repairs:
        return verdict, why, "No repair is known."
    return verdict, why, f"Change {explanation.repairs[0].sentence}."


def _joined(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _arithmetic(explanation: Explanation) -> str:
    """Return the values that clash in the conflict, if a rule has some."""
    rules = explanation.conflict.rules if explanation.conflict else ()
    told = next((rule.arithmetic for rule in rules if rule.arithmetic), "")
    return f": {told}" if told else ""


def _memory_need(explanation: Explanation) -> str:
    """Return the memory that the closest plan needs, if it is too much."""
    miss = next(
        (rule for rule in explanation.broken_rules if rule.rule == "memory"), None
    )
    if miss is None or miss.need is None or miss.have is None:
        return ""
    return f": {miss.where} needs {miss.need:.1f} GiB, {miss.have:.1f} usable"


def _broken_lines(explanation: Explanation) -> Iterator[str]:
    witness = explanation.conflict.witness if explanation.conflict else ""
    if witness and not explanation.judged:
        yield f"The plan that comes closest is {witness}"
    for rule in explanation.broken_rules:
        yield str(rule)
        if who := origin_text(rule, explanation.judged):
            yield f"  {who}"
        if rule.fails_with:
            yield f"  the framework says: {rule.fails_with} ({rule.source})"
        elif rule.source not in UNSOURCED:
            yield f"  read in {rule.source}"
    broken = {rule.rule for rule in explanation.broken_rules}
    if explanation.memory and "memory" in broken:
        memory = explanation.memory.parts.items()
        parts = [f"{name} {gib:.2f}" for name, gib in memory if gib]
        yield f"Its fullest GPU, GiB: {', '.join(parts)}"
        likely = probability_text(explanation.memory.fit_probability)
        yield f"It fits with probability {likely}"


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


def _fitting(explanation: Explanation, plan: PricedPlan) -> Iterator[Section]:
    outcome = explanation.best
    fastest = outcome.optimum if outcome else None
    if fastest and explanation.gap:
        yield _gap_table(plan, fastest, explanation.gap)
    yield from cost_sections(explanation.decisions, explanation.near)
    yield from near_sections(explanation.near)
    yield Lines("Slack", tuple(_slack_lines(explanation.slack)))
    yield safety_lines(plan, outcome)
    if explanation.helps:
        yield _change_table("One field left open", explanation.helps, plan)
    if outcome and outcome.by_kind and fastest:
        yield kind_table(fastest, outcome.by_kind)
    if explanation.degrees:
        yield from degree_sections(explanation.degrees, fastest or plan)
    for title, changes in (
        ("What binds: the fastest plan without it", explanation.binding),
        ("Worth of a little more to the fastest plan", explanation.marginal_values),
    ):
        if changes:
            yield _change_table(title, changes, fastest or plan)


def _slack_lines(slack: tuple[Slack, ...]) -> Iterator[str]:
    """Yield how full each capacity is, then the names of the rules that hold."""
    for one in slack:
        if one.need is not None and one.have is not None:
            where = f" ({one.where})" if one.where else ""
            numbers = f"{one.need:.4g} of {one.have:.4g} {one.unit}{where}"
            yield f"{one.rule}: {one.sentence}: {numbers}"
    kept = dict.fromkeys(one.rule for one in slack if one.need is None)
    if kept:
        yield f"Kept: {', '.join(kept)}"


def _gap_table(plan: PricedPlan, fastest: PricedPlan, gap: GapToBest) -> Table:
    """Return the step times of the fastest plan and of this one, part by part."""
    rows = [
        (
            name,
            seconds_text(fastest.time_parts.get(name, 0.0)),
            seconds_text(plan.time_parts.get(name, 0.0)),
            f"{more:+.4f}",
        )
        for name, more in gap.terms.items()
        if plan.time_parts.get(name, 0.0) + fastest.time_parts.get(name, 0.0) > 0
    ]
    total = (seconds_text(fastest.step_s), seconds_text(plan.step_s))
    rows.append(("step", *total, f"{gap.step_s:+.4f}"))
    heading = ("part", "fastest", "this", "difference, s")
    return Table("Distance to the fastest plan, part by part", heading, tuple(rows))


def _change_table(title: str, changes: tuple[Change, ...], plan: PricedPlan) -> Table:
    rows = []
    for change in changes:
        if change.step_s is None:
            rows.append((change.change, "-", "none fits", "-"))
            continue
        rate = change.tokens_per_s_per_gpu
        more = f"{rate / plan.tokens_per_s_per_gpu - 1:+.1%}" if rate else "-"
        loss = f"{change.step_s / plan.step_s - 1:+.1%}"
        rows.append((change.change, seconds_text(change.step_s), loss, more))
    heading = ("change", "step", "step time", "tokens/s/GPU")
    return Table(title, heading, tuple(rows))
