"""Limits on links and rules of the user, held against constructed splits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.check.check import keeps, plan_values
from meshwright.cost.job import Job
from meshwright.cost.links import group_bytes, link_loads
from meshwright.planner.integer_costs import TICK_S
from meshwright.planner.rows import Lattice
from meshwright.planner.split_bounds import (
    round_up_to_tick,
    slowest_split_ticks,
    with_all_recomputed,
)
from meshwright.planner.stages import Stages, has_even_split
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.skeletons import Skeletons, to_plan
from meshwright.rules.rule_truth import rule_truth
from meshwright.rules.user_rules import RowValues, split_dependent

NOISE = 1e-9
"""Relative error of a link's seconds from float arithmetic, generously."""

MOST_TRIED = 8
"""Splits that are looked at."""


@dataclass(frozen=True)
class LinkLimit:
    """The share of a step for which links may be busy, on the meshes of a lattice."""

    job: Job
    lattice: Lattice
    share: float

    def keeps(
        self, stages: Stages, layers: Ints, recomputed: Ints, ticks: Floats
    ) -> Bools:
        """Return which splits, of the given ticks, keep the limit on every link."""
        busy = self._busy_ticks(stages, layers, recomputed).busiest
        return np.asarray(busy.max(axis=1) <= self.share * ticks)

    def least_ticks(self, stages: Stages) -> Floats:
        """Return a lower bound on steps that keep the limit; infinite if none does.

        Let N be the layers of the largest stage, at least an even share. Its links are
        at least as busy as those of the least busy stage with N layers, and the links
        of every stage at least as busy as with its fewest layers; recomputation only
        adds. The first is concave in N for each link, and the most ticks of a split
        with such an N are linear in N: a link that is too busy at both ends of the
        range of N is too busy between them.
        """
        even = np.full(stages.extra.shape, -(-stages.layers // stages.count))
        is_even = has_even_split(self.job.spec, stages.costs.rows)[:, None]
        most = stages.full_cap.max(axis=1, keepdims=True).astype(np.int64)
        fullest = np.where(is_even, even, np.minimum(most, stages.layers))
        at_least = np.where(is_even, even, stages.least)
        some = self._busy_ticks(stages, even, np.zeros_like(even))
        alone, full = (
            some
            if np.array_equal(layers, even)
            else self._busy_ticks(stages, layers, np.zeros_like(layers))
            for layers in (at_least, fullest)
        )
        slow, slowest = (
            self.share
            * (1 + NOISE)
            * slowest_split_ticks(stages, layers[:, 0])[:, None]
            for layers in (even, fullest)
        )
        is_over = (some.idlest > slow) & (full.idlest > slowest)
        is_over |= alone.busiest > slowest
        needed = np.maximum(alone.busiest, some.idlest).max(axis=1) / self.share
        return np.where(is_over.any(axis=1), np.inf, round_up_to_tick(needed))

    def _busy_ticks(self, stages: Stages, layers: Ints, recomputed: Ints) -> _Busy:
        """Return how long splits, (rows, stages), keep each link busy per step."""
        rows = stages.costs.rows
        split = with_all_recomputed(self.job, rows, layers, recomputed)
        passed = group_bytes(self.job, rows, split)
        shape = (len(rows), len(self.job.fabric.link_names))
        busy = _Busy(np.empty(shape), np.empty(shape))
        for mesh in np.unique(rows.mesh).tolist():
            here = np.flatnonzero(rows.mesh == mesh)
            ticks = passed[here] @ self._loads(rows.take(here[:1])) / TICK_S
            busy.busiest[here] = ticks.max(axis=1)
            busy.idlest[here] = ticks.min(axis=1)
        return busy

    def _loads(self, one: Skeletons) -> Floats:
        """Return seconds per byte of each group on each link, for the mesh of a row."""
        mesh, known = int(one.mesh[0]), self.lattice.table.loads_of_mesh
        if mesh not in known:
            known[mesh] = link_loads(self.job, one, self.lattice.place(one))
        return known[mesh]


@dataclass(frozen=True)
class _Busy:
    """Ticks per step for which each link is busy, (rows, links)."""

    busiest: Floats
    """The link's busy time on the stage that uses it most."""
    idlest: Floats
    """The link's busy time on the stage that uses it least."""


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
