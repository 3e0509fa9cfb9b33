"""The ways of a plan beyond plain data parallelism: the fewer, the simpler."""

from __future__ import annotations

from typing import Any

from meshwright.plans.plan import Plan
from meshwright.spec.plan_fields import FIELDS

OFF: dict[str, Any] = {o.name: o.plain for o in FIELDS if o.is_technique}
"""The ways of a plan beyond plain data parallelism, by what each is without it."""


def ways(plan: Plan) -> frozenset[str]:
    """Return what a plan uses beyond plain data parallelism."""
    return frozenset(name for name, off in OFF.items() if getattr(plan, name) != off)
