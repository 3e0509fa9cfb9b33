"""How much longer each part takes in one plan than in another."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.results.explanation import Gap
from meshwright.results.priced_plan import PricedPlan


def differences(
    own: Mapping[str, float], least: Mapping[str, float]
) -> dict[str, float]:
    """Return what each part takes more than in another plan, whichever has it."""
    names = dict.fromkeys([*own, *least])
    return {name: own.get(name, 0.0) - least.get(name, 0.0) for name in names}


def gap(plan: PricedPlan, best: PricedPlan) -> Gap:
    """Return what a plan takes longer than the best, part by part."""
    terms = differences(plan.time_parts, best.time_parts)
    return Gap(terms=terms, step_s=plan.step_s - best.step_s)
