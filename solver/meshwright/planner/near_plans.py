"""The set of all plans within a share of the fastest step time, proven."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.planner.integer_costs import seconds
from meshwright.planner.model import ANY_SPLIT
from meshwright.planner.plans import Plans
from meshwright.plans.columns import Ints
from meshwright.plans.plan import Plan
from meshwright.results.outcome_parts import (
    NearDecision,
    NearPlan,
    NearPlans,
    NearValue,
)
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.plan_fields import FIELDS


def near_plans(
    plans: Plans,
    fastest: PricedPlan,
    fastest_ticks: int,
    within: float,
    *,
    is_whole: bool,
) -> NearPlans:
    """Return all plans within a share of the fastest.

    Plans that differ in mesh or split of layers alone count once. `is_whole` says
    whether no plan that is within was left out of the rows.
    """
    most_ticks = int(fastest_ticks * (1 + within))
    is_near = plans.rows.fits & (plans.rows.lower <= most_ticks)
    unplaced = plans.rows.unplaced
    found: list[_Found] = []
    for skeleton in np.unique(unplaced[is_near]):
        meshes = np.flatnonzero(is_near & (unplaced == skeleton))
        if _is_row_of(plans, int(meshes[0]), fastest.plan):
            row = int(meshes[0])
            one = _Found(row, fastest_ticks, fastest.plan, fastest.step_s)
            found.insert(0, one)
            continue
        other, is_known = _within(plans, meshes, most_ticks)
        is_whole &= is_known
        found += [other] if other else []
    # The sort is stable: the fastest plan stays first among plans of equal time.
    found.sort(key=lambda plan: plan.ticks)
    return NearPlans(
        within=within,
        count=len(found),
        is_proven=is_whole,
        decisions=tuple(_decisions(plans, found, fastest_ticks)),
        plans=tuple(
            NearPlan(plan=str(plan.plan), step_s=plan.step_s) for plan in found
        ),
    )


@dataclass(frozen=True)
class _Found:
    """A candidate within the limit, with its best known split."""

    row: int
    ticks: int
    plan: Plan
    step_s: float


def _is_row_of(plans: Plans, row: int, plan: Plan) -> bool:
    """Return whether a plan has all decisions of a row."""
    rows = plans.rows.costs.rows
    return all(
        int(getattr(rows, field.name)[row]) == field.encoded(getattr(plan, field.name))
        for field in FIELDS
    )


def _within(plans: Plans, meshes: Ints, most_ticks: int) -> tuple[_Found | None, bool]:
    """Return a skeleton on its best mesh and split, if that is within the limit.

    The second result is whether it is proven whether one is within. A constructed
    split that is within shows it; it is the best one known where effort or time is
    spent before a better one is proven.
    """
    upper, lower = plans.search.upper[meshes], plans.search.least[meshes]
    constructed, first = None, int(upper.argmin())
    if upper[first] <= most_ticks:
        row = int(meshes[first])
        plan = plans.plan(row, plans.constructed(row))
        constructed = _found(row, int(upper[first]), plan)
    best, is_known = constructed, True
    order = np.argsort(lower, kind="stable")
    for row, least in zip(meshes[order].tolist(), lower[order].tolist(), strict=True):
        limit = best.ticks if best else most_ticks + 1
        if least >= limit:
            break
        if plans.deadline.has_passed:
            is_known = False
            break
        proof = plans.search.prove(row, ANY_SPLIT, limit)
        if proof.has_plan and proof.ticks < limit:
            proof = plans.unique(row, ANY_SPLIT, proof)
            best = _found(row, proof.ticks, plans.plan(row, proof.split))
        if proof.is_open:
            is_known &= proof.bound > most_ticks
    return best, is_known or best is not None


def _found(row: int, ticks: int, plan: Plan) -> _Found:
    return _Found(row, ticks, plan, seconds(ticks))


def _decisions(
    plans: Plans, found: list[_Found], fastest_ticks: int
) -> Iterator[NearDecision]:
    """Yield the values of each decision over the plans, which are sorted by time."""
    rows = plans.rows.costs.rows.take(np.array([plan.row for plan in found], dtype=int))
    ticks = np.array([plan.ticks for plan in found])
    for field in FIELDS:
        codes = np.asarray(getattr(rows, field.name), dtype=np.int64)
        order = dict.fromkeys(codes.tolist())
        values = (
            NearValue(
                value=field.decoded(code),
                plans=int((codes == code).sum()),
                loss=float(ticks[codes == code].min() / fastest_ticks - 1),
            )
            for code in order
        )
        yield NearDecision(name=field.name, values=tuple(values))
