"""Where a claimed gain comes from: each published decision left open on its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import meshwright as mw

DECISIONS = {
    "tensor parallelism": ("tp", "sequence_parallel"),
    "pipeline": ("pp", "vpp", "layers", "schedule"),
    "context parallelism": ("cp",),
    "expert parallelism": ("ep",),
    "ZeRO": ("zero", "dp_shard", "dp_replicate"),
    "micro-batch": ("micro_batch",),
    "recomputation": (
        *("recompute", "recompute_layers", "recompute_modules", "recompute_segment"),
    ),
    "offload": ("offload",),
}
"""Pins of a published plan that are one decision."""


class Freed(NamedTuple):
    """A decision that is left open, and by how much the step is faster then."""

    decision: str
    gain: float


def decisive(
    asked: dict[str, Any], plan: dict[str, Any], step_s: float
) -> Freed | None:
    """Return the decision that gains most when it alone is left open, if any gains."""
    gains = [Freed(name, step_s / s - 1) for name, s in _each_freed(asked, plan)]
    best = max(gains, key=lambda given: given.gain, default=None)
    return best if best is not None and best.gain > 0.005 else None


def _each_freed(
    asked: dict[str, Any], plan: dict[str, Any]
) -> Iterator[tuple[str, float]]:
    for name, fields in DECISIONS.items():
        kept = {field: value for field, value in plan.items() if field not in fields}
        if len(kept) == len(plan):
            continue
        spec = mw.load({**asked, "pins": kept}, mw.Spec)
        best = mw.solve(spec, by_kind=False, fastest=True, repair=False).best
        if best is not None:
            yield name, best.step_s
