"""Plans side by side, and where a number of the spec turns their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from pydantic import Field

from meshwright.explain.fixed import with_plan
from meshwright.plan import Outcome, PricedPlan
from meshwright.spec.base import SpecModel
from meshwright.spec.pins import Pins
from meshwright.spec.spec import Spec

POINTS = 9
"""Values that are tried, evenly on a logarithmic scale, ends included."""

CLOSE = 1.01
"""A turn is found to a percent."""


class Compared(SpecModel):
    """One of the plans compared."""

    name: str
    plan: PricedPlan | None = Field(description="None where it does not fit.")


class Flip(SpecModel):
    """Where the order of the plans turns."""

    at: float
    before: tuple[str, ...] = Field(description="The plans below it, fastest first.")
    after: tuple[str, ...]


class Comparison(SpecModel):
    """Plans of one spec, the fastest first."""

    title: str
    plans: tuple[Compared, ...]
    vary: str = ""
    flips: tuple[Flip, ...] = ()


Solve = Callable[[Spec], Outcome]
Named = Sequence[tuple[str, Pins]]


def compare(spec: Spec, plans: Named, solve: Solve) -> Comparison:
    """Return plans on a spec; what each leaves open is chosen for it."""
    found = [
        Compared(name=name, plan=solve(with_plan(spec, pins)).best)
        for name, pins in plans
    ]
    found.sort(key=lambda own: own.plan.step_s if own.plan else float("inf"))
    return Comparison(title=spec.title, plans=tuple(found))


def of_kinds(outcome: Outcome) -> list[tuple[str, Pins]]:
    """Return the best plan of each kind that has one, by the name of the kind.

    What stays fixed are the degrees: the rest is chosen again for every value.
    """
    found = []
    for kind in outcome.by_kind:
        if kind.best is not None:
            plan = kind.best.plan
            names = ("tp", "pp", "cp", "ep", "dp_replicate", "dp_shard", "zero")
            pins = {name: getattr(plan, name) for name in names}
            found.append((kind.kind, Pins.model_validate(pins)))
    return found


def flips(
    at: Callable[[float], Spec], low: float, high: float, plans: Named, solve: Solve
) -> list[Flip]:
    """Return where the order of plans turns between two values of a number.

    Every order is that of exact solves. Between values of unlike order the turn is
    found by bisection; one that turns back between two values that are tried is missed.
    """
    ratio = (high / low) ** (1 / (POINTS - 1))
    values = [low * ratio**point for point in range(POINTS)]
    orders = [_order(at(value), plans, solve) for value in values]
    found = []
    for (below, above), (before, after) in zip(
        pairwise(values), pairwise(orders), strict=True
    ):
        if before != after:
            found.append(_turn(at, (below, above), (before, after), plans, solve))
    return found


def _turn(
    at: Callable[[float], Spec],
    values: tuple[float, float],
    orders: tuple[tuple[str, ...], tuple[str, ...]],
    plans: Named,
    solve: Solve,
) -> Flip:
    """Return the turn between two values of unlike order."""
    (below, above), (before, after) = values, orders
    while above / below > CLOSE:
        middle = (above * below) ** 0.5
        order = _order(at(middle), plans, solve)
        if order == before:
            below = middle
        else:
            above, after = middle, order
    return Flip(at=above, before=before, after=after)


def _order(spec: Spec, plans: Named, solve: Solve) -> tuple[str, ...]:
    """Return the names of plans, the fastest first; those that do not fit are left out.

    Times that are the same to a billionth count as equal, in the order given.
    """
    times = [(name, solve(with_plan(spec, pins)).best) for name, pins in plans]
    fitting = [(name, best.step_s) for name, best in times if best is not None]
    return tuple(name for name, _ in sorted(fitting, key=_rounded))


def _rounded(own: tuple[str, float]) -> float:
    return float(f"{own[1]:.9g}")
