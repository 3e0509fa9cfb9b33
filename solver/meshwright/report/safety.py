"""How likely a plan fits in memory, and what more or less safety would change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from meshwright.plans.plan import Plan
from meshwright.report.tables import Lines
from meshwright.results.outcome import SafetyChoice
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.plan_fields import FIELDS

SURE = 0.995
"""Probabilities above it, and so near to 0, are not told: tails are not known."""

SAME = 1e-9
"""Step times that differ by less, as a share, are the same but for rounding."""


def safety_lines(
    best: PricedPlan,
    choices: Sequence[SafetyChoice] = (),
    fastest: PricedPlan | None = None,
) -> Lines:
    """Return the probability that a plan fits, then the fastest at other risks.

    These are compared with the `fastest` plan, which is the best one unless given.
    """
    fits = fit_text(best.fit_probability)
    return Lines("How safe", (fits, *_choice_lines(fastest or best, choices)))


def fit_text(probability: float) -> str:
    """Return how likely a plan fits, as a sentence."""
    return f"Fits with probability {probability_text(probability)}."


def probability_text(probability: float) -> str:
    """Return a probability with two digits, rounded down."""
    if probability > SURE:
        return "above 0.99"
    if probability < 1 - SURE:
        return "below 0.01"
    return f"{math.floor(probability * 100) / 100:.2f}"


def _choice_lines(best: PricedPlan, choices: Sequence[SafetyChoice]) -> Iterator[str]:
    for choice in choices:
        at = f"At {1 - choice.oom_risk:.4g}"
        if choice.step_s is None or choice.plan is None:
            none = "none fits" if choice.is_proven else "no plan is known"
            yield f"{at} {none}."
            continue
        change = choice.step_s / best.step_s - 1
        if abs(change) < SAME:
            yield f"{at} the step is the same."
        else:
            unproven = "" if choice.is_proven else ", not proven to be the best"
            fields = _changed_fields(best.plan, choice.plan)
            yield f"{at} the step takes {change:+.1%}: {fields}{unproven}."


def _changed_fields(before: Plan, after: Plan) -> str:
    """Return the fields in which a plan differs from another, with their values."""
    changed = [
        f"{field.name}={getattr(after, field.name)}"
        for field in FIELDS
        if getattr(after, field.name) != getattr(before, field.name)
        and field.name != "microbatches"
    ]
    return ", ".join(changed) or "other layers per stage, or another mesh"
