"""How much longer each part of the step takes in one plan than in another."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.results.explanation import GapToBest
from meshwright.results.priced_plan import PricedPlan


def part_differences(
    parts_s: Mapping[str, float], other_parts_s: Mapping[str, float]
) -> dict[str, float]:
    """Return the seconds of each part minus those of the same part in another plan.

    A part that only one of the plans has counts as zero in the other.
    """
    names = dict.fromkeys([*parts_s, *other_parts_s])
    return {n: parts_s.get(n, 0.0) - other_parts_s.get(n, 0.0) for n in names}


def gap_to_best(plan: PricedPlan, best: PricedPlan) -> GapToBest:
    """Return how much longer a plan's step takes than the best plan's, by part."""
    terms = part_differences(plan.time_parts, best.time_parts)
    return GapToBest(terms=terms, step_s=plan.step_s - best.step_s)
