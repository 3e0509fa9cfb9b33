"""Limits on links and rules of the user, held against constructed splits."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Self

import numpy as np

from meshwright.check.check import keeps, plan_values
from meshwright.cost.job import Job
from meshwright.cost.links import group_bytes
from meshwright.planner.integer_costs import TICK_S, Scaled
from meshwright.planner.link_bounds import LinkUse, least_ticks
from meshwright.planner.memory_fit import stages_by_pp
from meshwright.planner.rows import Lattice
from meshwright.planner.split_bounds import round_up_to_tick, with_all_recomputed
from meshwright.planner.stages import Stages
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.skeletons import Skeletons, to_plan
from meshwright.rules.rule_truth import rule_truth
from meshwright.rules.user_rules import RowValues, split_dependent

MOST_TRIED = 8
"""Splits that are looked at."""


@dataclass(frozen=True)
class LinkLimit:
    """The share of a step for which links may be busy, on the meshes of a lattice."""

    job: Job
    lattice: Lattice
    share: float

    @classmethod
    def of(cls, job: Job, lattice: Lattice) -> Self | None:
        """Return the limit of a spec, if it has one."""
        share = job.spec.limits.max_link_utilisation
        return None if share is None else cls(job, lattice, share)

    def raised(self, costs: Scaled, lower: Floats, below: Floats) -> Floats:
        """Return lower bounds on the ticks of skeletons that keep the limit too.

        They are infinite where no split of up to `below` ticks keeps it.
        """
        result = np.empty(len(costs))
        for index, stages in stages_by_pp(self.job, costs):
            result[index] = self.least_ticks(stages, lower[index], below[index])
        return result

    def keeps(
        self, stages: Stages, layers: Ints, recomputed: Ints, ticks: Floats
    ) -> Bools:
        """Return which splits, of the given ticks, keep the limit on every link."""
        busy = self._busy_ticks(stages, layers, recomputed)
        return np.asarray(busy.max(axis=(1, 2), initial=0.0) <= self.share * ticks)

    def least_ticks(
        self, stages: Stages, known: Floats | float = 0.0, below: Floats | float = inf
    ) -> Floats:
        """Return a lower bound on steps that keep the limit; infinite if none does.

        `known` are lower bounds on the ticks of all splits. Steps above `below` are of
        no interest.
        """
        use, none = self._use(stages), np.zeros(len(stages.extra))
        least = least_ticks(stages, use, self.share, none + known, none + below)
        kept = np.isfinite(least)
        least[kept] = round_up_to_tick(least[kept])
        return least

    def least_busy_ticks(self, stages: Stages) -> Floats:
        """Return ticks of a step for which each link is busy at least, (rows, links).

        Every stage has at least its fewest layers, and some stage an even share.
        """
        even = np.full(stages.extra.shape, -(-stages.layers // stages.count))
        none = np.zeros_like(even)
        fewest = self._busy_ticks(stages, stages.least, none).max(axis=1)
        shared = self._busy_ticks(stages, even, none).min(axis=1)
        return np.asarray(np.maximum(fewest, shared))

    def _busy_ticks(self, stages: Stages, layers: Ints, recomputed: Ints) -> Floats:
        """Return how long splits, (rows, stages), keep each link busy per step.

        The shape is (rows, stages, links).
        """
        rows = stages.costs.rows
        split = with_all_recomputed(self.job, rows, layers, recomputed)
        passed = group_bytes(self.job, rows, split)
        loads = self.lattice.table.loads(rows.mesh)
        return np.asarray(np.matmul(passed, loads) / TICK_S)

    def _use(self, stages: Stages) -> LinkUse:
        """Return the same as amounts that are linear in layers.

        What another layer adds is the same on all stages, and told of one.
        """
        none, one = (np.full(stages.extra.shape, count) for count in (0, 1))
        none_of_one, one_of_one = none[:, :1], one[:, :1]
        base, layer, again = (
            self._busy_ticks(stages, *split)
            for split in (
                (none_of_one, none_of_one),
                (one_of_one, none_of_one),
                (none_of_one, one_of_one),
            )
        )
        return LinkUse(self._busy_ticks(stages, none, none), layer - base, again - base)


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
