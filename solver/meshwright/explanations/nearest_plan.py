"""The nearest plan that fits: the fewest fields of what was asked for are changed."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.explanations.decisions import pin_decisions, plan_value
from meshwright.results.explanation import NearestPlan, Repair
from meshwright.spec.spec import Spec


def nearest_plan(spec: Spec, repairs: Sequence[Repair]) -> NearestPlan | None:
    """Return the first of the repairs that changes nothing but fields of the plan.

    `repairs` are priced, those with the fewest changes first, then the fastest.
    """
    for repair in repairs:
        names = [edit.partition(":")[0] for edit in repair.edits]
        if repair.changes == "plan" and not any("." in name for name in names):
            return NearestPlan(
                text=_text(spec, repair, names),
                changes=repair.edits,
                kept=tuple(_kept(spec, names)),
                step_s=repair.step_s,
                price=repair.price,
                against=repair.against,
                plan=repair.plan,
            )
    return None


def _kept(spec: Spec, changed: list[str]) -> list[str]:
    """Return the pinned fields that are as they were asked for."""
    names = [own.rule.removeprefix("pins.") for own in pin_decisions(spec.pins)]
    return [name for name in names if name not in changed]


def _text(spec: Spec, repair: Repair, changed: Sequence[str]) -> str:
    """Return the plan as `--plan` reads it; lists of stages only if they are pinned.

    What plans leave out, such as chunks of a single stage, is written where it is
    changed: the pin of the spec would hold otherwise.
    """
    pins, plan = spec.pins, repair.plan
    lists = {"layers": pins.layers, "recompute_layers": pins.stage_recompute}
    pinned = [name for name, pin in (*lists.items(), ("mesh", pins.mesh)) if pin]
    left_out = [n for n in changed if n not in pinned and f",{n}=" not in f",{plan}"]
    named = (f"{name}={plan_value(plan, name)}" for name in (*pinned, *left_out))
    text = ",".join([str(plan), *named])
    has_both = "recompute_layers=any" in text and pins.stage_recompute
    return text.replace(",recompute_layers=any", "") if has_both else text
