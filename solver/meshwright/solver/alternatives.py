"""The plans that might be better than the best one, within the error of the model."""

from __future__ import annotations

import numpy as np

from meshwright.bounds.integer_costs import TICK_S
from meshwright.check.check import predict, schedule_s
from meshwright.plans.simplicity import complexity
from meshwright.results.outcome import Rival, RunnerUp
from meshwright.results.priced_plan import PricedPlan
from meshwright.rules.user_rules import split_dependent
from meshwright.search.plans import Plans, rounding_s

MOST_RIVALS = 16
"""Survivors whose schedule is computed on its task graph, fastest first."""


def alternatives(left: Plans, best: PricedPlan) -> dict[str, object]:
    """Return the rival, the error band and the runner-up, as fields of an outcome."""
    told: dict[str, object] = {
        "rival": _rival(left, best),
        "band": left.options.profile.band(left.job.spec),
    }
    # Splits that are constructed may break rules of the user on splits.
    if not split_dependent(left.job.spec):
        told["runner_up"] = _runner_up(left, best)
    return told


def _rival(left: Plans, best: PricedPlan) -> Rival | None:
    """Return the survivor that is faster than the best on the task graph, if any.

    Only survivors within the gap between closed form and task graph can be faster.
    """
    gap_s = abs(best.step_s - best.schedule_s)
    horizon = (best.step_s + gap_s) / TICK_S
    upper = left.rows.upper
    order = np.argsort(upper, kind="stable")[:MOST_RIVALS]
    rivals = []
    for row in order[upper[order] <= horizon].tolist():
        plan = left.plan(row, left.constructed(row))
        rival_s = schedule_s(left.job, plan)
        if rival_s < best.schedule_s * (1 - 1e-9):
            rivals.append(Rival(plan=plan, schedule_s=rival_s))
    return min(rivals, key=lambda rival: rival.schedule_s, default=None)


def _runner_up(left: Plans, best: PricedPlan) -> RunnerUp | None:
    """Return the fastest constructed plan that is slower than the best."""
    upper = left.rows.upper
    order = np.argsort(upper, kind="stable")
    for row in order[np.isfinite(upper[order])].tolist():
        plan = left.plan(row, left.constructed(row))
        step_s, _ = predict(left.job, plan)
        if step_s > best.step_s + rounding_s(left.job, plan):
            spec = left.job.spec
            theirs, ours = (
                complexity(spec, own, spec.objective.criteria)
                for own in (plan, best.plan)
            )
            is_simpler = theirs < ours
            return RunnerUp(plan=plan, step_s=step_s, is_simpler=is_simpler)
    return None
