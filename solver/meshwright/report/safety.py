"""How likely a plan fits in memory, and what more or less safety would change."""

from __future__ import annotations

import math

from meshwright.report.tables import Lines
from meshwright.results.claims import safety_claims
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan

SURE = 0.995
"""Probabilities above it, and so near to 0, are not told: tails are not known."""


def safety_lines(plan: PricedPlan, outcome: Outcome | None = None) -> Lines:
    """Return the probability that a plan fits, then the fastest at other risks."""
    claims = () if outcome is None else safety_claims(outcome)
    return Lines("How safe", (fit_text(plan.fit_probability), *claims))


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
