"""Plans side by side: the best of each kind, or those that the user names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshwright.cost.profile import Profile
from meshwright.economics.ledger import ledger
from meshwright.explanations.changed_spec import with_pins
from meshwright.explanations.memory_sharding import memory_sharding
from meshwright.plans.simplicity import NAMES
from meshwright.results.comparison import ComparedPlan, Comparison
from meshwright.results.outcome import KindResult, Outcome
from meshwright.spec.cluster import Cluster
from meshwright.spec.pins import Pins, Range
from meshwright.spec.spec import Spec

Solve = Callable[[Spec], Outcome]
NamedPins = Sequence[tuple[str, Pins]]
"""Plans by the names they are printed under, as the pins that define them."""


def compare(spec: Spec, plans: NamedPins, solve: Solve) -> Comparison:
    """Return a comparison of the named plans; fields they leave open are optimised."""
    compared = []
    for name, pins in plans:
        outcome = solve(with_pins(spec, pins))
        compared.append(_compared(name, outcome, outcome.cluster))
    return _fastest_first(spec, compared)


def compare_kinds(spec: Spec, outcome: Outcome) -> Comparison:
    """Return a comparison of the best plans of all kinds that an outcome lists.

    Where no plan fits it has one entry, "any plan", with the broken rules.
    """
    if outcome.best is None:
        return _fastest_first(spec, [_compared("any plan", outcome, None)])
    best_of_kinds = [
        _compared(result.kind, result, outcome.cluster) for result in outcome.by_kind
    ]
    return _fastest_first(spec, best_of_kinds)


def _compared(
    name: str, result: Outcome | KindResult, cluster: Cluster | None
) -> ComparedPlan:
    broken = result.near_miss.broken_rules if result.near_miss else ()
    return ComparedPlan(
        name=name, plan=result.best, broken_rules=broken, cluster=cluster
    )


def _fastest_first(spec: Spec, compared: list[ComparedPlan]) -> Comparison:
    compared.sort(key=lambda one: one.plan.step_s if one.plan else float("inf"))
    return Comparison(title=spec.title, plans=tuple(compared))


def in_full(spec: Spec, comparison: Comparison, profile: Profile) -> Comparison:
    """Return the comparison with the memory sharding and collectives of each plan."""
    plans = tuple(_plan_in_full(spec, plan, profile) for plan in comparison.plans)
    return comparison.model_copy(update={"plans": plans})


def _plan_in_full(spec: Spec, compared: ComparedPlan, profile: Profile) -> ComparedPlan:
    if compared.plan is None:
        return compared
    job = profile.job(spec.model_copy(update={"cluster": compared.cluster}))
    details = {
        "holdings": memory_sharding(job, compared.plan),
        "collectives": ledger(job, compared.plan.plan),
    }
    return compared.model_copy(update=details)


def kind_pins(spec: Spec, kind: str) -> Pins:
    """Return pins that allow only plans of a kind, among those that the spec allows."""
    used = kind.split(" + ")
    axes = dict(zip(("tp", "pp", "dp", "cp"), NAMES, strict=True))
    pins = {}
    for axis, name in axes.items():
        allowed: Range = getattr(spec.pins, axis) or Range()
        pins[axis] = _from_two(allowed) if name in used else Range(values=(1,))
    return Pins.model_validate(pins)


def _from_two(allowed: Range) -> Range:
    """Return the degrees of a pin that are 2 or more."""
    if allowed.values is None:
        return Range(min=max(allowed.min, 2), max=allowed.max)
    return Range(values=tuple(value for value in allowed.values if value > 1))
