"""Plans side by side: the best of each kind, or those that a user has in mind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshwright.cost.profile import Profile
from meshwright.economics.ledger import ledger
from meshwright.explanations.fixed import with_plan
from meshwright.explanations.holdings import holdings
from meshwright.plans.techniques import NAMES
from meshwright.results.comparison import Compared, Comparison
from meshwright.results.outcome import KindResult, Outcome
from meshwright.spec.cluster import Cluster
from meshwright.spec.pins import Pins, Range
from meshwright.spec.spec import Spec

Solve = Callable[[Spec], Outcome]
Named = Sequence[tuple[str, Pins]]


def compare(spec: Spec, plans: Named, solve: Solve) -> Comparison:
    """Return plans on a spec; what each leaves open is chosen for it."""
    found = []
    for name, pins in plans:
        outcome = solve(with_plan(spec, pins))
        found.append(_told(name, outcome, outcome.cluster))
    return _sorted(spec, found)


def of_kinds(spec: Spec, outcome: Outcome) -> Comparison:
    """Return the best plan of each kind side by side, as an outcome has them.

    Where no plan fits there are no kinds, and what is told is why.
    """
    if outcome.best is None:
        return _sorted(spec, [_told("any plan", outcome, None)])
    kinds = [_told(own.kind, own, outcome.cluster) for own in outcome.by_kind]
    return _sorted(spec, kinds)


def _told(name: str, own: Outcome | KindResult, cluster: Cluster | None) -> Compared:
    broken = own.near_miss.broken_rules if own.near_miss else ()
    return Compared(name=name, plan=own.best, broken_rules=broken, cluster=cluster)


def _sorted(spec: Spec, found: list[Compared]) -> Comparison:
    found.sort(key=lambda own: own.plan.step_s if own.plan else float("inf"))
    return Comparison(title=spec.title, plans=tuple(found))


def in_full(spec: Spec, own: Comparison, profile: Profile) -> Comparison:
    """Return a comparison with what its plans hold where, and all they send."""
    plans = tuple(_in_full(spec, one, profile) for one in own.plans)
    return own.model_copy(update={"plans": plans})


def _in_full(spec: Spec, own: Compared, profile: Profile) -> Compared:
    if own.plan is None:
        return own
    job = profile.job(spec.model_copy(update={"cluster": own.cluster}))
    held, sent = holdings(job, own.plan), ledger(job, own.plan.plan)
    return own.model_copy(update={"holdings": held, "collectives": sent})


def kind_pins(spec: Spec, kind: str) -> Pins:
    """Return the degrees that a kind of plan may have, of those that a spec allows."""
    used = kind.split(" + ")
    axes = dict(zip(("tp", "pp", "dp", "cp"), NAMES, strict=True))
    pins = {}
    for axis, name in axes.items():
        own: Range = getattr(spec.pins, axis) or Range()
        pins[axis] = _from_two(own) if name in used else Range(values=(1,))
    return Pins.model_validate(pins)


def _from_two(own: Range) -> Range:
    """Return the part of a pin from 2 on."""
    if own.values is None:
        return Range(min=max(own.min, 2), max=own.max)
    return Range(values=tuple(value for value in own.values if value > 1))
