"""The user's rules that a skeleton alone does not decide: which splits keep them.

Whether one split does is asked of the checker, skeleton by skeleton. An upper bound
needs but one skeleton whose split does: those after it have none.
"""

from __future__ import annotations

import numpy as np

from meshwright.bounds.upper_bounds import with_all_recomputed
from meshwright.check.check import plan_values
from meshwright.check.rule_values import keeps
from meshwright.cost.job import Job
from meshwright.lattice.lattice import Lattice
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.encoding import to_plan
from meshwright.plans.skeletons import Skeletons
from meshwright.rules.rule_truth import rule_truth
from meshwright.rules.user_rules import RowValues, split_dependent

MOST_TRIED = 8
"""Splits that are looked at."""


def keep_user_rules(
    job: Job,
    lattice: Lattice,
    rows: Skeletons,
    layers: Ints,
    recomputed: Ints,
    ticks: Floats,
) -> Bools:
    """Return which splits, (rows, stages), are known to keep the user's rules.

    The fastest are looked at first; some that do may be left out.
    """
    open_rules = split_dependent(job.spec)
    if not open_rules:
        return np.ones(len(rows), dtype=bool)
    values = RowValues(job.spec, rows)
    found = np.ones(len(rows), dtype=bool)
    for rule in open_rules:
        found &= rule_truth(rule.tree, values).must
    order = np.argsort(ticks, kind="stable")
    tried = order[np.isfinite(ticks[order]) & ~found[order]][:MOST_TRIED]
    for row in tried.tolist():
        one = rows.take(np.array([row]))
        found[row] = keeps_user_rules(job, lattice, one, layers[row], recomputed[row])
        if found[row]:
            break
    return found


def keeps_user_rules(
    job: Job, lattice: Lattice, row: Skeletons, layers: Ints, recomputed: Ints
) -> bool:
    """Return whether one split of one placed skeleton keeps the user's rules."""
    split = with_all_recomputed(job, row, layers, recomputed)
    plan = to_plan(row, 0, split, lattice.place(row))
    values = plan_values(job, plan)
    return all(keeps(rule, values) for rule in job.spec.rules)
