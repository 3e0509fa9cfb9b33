"""Where a number of the spec turns the order of plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import combinations, cycle, pairwise

from meshwright.explanations.compare import Named, Solve
from meshwright.explanations.fixed import with_plan
from meshwright.results.comparison import Comparison, Flip
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.spec import Spec

POINTS = 5
"""Values that are tried, evenly on a logarithmic scale, ends included.

What is known at the spec's own value is taken along."""

CLOSE = 1.01
"""A turn is found to a percent."""

NUDGES = (CLOSE**-0.45, CLOSE**0.45, 0.0)
"""How far from where a turn is expected is tried: below, above, and in the middle of
what is left."""

Order = tuple[str, ...]
Pair = tuple[str, str]
At = Callable[[float], Spec]


class Steps:
    """Plans at any value of a number of the spec, each solved exactly, and once."""

    def __init__(self, at: At, plans: Named, solve: Solve) -> None:
        """Take the spec as a function of the number, and the plans by their names."""
        self.names = tuple(name for name, _ in plans)
        self._at, self._pins, self._solve = at, dict(plans), solve
        self._known: dict[tuple[float, str], PricedPlan | None] = {}
        self.learned: list[float] = []

    def learn(self, value: float, known: Comparison) -> None:
        """Take the plans of a comparison, which is at one value, as they are."""
        self.learned.append(value)
        for own in known.plans:
            self._known[value, own.name] = own.plan

    def best(self, value: float, name: str) -> PricedPlan | None:
        """Return a plan at a value, None where it does not fit."""
        key = (value, name)
        if key not in self._known:
            spec = with_plan(self._at(value), self._pins[name])
            self._known[key] = self._solve(spec).best
        return self._known[key]

    def order(self, value: float, among: Collection[str] | None = None) -> Order:
        """Return the names of plans that fit, the fastest first.

        Times that are the same to a billionth count as equal, in the order given.
        """
        names = [name for name in self.names if among is None or name in among]
        best = {name: self.best(value, name) for name in names}
        steps = {n: float(f"{own.step_s:.9g}") for n, own in best.items() if own}
        return tuple(sorted(steps, key=lambda name: steps[name]))


def flips(steps: Steps, low: float, high: float) -> list[Flip]:
    """Return where the order of plans turns between two values of a number.

    Every order is that of exact solves. Between values of unlike order the turns are
    found by bisection; one that turns back between two values that are tried is missed.
    """
    ratio = (high / low) ** (1 / (POINTS - 1))
    values = {*(low * ratio**point for point in range(POINTS - 1)), high}
    values |= {value for value in steps.learned if low < value < high}
    ends = pairwise(sorted(values))
    return [flip for own in ends for flip in _turns(steps, *own)]


def _turns(steps: Steps, below: float, above: float) -> Iterator[Flip]:
    """Yield one turn after the other between two values."""
    before, end = steps.order(below), steps.order(above)
    while before != end:
        pairs = _passing(before, end)
        movers = set(before).symmetric_difference(end).union(*pairs)
        at = _turn(steps, (below, above), pairs, movers)
        is_swap = len(pairs) == 1 and len(movers) == 2
        after = _swapped(before, pairs[0]) if is_swap else steps.order(at)
        if before != after:
            yield Flip(at=at, before=before, after=after)
        below, before = at, after


def _passing(before: Order, after: Order) -> list[Pair]:
    """Return the pairs of plans that change places."""
    both = [name for name in before if name in after]
    return [(a, b) for a, b in combinations(both, 2) if after.index(a) > after.index(b)]


def _swapped(order: Order, pair: Pair) -> Order:
    """Return an order in which two neighbours have changed places."""
    other = dict(zip(pair, reversed(pair), strict=True))
    return tuple(other.get(name, name) for name in order)


def _turn(
    steps: Steps, ends: tuple[float, float], pairs: list[Pair], movers: set[str]
) -> float:
    """Return a value just above the first turn of some plans between two values.

    The turn stays between two values that are solved, and bisection closes in on it;
    what lies just to either side of where it is expected is tried first.
    """
    (below, above), nudges = ends, cycle(NUDGES)
    before = steps.order(below, movers)
    while above / below > CLOSE:
        meeting = [_meeting(steps, below, above, pair) for pair in pairs]
        middle = next(nudges) * min(filter(None, meeting), default=0.0)
        if not below < middle < above:
            middle = (above * below) ** 0.5
        if steps.order(middle, movers) == before:
            below = middle
        else:
            above = middle
    return above


def _meeting(steps: Steps, below: float, above: float, pair: Pair) -> float:
    """Return where the times of two plans would be equal; 0 if that is not known.

    Between solved values times are taken as straight lines over one over the value, as
    those on a link are over one over its bandwidth.
    """
    ends = [steps.best(value, name) for value in (below, above) for name in pair]
    known = [own.step_s for own in ends if own is not None]
    if len(known) < len(ends):
        return 0.0
    lead, later = known[0] - known[1], known[2] - known[3]
    if lead * later >= 0:
        return 0.0
    return 1 / (1 / below + lead / (lead - later) * (1 / above - 1 / below))
