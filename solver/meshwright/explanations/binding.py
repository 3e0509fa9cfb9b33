"""Which decisions of a spec bind: those without which a faster plan exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from meshwright.explanations.decisions import (
    HOST_MEMORY,
    MEMORY,
    USER_RULE,
    decisions_in,
    without_decisions,
)
from meshwright.results.explanation import Change, Constraint
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.spec import Spec

Freed = list[tuple[Constraint, PricedPlan | None]]
"""Decisions, each with the best plan without it."""

FASTER = 1 - 1e-9
"""A plan counts as faster below this share of a step time: less is rounding."""


def without_each(spec: Spec, solve: Callable[[Spec], Outcome]) -> Freed:
    """Return the best plan without each pin, rule and limit.

    Memory is left out: the marginal values have the gain of a tenth more.
    """
    return [
        (own, solve(without_decisions(spec, [own.rule])).best)
        for own in decisions_in(spec)
        if own.rule not in (MEMORY, HOST_MEMORY)
    ]


def binding(freed: Freed, best: PricedPlan) -> Iterator[Change]:
    """Yield the pins, rules and limits without which the best plan would be faster."""
    for decision, plan in freed:
        if plan is not None and plan.step_s < best.step_s * FASTER:
            yield Change(
                change=f"{decision.rule} ({decision.sentence})",
                step_s=plan.step_s,
                tokens_per_s_per_gpu=plan.tokens_per_s_per_gpu,
            )


def rule_prices(freed: Freed) -> Iterator[Change]:
    """Yield the best step time without each rule of the user."""
    for decision, plan in freed:
        if plan is not None and decision.rule.startswith(USER_RULE):
            yield Change(
                change=f"without {decision.rule}",
                step_s=plan.step_s,
                tokens_per_s_per_gpu=plan.tokens_per_s_per_gpu,
            )
