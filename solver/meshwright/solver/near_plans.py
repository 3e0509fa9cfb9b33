"""The set of all plans within a share of the fastest step time, proven."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.bounds.integer_costs import seconds
from meshwright.plans.columns import Ints
from meshwright.results.near_plans import (
    NearDecision,
    NearPlan,
    NearPlans,
    NearValue,
)
from meshwright.solver.candidate_plans import CandidatePlans
from meshwright.spec.plan_fields import FIELDS


@dataclass(frozen=True)
class _Found:
    """A candidate that is within the limit, and the ticks of a split of it that is."""

    row: int
    ticks: float


def near_plans(
    plans: CandidatePlans, fastest_ticks: int, within: float, *, is_whole: bool
) -> NearPlans:
    """Return all plans within a share of the fastest.

    Plans that differ in mesh or split of layers alone count once. `is_whole` says
    whether no plan that is within was left out of the candidates.
    """
    most_ticks = int(fastest_ticks * (1 + within))
    rows = plans.rows.up_to(most_ticks)
    plans = CandidatePlans(
        plans.job, plans.lattice, plans.options, plans.deadline, rows
    )
    found: list[_Found] = []
    for skeleton in np.unique(rows.unplaced):
        meshes = np.flatnonzero(rows.unplaced == skeleton)
        one, is_known = _within(plans, meshes, most_ticks)
        is_whole &= is_known
        found += [one] if one else []
    found.sort(key=lambda own: own.ticks)
    return NearPlans(
        within=within,
        count=len(found),
        is_proven=is_whole,
        decisions=tuple(_decisions(plans, found, fastest_ticks)),
        plans=tuple(
            NearPlan(plan=str(plans.constructed(own.row)), step_s=seconds(own.ticks))
            for own in found
        ),
    )


def _within(
    plans: CandidatePlans, meshes: Ints, most_ticks: int
) -> tuple[_Found | None, bool]:
    """Return a mesh and the ticks with which a skeleton is within the limit, if any.

    The second result is whether that is proven. A constructed split that is within
    needs no proof.
    """
    upper, lower = plans.rows.upper[meshes], plans.rows.lower[meshes]
    best = int(upper.argmin())
    if upper[best] <= most_ticks:
        return _Found(int(meshes[best]), float(upper[best])), True
    is_known = True
    for row in meshes[np.argsort(lower, kind="stable")].tolist():
        if plans.deadline.has_passed:
            return None, False
        proof = plans.prove_row(row)
        if proof.status in ("optimal", "feasible") and proof.ticks <= most_ticks:
            return _Found(row, proof.ticks), True
        if proof.status in ("feasible", "unknown"):
            is_known &= proof.bound > most_ticks
    return None, is_known


def _decisions(
    plans: CandidatePlans, found: list[_Found], fastest_ticks: int
) -> Iterator[NearDecision]:
    """Yield what each decision is in the plans; they are sorted, the fastest first."""
    rows = plans.rows.costs.rows.take(np.array([own.row for own in found], dtype=int))
    ticks = np.array([own.ticks for own in found])
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
