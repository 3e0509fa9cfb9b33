"""Repairs that make the state lighter: 16-bit gradients, an optimizer of fewer bytes.

They change what is trained, if little: so they stand behind what changes the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from meshwright.explanations.conflict import HasPlan
from meshwright.explanations.repairs import Solve, repair
from meshwright.results.explanation import Repair
from meshwright.spec.spec import Spec

GRADIENTS = (None, "bf16")
OPTIMIZERS = (None, "adamw-8bit")
"""What is tried for each, None for as it is."""


def lightened(spec: Spec, solve: Solve, has_plan: HasPlan) -> Iterator[Repair]:
    """Yield the smallest sets of lighter state with which there is a plan."""
    found: list[dict[str, str]] = []
    for own in sorted(product(GRADIENTS, OPTIMIZERS), key=_count):
        names = ("gradients", "optimizer")
        changes = {k: v for k, v in zip(names, own, strict=True) if v is not None}
        is_new = any(getattr(spec.training, k) != v for k, v in changes.items())
        if not is_new or any(less.items() <= changes.items() for less in found):
            continue
        training = spec.training.model_copy(update=changes)
        changed = spec.model_copy(update={"training": training})
        if has_plan(changed) and (best := solve(changed).best) is not None:
            found.append(changes)
            edits = [_edit(spec, name, value) for name, value in changes.items()]
            yield repair(edits, best, "training")


def _count(own: tuple[str | None, ...]) -> int:
    return sum(value is not None for value in own)


def _edit(spec: Spec, name: str, value: str) -> str:
    old = getattr(spec.training, name) or "default"
    return f"training.{name}: {old} -> {value}"
