"""Crossovers: the values of a number of the spec at which the order of plans changes.

An order lists the plans that fit, the fastest first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import combinations, cycle, pairwise

from meshwright.explanations.changed_spec import with_pins
from meshwright.explanations.compare import NamedPins, Solve
from meshwright.results.comparison import Comparison, Crossover
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.spec import Spec

POINTS = 5
"""Values that are always solved, evenly spaced on a logarithmic scale with both ends.

The spec's own value, where plans are already known, is added."""

CLOSE = 1.01
"""Bisection stops when its ends are within one percent."""

NUDGES = (CLOSE**-0.45, CLOSE**0.45, 0.0)
"""Factors on the expected crossover to try next: just below it, just above it, and then
(0) the middle of the interval that is left."""

Order = tuple[str, ...]
Pair = tuple[str, str]
SpecAt = Callable[[float], Spec]


class SolvedPlans:
    """The best plans at any value of the varied number; each is solved only once."""

    def __init__(self, spec_at: SpecAt, plans: NamedPins, solve: Solve) -> None:
        """Keep the spec as a function of the varied number, and the plans by name."""
        self.names = tuple(name for name, _ in plans)
        self._spec_at, self._pins, self._solve = spec_at, dict(plans), solve
        self._known: dict[tuple[float, str], PricedPlan | None] = {}
        self.known_values: list[float] = []

    def add(self, value: float, comparison: Comparison) -> None:
        """Add the plans of a comparison that was made at one value."""
        self.known_values.append(value)
        for compared in comparison.plans:
            self._known[value, compared.name] = compared.plan

    def best(self, value: float, name: str) -> PricedPlan | None:
        """Return the best plan of a name at a value, None where none fits."""
        key = (value, name)
        if key not in self._known:
            spec = with_pins(self._spec_at(value), self._pins[name])
            self._known[key] = self._solve(spec).best
        return self._known[key]

    def order(self, value: float, among: Collection[str] | None = None) -> Order:
        """Return the names of the plans that fit at a value, the fastest first.

        Step times that agree to nine digits count as equal; those plans keep the order
        in which they were given.
        """
        names = [name for name in self.names if among is None or name in among]
        best = {name: self.best(value, name) for name in names}
        step_s = {n: float(f"{plan.step_s:.9g}") for n, plan in best.items() if plan}
        return tuple(sorted(step_s, key=lambda name: step_s[name]))


def find_crossovers(plans: SolvedPlans, low: float, high: float) -> list[Crossover]:
    """Return the crossovers between two values of the varied number.

    Every order is that of exact solves. Between two solved values of unequal order the
    crossovers are found by bisection. A change that is undone between two neighbouring
    values is missed.
    """
    ratio = (high / low) ** (1 / (POINTS - 1))
    values = {*(low * ratio**point for point in range(POINTS - 1)), high}
    values |= {value for value in plans.known_values if low < value < high}
    return [
        crossover
        for below, above in pairwise(sorted(values))
        for crossover in _crossovers_between(plans, below, above)
    ]


def _crossovers_between(
    plans: SolvedPlans, below: float, above: float
) -> Iterator[Crossover]:
    """Yield the crossovers between two solved values, the lowest first."""
    before, end = plans.order(below), plans.order(above)
    while before != end:
        pairs = _swapped_pairs(before, end)
        movers = set(before).symmetric_difference(end).union(*pairs)
        at = _first_crossover(plans, (below, above), pairs, movers)
        is_swap = len(pairs) == 1 and len(movers) == 2
        after = _with_swap(before, pairs[0]) if is_swap else plans.order(at)
        if before != after:
            yield Crossover(at=at, before=before, after=after)
        below, before = at, after


def _swapped_pairs(before: Order, after: Order) -> list[Pair]:
    """Return the pairs of plans that stand the other way round in the second order."""
    both = [name for name in before if name in after]
    return [(a, b) for a, b in combinations(both, 2) if after.index(a) > after.index(b)]


def _with_swap(order: Order, pair: Pair) -> Order:
    """Return the order with two plans in each other's place."""
    other = dict(zip(pair, reversed(pair), strict=True))
    return tuple(other.get(name, name) for name in order)


def _first_crossover(
    plans: SolvedPlans, ends: tuple[float, float], pairs: list[Pair], movers: set[str]
) -> float:
    """Return a value at most one percent above the first crossover of some plans.

    The crossover stays between two solved values, which bisection brings together.
    Values just below and just above the expected crossover are tried first.
    """
    (below, above), nudges = ends, cycle(NUDGES)
    before = plans.order(below, movers)
    while above / below > CLOSE:
        expected = [_expected_crossover(plans, below, above, pair) for pair in pairs]
        middle = next(nudges) * min(filter(None, expected), default=0.0)
        if not below < middle < above:
            middle = (above * below) ** 0.5
        if plans.order(middle, movers) == before:
            below = middle
        else:
            above = middle
    return above


def _expected_crossover(
    plans: SolvedPlans, below: float, above: float, pair: Pair
) -> float:
    """Return where the step times of two plans would be equal; 0 if that is unknown.

    Between solved values the step time is taken as linear in the inverse of the varied
    number, as the time on a link is linear in the inverse of its bandwidth.
    """
    solved = [plans.best(value, name) for value in (below, above) for name in pair]
    step_s = [plan.step_s for plan in solved if plan is not None]
    if len(step_s) < len(solved):
        return 0.0
    lead_s, later_lead_s = step_s[0] - step_s[1], step_s[2] - step_s[3]
    if lead_s * later_lead_s >= 0:
        return 0.0
    share = lead_s / (lead_s - later_lead_s)
    return 1 / (1 / below + share * (1 / above - 1 / below))
