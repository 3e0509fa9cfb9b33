"""What decides between plans: who wins where, and the numbers at the turn."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, pairwise

from meshwright.explanations.compare import Named, Solve
from meshwright.explanations.crossovers import Order, Steps, flips
from meshwright.explanations.gap import differences
from meshwright.loading.vary import Varied
from meshwright.results.comparison import Comparison, Flip, Range, Rule, Side, Span
from meshwright.results.priced_plan import PricedPlan


def turned(own: Comparison, varied: Varied, plans: Named, solve: Solve) -> Comparison:
    """Return a comparison with where its plans turn, and what decides between them."""
    steps, low, high = Steps(varied.at, plans, solve), varied.low, varied.high
    if varied.value is not None:
        steps.learn(varied.value, own)
    found = flips(steps, low, high)
    fields = ("about", "unit", "low", "high", "value")
    changed = {
        "vary": varied.name,
        "range": Range(**{name: getattr(varied, name) for name in fields}),
        "flips": tuple(found),
        "rules": tuple(rules(steps, found, low, high, varied.value)),
    }
    return own.model_copy(update=changed)


def rules(
    steps: Steps, found: list[Flip], low: float, high: float, value: float | None
) -> list[Rule]:
    """Return for pairs of plans which is faster where.

    Those are the pairs that turn, and the fastest plan with each that it always beats:
    fastest at the spec's own value, or at the end of the range that is nearest to it.
    """
    orders = [steps.order(low), *(flip.after for flip in found)]
    ends = [low, *(flip.at for flip in found), high]
    here = min(max(value or low, low), high)
    first = steps.order(here)[:1]
    told = []
    for pair in combinations(steps.names, 2):
        spans = _spans(pair, orders, ends)
        if len(spans) > 1 or (first and first[0] in pair and spans[0].winner):
            told.append(_rule(steps, pair, spans, here))
    return told


def _spans(
    pair: tuple[str, str], orders: list[Order], ends: list[float]
) -> tuple[Span, ...]:
    spans: list[Span] = []
    for order, (low, high) in zip(orders, pairwise(ends), strict=True):
        winner = next((name for name in order if name in pair), "")
        if spans and spans[-1].winner == winner:
            low = spans.pop().low
        spans.append(Span(low=low, high=high, winner=winner))
    return tuple(spans)


def _rule(
    steps: Steps, pair: tuple[str, str], spans: tuple[Span, ...], here: float
) -> Rule:
    winner = spans[-1].winner or spans[-2].winner
    loser = next(name for name in pair if name != winner)
    at = spans[0].high if len(spans) > 1 else here
    own, other = steps.best(at, winner), steps.best(at, loser)
    sides: tuple[Side, ...] = ()
    if own is not None and other is not None:
        sides = (_side(winner, own, other), _side(loser, other, own))
    return Rule(spans=spans, winner=winner, loser=loser, at=at, sides=sides)


def _side(name: str, own: PricedPlan, other: PricedPlan) -> Side:
    more = differences(own.time_parts, other.time_parts)
    pays = {part: s for part, s in more.items() if s > 1e-9 * own.step_s}
    largest = dict(sorted(pays.items(), key=lambda item: -item[1]))
    return Side(name=name, step_s=own.step_s, pays_s=largest, sent_gb=sent_gb(own))


def sent_gb(plan: PricedPlan) -> float:
    """Return what the busiest link carries of all phases in one step, one way, GB."""
    carried: dict[str, float] = defaultdict(float)
    for load in plan.all_links:
        carried[load.link] += load.gb
    return max(carried.values(), default=0.0)
