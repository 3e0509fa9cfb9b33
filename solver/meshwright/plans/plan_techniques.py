"""The techniques of a plan beyond plain data parallelism: the fewer, the simpler."""

from __future__ import annotations

from typing import Any

from meshwright.plans.plan import Plan
from meshwright.spec.plan_fields import FIELDS

PLAIN: dict[str, Any] = {o.name: o.plain for o in FIELDS if o.is_technique}
"""By technique, the value of its plan field where the technique is not used."""


def techniques(plan: Plan) -> frozenset[str]:
    """Return the techniques that a plan uses beyond plain data parallelism."""
    return frozenset(
        name for name, plain in PLAIN.items() if getattr(plan, name) != plain
    )


def technique_names(plan: Plan) -> str:
    """Return what a plan does in the words of the field, such as 'TP + PP'."""
    degrees = {"TP": plan.tp, "PP": plan.pp, "DP/ZeRO": plan.dp, "CP": plan.cp}
    return " + ".join(name for name, n in degrees.items() if n > 1) or "one GPU"
