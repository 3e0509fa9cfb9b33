"""Repairs that change the training: 16-bit gradients, an optimizer of fewer bytes.

They change what is trained, if only a little, so they rank behind repairs of the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from meshwright.explanations.conflict import HasPlan
from meshwright.explanations.repairs import Solve, unpriced_repair
from meshwright.results.explanation import Repair
from meshwright.spec.spec import Spec

GRADIENTS = (None, "bf16")
OPTIMIZERS = (None, "adamw-8bit")
"""Values that are tried for each field; None leaves it as it is."""


def training_repairs(spec: Spec, solve: Solve, has_plan: HasPlan) -> Iterator[Repair]:
    """Yield the repairs with the smallest sets of changes to the training."""
    found: list[dict[str, str]] = []
    for values in sorted(product(GRADIENTS, OPTIMIZERS), key=_change_count):
        names = ("gradients", "optimizer")
        changes = {k: v for k, v in zip(names, values, strict=True) if v is not None}
        is_new = any(getattr(spec.training, k) != v for k, v in changes.items())
        if not is_new or any(fewer.items() <= changes.items() for fewer in found):
            continue
        training = spec.training.model_copy(update=changes)
        changed = spec.model_copy(update={"training": training})
        if has_plan(changed) and (best := solve(changed).best) is not None:
            found.append(changes)
            edits = [_edit(spec, name, value) for name, value in changes.items()]
            yield unpriced_repair(edits, best, "training")


def _change_count(values: tuple[str | None, ...]) -> int:
    return sum(value is not None for value in values)


def _edit(spec: Spec, name: str, value: str) -> str:
    old = getattr(spec.training, name) or "default"
    return f"training.{name}: {old} -> {value}"
