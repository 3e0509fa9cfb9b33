"""Exported plans, read again from their files."""

from __future__ import annotations

from pathlib import Path

import meshwright as mw
from meshwright.api.options import pins_of
from meshwright.explanations.decisions import with_pins
from meshwright.spec.plan_fields import Pins
from tests.helpers.plans import best_of

MAIN = {"megatron-bridge": "meshwright_plan.py"}
"""By target, the file of an export that has its plan; elsewhere `launch.sh`."""


def written(exported: mw.Export, folder: Path) -> Path:
    """Write an export to a folder, and return the file that has its plan."""
    for file in exported.files:
        (folder / file.name).write_text(file.text, encoding="utf-8")
    return folder / MAIN.get(exported.target, "launch.sh")


def read_again(
    spec: mw.Spec, plan: mw.Plan, to: str, folder: Path
) -> tuple[Pins, list[str]]:
    """Return the pins of an exported plan, and the fields that its files leave open."""
    notes: list[str] = []
    pins = pins_of(str(written(mw.export(spec, plan, to=to), folder)), spec, notes)
    left = notes[-1].rpartition(": ")[2].split(", ")
    return pins, left


def solved_again(
    spec: mw.Spec, plan: mw.Plan, to: str, folder: Path
) -> mw.PricedPlan | None:
    """Return the best plan with the pins of an exported plan.

    Fields that no file of the framework has are pinned to those of the plan.
    """
    pins, left = read_again(spec, plan, to, folder)
    told = {name: getattr(plan, name) for name in left if hasattr(plan, name)}
    assert not {*told} - OPEN.get(to, set()), f"{to} leaves {sorted(told)} open"
    more = Pins.model_validate(told)
    return best_of(with_pins(with_pins(spec, pins), more))


OPEN = {
    "deepspeed": {"tp", "pp", "ep", "recompute", "offload", "zero"},
    "accelerate": {"recompute"},
    "llama-factory": {"offload"},
    "trl": {"recompute"},
    "slime": {"zero"},
}
"""By target, the fields that its program has in code, and that no file says.

slime always shards the optimizer, which one rank alone does not notice; nor does it
notice DeepSpeed's ZeRO-1, which alone adds up 16-bit gradients in fp32.
DeepSpeed's ZeRO-2 moves gradients with the optimizer, which plans may leave.
"""
