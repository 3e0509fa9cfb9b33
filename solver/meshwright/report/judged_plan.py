"""The plan that is judged: who decided its fields, how it stands, the nearest plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshwright.plans.rule import BrokenRule
from meshwright.report.tables import Lines, seconds_text
from meshwright.results.claims import FASTEST, RECOMMENDED, SAME, name_of
from meshwright.results.explanation import Explanation, JudgedField, NearestPlan, Rank
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan

WIDTH = 100
"""Characters of a line of fields, beside its heading."""

ORIGINS = {
    "given": "given",
    "follows": "follows",
    "chosen": "chosen here",
}
"""Who decided a field, as a heading."""


def judged_lines(explanation: Explanation) -> Lines:
    """Return the fields of the plan that is judged, as `--plan` reads them."""
    is_own = explanation.fits or explanation.nearest is None
    title = "The plan judged" if is_own else "The plan judged, which comes closest"
    return Lines(title, tuple(_by_origin(explanation.judged)))


def _by_origin(fields: tuple[JudgedField, ...]) -> Iterator[str]:
    for origin, heading in ORIGINS.items():
        named = [f"{own.name}={own.value}" for own in fields if own.origin == origin]
        if named:
            yield from _wrapped(heading, named)


def _wrapped(heading: str, fields: Sequence[str]) -> list[str]:
    """Return fields after their heading, in lines that break between fields alone."""
    lines = [""]
    for text in fields:
        joined = f"{lines[-1]}, {text}" if lines[-1] else text
        if len(joined) > WIDTH and lines[-1]:
            lines[-1] += ","
            lines.append(text)
        else:
            lines[-1] = joined
    return [
        f"{heading if not index else '':<13}{line}" for index, line in enumerate(lines)
    ]


def origin_text(rule: BrokenRule, fields: Iterable[JudgedField]) -> str:
    """Return which of the values that a rule compares were given, and which follow."""
    by_name = {own.name: own.origin for own in fields}
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
    price = f"{1 + nearest.price:.2f} times {nearest.against}"
    step = seconds_text(nearest.step_s)
    quote = '"' if "'" in nearest.text else "'"
    lines = [
        f"--plan {quote}{nearest.text}{quote}",
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
    """Yield what a plan is, beside the recommended plan and the fastest.

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
    return f"; rank {ranks} of {rank.of:,}, ahead of {rank.beaten:.0%}"
