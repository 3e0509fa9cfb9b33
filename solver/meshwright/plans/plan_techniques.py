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
    """Return what a plan does in the words of the field, such as 'TP + PP, offload'."""
    degrees = {"TP": plan.tp, "PP": plan.pp, "DP/ZeRO": plan.dp, "CP": plan.cp}
    used = " + ".join(name for name, degree in degrees.items() if degree > 1)
    more = {"recompute": plan.recompute, "offload": plan.offload}
    words = [name for name, mode in more.items() if mode != "none"]
    return ", ".join([used or "one GPU", *words])
