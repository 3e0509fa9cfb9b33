"""The ways of a plan beyond plain data parallelism: the fewer, the simpler."""

from __future__ import annotations

from typing import Any

from meshwright.plans.plan import Plan

OFF: dict[str, Any] = {
    "tp": 1,
    "pp": 1,
    "vpp": 1,
    "cp": 1,
    "ep": 1,
    "zero": 0,
    "sequence_parallel": False,
    "schedule": "1f1b",
    "recompute": "none",
    "offload": "none",
}
"""The ways of a plan beyond plain data parallelism, by what each is without it."""


def ways(plan: Plan) -> frozenset[str]:
    """Return what a plan uses beyond plain data parallelism."""
    return frozenset(name for name, off in OFF.items() if getattr(plan, name) != off)
