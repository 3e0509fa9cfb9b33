"""Which of two plans is faster where, and the numbers that decide it."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, pairwise

from meshwright.explanations.compare import NamedPins, Solve
from meshwright.explanations.crossovers import Order, SolvedPlans, find_crossovers
from meshwright.explanations.time_differences import part_differences
from meshwright.loading.vary import Varied
from meshwright.results.comparison import (
    Comparison,
    Crossover,
    HeadToHead,
    Side,
    VariedRange,
    WinnerSpan,
)
from meshwright.results.priced_plan import PricedPlan


def with_crossovers(
    comparison: Comparison, varied: Varied, plans: NamedPins, solve: Solve
) -> Comparison:
    """Return the comparison with its crossovers, and what decides between the plans."""
    solved, low, high = SolvedPlans(varied.at, plans, solve), varied.low, varied.high
    if varied.value is not None:
        solved.add(varied.value, comparison)
    crossovers = find_crossovers(solved, low, high)
    fields = ("about", "unit", "low", "high", "value")
    changed = {
        "vary": varied.name,
        "range": VariedRange(**{name: getattr(varied, name) for name in fields}),
        "flips": tuple(crossovers),
        "rules": tuple(head_to_heads(solved, crossovers, low, high, varied.value)),
    }
    return comparison.model_copy(update=changed)


def head_to_heads(
    plans: SolvedPlans,
    crossovers: list[Crossover],
    low: float,
    high: float,
    value: float | None,
) -> list[HeadToHead]:
    """Return, for pairs of plans, which of the two is faster where.

    The pairs are those that change order, and those of the fastest plan with a plan
    that it always beats. The fastest plan is the one at the spec's own value, or at the
    end of the range nearest to that value.
    """
    orders = [plans.order(low), *(crossover.after for crossover in crossovers)]
    ends = [low, *(crossover.at for crossover in crossovers), high]
    nearest = min(max(value or low, low), high)
    fastest = plans.order(nearest)[:1]
    found = []
    for pair in combinations(plans.names, 2):
        spans = _spans(pair, orders, ends)
        if len(spans) > 1 or (fastest and fastest[0] in pair and spans[0].winner):
            found.append(_head_to_head(plans, pair, spans, nearest))
    return found


def _spans(
    pair: tuple[str, str], orders: list[Order], ends: list[float]
) -> tuple[WinnerSpan, ...]:
    """Return the spans of values in which the winner of a pair stays the same."""
    spans: list[WinnerSpan] = []
    for order, (low, high) in zip(orders, pairwise(ends), strict=True):
        winner = next((name for name in order if name in pair), "")
        if spans and spans[-1].winner == winner:
            low = spans.pop().low
        spans.append(WinnerSpan(low=low, high=high, winner=winner))
    return tuple(spans)


def _head_to_head(
    plans: SolvedPlans,
    pair: tuple[str, str],
    spans: tuple[WinnerSpan, ...],
    nearest: float,
) -> HeadToHead:
    winner = spans[-1].winner or spans[-2].winner
    loser = next(name for name in pair if name != winner)
    at = spans[0].high if len(spans) > 1 else nearest
    winning, losing = plans.best(at, winner), plans.best(at, loser)
    sides: tuple[Side, ...] = ()
    if winning is not None and losing is not None:
        sides = (_side(winner, winning, losing), _side(loser, losing, winning))
    return HeadToHead(spans=spans, winner=winner, loser=loser, at=at, sides=sides)


def _side(name: str, plan: PricedPlan, other: PricedPlan) -> Side:
    """Return the parts on which a plan spends more than the other, largest first."""
    more_s = part_differences(plan.time_parts, other.time_parts)
    pays_s = {part: s for part, s in more_s.items() if s > 1e-9 * plan.step_s}
    largest = dict(sorted(pays_s.items(), key=lambda item: -item[1]))
    return Side(name=name, step_s=plan.step_s, pays_s=largest, sent_gb=sent_gb(plan))


def sent_gb(plan: PricedPlan) -> float:
    """Return the GB per step on the busiest link, all phases together, one way."""
    carried_gb: dict[str, float] = defaultdict(float)
    for load in plan.all_links:
        carried_gb[load.link] += load.gb
    return max(carried_gb.values(), default=0.0)
