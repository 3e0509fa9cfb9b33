"""What each decision of a plan costs, by all plans that are near the fastest."""

from __future__ import annotations

from dataclasses import replace

from meshwright.deadline import Interrupt
from meshwright.plans.plan import Plan
from meshwright.results.near_plans import DecisionCost, NearDecision, NearPlans
from meshwright.results.priced_plan import PricedPlan
from meshwright.search.options import Options, tolerance_of
from meshwright.search.plans import rounding_s
from meshwright.search.prepared import Prepared
from meshwright.search.solve import solve
from meshwright.spec.objective import DEFAULT_OBJECTIVE
from meshwright.spec.plan_fields import FIELD

FOLLOWING = ("microbatches", "dp_shard", "dp_replicate")
"""Fields that follow from others, and are no decisions of their own."""


def near_decisions(
    options: Options,
    plan: Plan,
    fastest: PricedPlan | None,
    prepared: Prepared | None,
) -> dict[str, object]:
    """Return all plans near the fastest, and what the decisions of a plan cost.

    Where links are limited and the order of GPUs is a choice, nothing is said: the set
    would be proven by a search of all orders.
    """
    if fastest is None or prepared is None:
        return {}
    spec = prepared.job.spec
    if spec.limits.max_link_utilisation and prepared.lattice.table.has_choice:
        return {}
    share = tolerance_of(spec, options.profile).share
    within = share or DEFAULT_OBJECTIVE.tolerance
    rounded_s = 2 * rounding_s(prepared.job, fastest.plan)
    known_s = fastest.step_s * (1 + within) + rounded_s
    options = replace(options, near=within, known_s=known_s)
    near = solve(spec, replace(options, interrupt=Interrupt()), prepared).near
    return {"near": near, "decisions": decision_costs(plan, near) if near else ()}


def decision_costs(plan: Plan, near: NearPlans) -> tuple[DecisionCost, ...]:
    """Return what each decision of a plan costs; the plan need not be near itself."""
    return tuple(
        _cost(plan, decision)
        for decision in near.decisions
        if decision.name not in FOLLOWING
    )


def _cost(plan: Plan, decision: NearDecision) -> DecisionCost:
    field = FIELD[decision.name]
    code = field.encoded(getattr(plan, decision.name))
    losses = {field.encoded(own.value): own.loss for own in decision.values}
    others = [loss for other, loss in losses.items() if other != code]
    return DecisionCost(
        name=decision.name,
        value=field.decoded(code),
        loss=losses.get(code),
        otherwise=min(others, default=None),
    )
