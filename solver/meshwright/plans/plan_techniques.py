"""The techniques of a plan beyond plain data parallelism: the fewer, the simpler."""

from __future__ import annotations

from meshwright.plans.plan import Plan
from meshwright.spec.plan_fields import TECHNIQUES, PlanField


def techniques(plan: Plan) -> frozenset[str]:
    """Return the fields by which a plan uses a technique."""
    return frozenset(field.name for field in _used(plan))


def names_of_techniques(plan: Plan) -> tuple[str, ...]:
    """Return the techniques beyond data parallelism that a plan has."""
    return tuple(field.technique for field in _used(plan))


def _used(plan: Plan) -> list[PlanField]:
    return [
        own for own in TECHNIQUES if getattr(plan, own.name) not in own.plain_values
    ]


def technique_names(plan: Plan) -> str:
    """Return what a plan does in the words of the field, such as 'TP + PP'."""
    degrees = {"TP": plan.tp, "PP": plan.pp, "DP/ZeRO": plan.dp, "CP": plan.cp}
    return " + ".join(name for name, n in degrees.items() if n > 1) or "one GPU"
