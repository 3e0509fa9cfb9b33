"""An explanation as titled tables and lines: the answer, why, and the rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from meshwright.plans.rule import BrokenRule
from meshwright.report.alternatives import (
    cost_sections,
    degree_sections,
    lever_sections,
    near_sections,
    next_value_sections,
    open_sections,
)
from meshwright.report.compare import ledger_sections
from meshwright.report.solve import conflict_lines, kind_table, safety_lines
from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.claims import (
    FASTEST,
    NONE_FITS,
    RECOMMENDED,
    SAME,
    conflict_claim,
    memory_need,
    name_of,
    plan_claims,
    plan_lines,
    probability_text,
    proof_claim,
    published_claims,
    repair_claim,
    short_plan_text,
)
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import (
    ModelDecision,
    Repair,
    SolvedModel,
    price_text,
)
from meshwright.results.priced_plan import PricedPlan
from meshwright.rules.legality import OF_STEP, Listed
from meshwright.rules.sums import ARITHMETIC
from meshwright.spec.plan_fields import FIELD, written
from meshwright.spec.spec import framework_names
from meshwright.surface import option

if TYPE_CHECKING:
    from meshwright.results.explanation import (
        Change,
        Explanation,
        GapToBest,
        JudgedField,
        NearestPlan,
        Rank,
        Slack,
    )

WIDTH = 76
"""Characters of a line of fields, so that a screen of 80 columns breaks none."""

ORIGINS = {"given": "given", "follows": "follows", "chosen": "chosen here"}
"""Who decided a field, as a heading."""


def judged_lines(explanation: Explanation) -> Lines:
    """Return the fields of the plan that is judged, as `--plan` reads them."""
    is_own = explanation.fits or explanation.nearest is None
    title = "The plan judged" if is_own else "The plan judged, which comes closest"
    return Lines(title, tuple(_by_origin(explanation.judged)))


def _by_origin(fields: tuple[JudgedField, ...]) -> Iterator[str]:
    for origin, heading in ORIGINS.items():
        named = [
            f"{field.name}={field.value}" for field in fields if field.origin == origin
        ]
        if named:
            yield from _wrapped(heading, named)


def _wrapped(heading: str, fields: Sequence[str]) -> list[str]:
    """Return fields after their heading, in lines that break between fields alone."""
    first, *others = fields
    lines = [f"{heading}: {first}"]
    for text in others:
        if len(joined := f"{lines[-1]}, {text}") > WIDTH:
            lines[-1] += ","
            lines.append(f"  {text}")
        else:
            lines[-1] = joined
    return lines


def origin_text(rule: BrokenRule, fields: Iterable[JudgedField]) -> str:
    """Return which of the values that a rule compares were given, and which follow."""
    by_name = {field.name: field.origin for field in fields}
    parts = []
    for origin, heading in ORIGINS.items():
        names = [name for name in rule.compared if by_name.get(name) == origin]
        if names:
            parts.append(f"{heading}: {', '.join(names)}")
    return "; ".join(parts)


def nearest_lines(nearest: NearestPlan) -> Lines:
    """Return the nearest plan that fits, with the fields that it changes."""
    count = len(nearest.changes)
    changed = "1 field changed" if count == 1 else f"{count} fields changed"
    price = price_text(nearest.price, nearest.against)
    step = seconds_text(nearest.step_s)
    quote = '"' if "'" in nearest.text else "'"
    lines = [
        option("plan", f"{quote}{nearest.text}{quote}"),
        *_wrapped("changed", nearest.changes),
    ]
    if nearest.kept:
        lines += _wrapped("as asked", nearest.kept)
    title = f"The nearest plan that fits: {changed}, {step} a step, {price}"
    return Lines(title, tuple(lines))


def standing_text(explanation: Explanation) -> str:
    """Return how a plan that was asked about compares with those of its spec.

    It may replace pins of the spec, and be faster than all of these.
    """
    outcome, plan = explanation.best, explanation.plan
    best, fastest = (outcome.best, outcome.optimum) if outcome else (None, None)
    if outcome is None or best is None or fastest is None or plan is None:
        is_known = outcome is not None and outcome.status == "infeasible"
        none = "and replaces pins of the spec, which leave no plan"
        return none if is_known else "and no other plan is known yet"
    loss = plan.step_s / fastest.step_s - 1
    if loss < -SAME:
        is_proven = outcome.status == "optimal"
        found = "of the spec, whose pins it replaces" if is_proven else "found so far"
        return f"{-loss:.1%} faster than {FASTEST} {found}"
    rank = _rank_text(explanation.standing) if explanation.standing else ""
    return ", ".join(_places(outcome, plan, loss)) + rank


def _places(outcome: Outcome, plan: PricedPlan, loss: float) -> Iterator[str]:
    """Yield how a plan compares with the recommended plan and the fastest.

    `loss` is over the fastest plan, as a share.
    """
    best, name = outcome.best, name_of(outcome, plan.plan)
    assert best is not None
    if name:
        yield name
    if loss > SAME:
        yield f"{loss:.2%} slower than {FASTEST}"
    elif name != FASTEST:
        yield f"which is {FASTEST}" if name else f"as fast as {FASTEST}"
    if outcome.fastest and name != RECOMMENDED:
        change = plan.step_s / best.step_s - 1
        way = "slower" if change > 0 else "faster"
        yield f"{abs(change):.2%} {way} than {RECOMMENDED}"


def _rank_text(rank: Rank) -> str:
    """Return the rank of a plan among all skeletons that fit."""
    ranks = f"{rank.first:,}"
    if rank.last > rank.first:
        ranks += f" to {rank.last:,}"
    return f"; rank {ranks} of {rank.of:,}, ahead of {math.floor(100 * rank.beaten)}%"


MOST_REPAIRS = 8

UNSOURCED = ("", "the spec", ARITHMETIC)
"""Sources that say no more than the sentence of a rule."""

ALONE = "No plan fits without {plan} either; the repairs below leave it out"

STOPPED = "Stopped before changes were looked at."

UNDECIDED = (
    "Undecided.",
    "No plan was found, and not all were looked at.",
    "Whether one fits is open.",
)


def explain_sections(explanation: Explanation) -> list[Section]:
    """Return an explanation: the verdict, the reason and the best repair first."""
    parts: list[Section] = [Lines(explanation.title, verdict_lines(explanation))]
    parts += named_plan_sections(explanation)
    parts += open_sections(explanation.open)
    parts += next_value_sections(explanation.next_values)
    if explanation.judged:
        parts.append(judged_lines(explanation))
    if explanation.broken_rules:
        parts.append(Lines("Broken rules", tuple(_broken_lines(explanation))))
    parts += conflict_sections(explanation)
    if explanation.nearest_plan:
        parts.append(nearest_lines(explanation.nearest_plan))
    if explanation.repairs:
        parts.append(repair_table(explanation.repairs[:MOST_REPAIRS]))
    if explanation.fits and explanation.plan:
        parts += _fitting(explanation, explanation.plan)
    if explanation.collectives:
        parts += ledger_sections(explanation.collectives)
    return parts


def named_plan_sections(explanation: Explanation) -> Iterator[Section]:
    """Yield which plan is recommended, which is the fastest, and what is proven."""
    lines = named_plan_lines(explanation)
    if lines:
        yield Lines("The recommended plan and the fastest plan", lines)


def named_plan_lines(explanation: Explanation) -> tuple[str, ...]:
    """Return which plan is recommended, which is the fastest, and what is proven."""
    outcome = explanation.best
    if outcome is None or outcome.best is None:
        return ()
    claims = *plan_claims(outcome), proof_claim(outcome), *published_claims(outcome)
    return tuple(filter(None, claims))


def conflict_sections(explanation: Explanation) -> Iterator[Section]:
    """Yield the constraints that no plan keeps, with and without the plan asked for."""
    if explanation.conflict and explanation.conflict.rules:
        yield conflict_lines(explanation.conflict)
    if explanation.conflict_alone:
        yield conflict_lines(
            explanation.conflict_alone, ALONE.format(plan=option("plan"))
        )


def verdict_lines(explanation: Explanation) -> tuple[str, str, str]:
    """Return three lines: whether it fits, why, and what to change."""
    if not explanation.fits:
        return _refusal(explanation)
    assert explanation.plan is not None
    step = seconds_text(explanation.plan.step_s)
    if explanation.status != "fits":
        plan = plan_lines(explanation.plan.plan)[0]
        return "A plan fits.", f"The recommended plan takes {step} a step.", plan
    change = STOPPED if explanation.is_stopped else _gain(explanation)
    rest = ", ".join(_chosen(explanation.judged))
    return (
        f"Fits, with {rest} chosen for the rest." if rest else "Fits.",
        f"It takes {step} a step, {standing_text(explanation)}.",
        change,
    )


def _gain(explanation: Explanation) -> str:
    """Return the field of a plan that fits whose change gains most, and how much."""
    if not explanation.helps or explanation.plan is None:
        return "No single field would make it faster."
    best = explanation.helps[0]
    assert best.step_s is not None
    less = 1 - best.step_s / explanation.plan.step_s
    return f"Change {best.whole}: {seconds_text(best.step_s)} a step, {less:.1%} less."


def _chosen(judged: Iterable[JudgedField]) -> Iterator[str]:
    """Yield the fields that were left open, and are not at their plainest.

    Degrees that only fill the cluster are among them, but for data parallelism.
    """
    for field in judged:
        about = FIELD.get(field.name)
        fills = field.origin == "follows" and field.name in ("tp", "pp", "cp")
        is_open = field.origin == "chosen" or fills
        if about and is_open and field.value != written(about.plain):
            yield f"{field.name}={field.value}"


def _refusal(explanation: Explanation) -> tuple[str, str, str]:
    if explanation.status == "unknown":
        return (*UNDECIDED[:2], explanation.left_open or UNDECIDED[2])
    verdict = "Does not fit." if explanation.status == "does_not_fit" else NONE_FITS
    if explanation.is_stopped:
        return (
            verdict,
            f"The conflict was not worked out{memory_need(explanation.broken_rules)}.",
            explanation.left_open or STOPPED,
        )
    repair = explanation.repairs[0] if explanation.repairs else None
    why = conflict_claim(explanation.conflict, explanation.broken_rules)
    return verdict, why, repair_claim(repair)


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


def repair_table(repairs: tuple[Repair, ...], is_short: bool = False) -> Table:
    """Return the edits of the spec after which a plan fits, the cheapest first."""
    rows = tuple(
        (
            " and ".join(repair.edits) + (f" ({repair.note})" if repair.note else ""),
            seconds_text(repair.step_s),
            f"{1 + repair.price:.2f} x",
            short_plan_text(repair.plan) if is_short else repair.plan.brief,
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
        yield gap_table(plan, fastest, explanation.gap)
    yield from cost_sections(explanation.decisions, explanation.near)
    yield from near_sections(explanation.near)
    yield Lines("Slack", tuple(slack_lines(explanation.slack)))
    yield safety_lines(plan, outcome)
    yield from lever_sections(explanation.levers)
    if explanation.helps:
        yield _change_table("With one field left open", explanation.helps, plan)
    if outcome and outcome.by_kind and fastest:
        yield kind_table(fastest, outcome.by_kind)
    if explanation.degrees:
        yield from degree_sections(explanation.degrees, explanation.best_of_degrees)
    for title, changes in (
        (
            "Decisions that cost speed: the plan to run without each",
            explanation.binding,
        ),
        (
            "What a little more would gain: the plan to run then",
            explanation.marginal_values,
        ),
    ):
        if changes:
            yield _change_table(title, changes, plan)


def slack_lines(slack: tuple[Slack, ...], kept: bool = True) -> Iterator[str]:
    """Yield how full each capacity is, then the names of the rules that are kept."""
    for one in slack:
        if one.need is not None and one.have is not None:
            where = f" ({one.where})" if one.where else ""
            numbers = f"{one.need:.4g} of {one.have:.4g} {one.unit}"
            if one.unit == OF_STEP:
                numbers = f"{one.need:.1%} of at most {one.have:.0%}"
            yield f"{one.rule}: {one.sentence}: {numbers}{where}"
    names = dict.fromkeys(one.rule for one in slack if one.need is None)
    if names and kept:
        yield f"Kept: {', '.join(names)}"


def gap_table(plan: PricedPlan, fastest: PricedPlan, gap: GapToBest) -> Table:
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


def worth_table(explanation: Explanation, plan: PricedPlan, most: int) -> Table | None:
    """Return the changes that gain most speed: limits dropped, or a little more."""
    changes = [
        *((f"{worth.whole} left open", worth) for worth in explanation.helps),
        *((f"without {worth.change}", worth) for worth in explanation.binding),
        *((worth.change, worth) for worth in explanation.marginal_values),
    ]
    gains = [
        (
            name,
            worth.step_s,
            worth.tokens_per_s_per_gpu / plan.tokens_per_s_per_gpu - 1,
        )
        for name, worth in changes
        if worth.step_s is not None and worth.tokens_per_s_per_gpu is not None
    ]
    best = sorted(
        (worth for worth in gains if worth[2] > 5e-4), key=lambda worth: -worth[2]
    )
    rows = tuple(
        (name, seconds_text(step_s), f"{gain:+.1%}")
        for name, step_s, gain in best[:most]
    )
    heading = ("change", "step", "tokens/s/GPU")
    return Table("What would make it faster", heading, rows) if rows else None


def _change_table(title: str, changes: tuple[Change, ...], plan: PricedPlan) -> Table:
    rows = []
    for change in changes:
        if change.step_s is None:
            rows.append((change.change, "-", "none fits", "-"))
            continue
        rate = change.tokens_per_s_per_gpu
        more = f"{rate / plan.tokens_per_s_per_gpu - 1:+.1%}" if rate else "-"
        loss = f"{change.step_s / plan.step_s - 1:+.1%}"
        cells = seconds_text(change.step_s), loss, more
        if not change.is_proven:
            cells = f"<= {cells[0]}", f"<= {loss}", f">= {more}"
        rows.append((change.whole, *cells))
    heading = ("change", "step", "step time", "tokens/s/GPU")
    return Table(title, heading, tuple(rows))


def rule_sections(rules: list[Listed]) -> list[Section]:
    """Return a table of the rules with their frameworks and sources."""
    rows = tuple(
        (
            listed.rule.name,
            listed.rule.sentence,
            _frameworks(listed),
            listed.rule.source,
            listed.rule.fails_with,
        )
        for listed in rules
    )
    heading = ("rule", "sentence", "frameworks", "source", "the framework says")
    return [Table("Rules that every plan keeps, beside pins and limits", heading, rows)]


def rule_data(rules: list[Listed]) -> list[dict[str, Any]]:
    """Return the rules as data for JSON."""
    return [
        {
            "rule": listed.rule.name,
            "sentence": listed.rule.sentence,
            "frameworks": list(listed.frameworks),
            "source": listed.rule.source,
            "fails_with": listed.rule.fails_with,
        }
        for listed in rules
    ]


def _frameworks(rule: Listed) -> str:
    is_everyone_s = set(rule.frameworks) == set(framework_names())
    return "all" if is_everyone_s else ", ".join(rule.frameworks)


MOST_VALUES = 12
"""Values of a decision that are written out."""


def model_sections(model: SolvedModel | None) -> Iterator[Section]:
    """Yield the rows, variables, constraints and objectives of a model."""
    if model is None:
        return
    yield Lines(
        "The model that was solved",
        (
            f"{model.rows:,} rows, each one complete set of decisions; CP-SAT chooses "
            "one.",
            "The layers of a row are split over its stages apart, exactly; "
            f"{model.cuts:,} such results came back as cuts on the step.",
            f"Minimised, in this order: {', '.join(model.objectives)}.",
        ),
    )
    decisions = [(part.name, _values(part)) for part in model.decisions]
    yield Table("Decisions", ("variable", "values in the rows"), tuple(decisions))
    ranges = [
        (part.name, f"{part.least:,.6g}", f"{part.most:,.6g}", part.unit)
        for part in model.quantities
    ]
    heading = ("variable", "least", "most", "unit")
    yield Table("Quantities", heading, tuple(ranges))
    rules = [
        (part.name, part.sentence, part.equation, _count(part.leaves_out))
        for part in model.constraints
    ]
    heading = ("constraint", "ensures that", "equation", "rows out")
    yield Table("Constraints", heading, tuple(rules))


def _values(decision: ModelDecision) -> str:
    shown = [str(value).lower() or "none" for value in decision.values[:MOST_VALUES]]
    more = len(decision.values) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _count(rows: int | None) -> str:
    return "" if rows is None else f"{rows:,}"
