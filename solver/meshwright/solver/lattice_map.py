"""The map of a lattice: which of its skeletons fit, and how fast they may be.

It has the skeletons, families and bounds of the proof. Skeletons are shown together if
they are too many: all that share some fields are one dot, which stands at the least
bound of those that fit in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.bounds.integer_costs import CHUNK_BYTES, TICK_S, ticks_up
from meshwright.bounds.memory_fit import (
    costs_by_pp,
    scaled_costs,
    scaled_memory,
    stages_by_pp,
)
from meshwright.bounds.upper_bounds import construct_pinned_split
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.plan_techniques import technique_names
from meshwright.plans.skeletons import Skeletons
from meshwright.plans.techniques import name_of, techniques_of
from meshwright.results.lattice_map import Dot, LatticeMap, State
from meshwright.results.priced_plan import PricedPlan
from meshwright.rules.user_rules import split_dependent
from meshwright.solver.dot_bounds import DotBounds
from meshwright.solver.dot_groups import DotGroups
from meshwright.solver.nearest_miss import least_capacity
from meshwright.solver.prepared import Prepared
from meshwright.solver.refused_degrees import refusals
from meshwright.spec.plan_fields import FIELDS, Value
from meshwright.spec.units import GIB


def lattice_map(
    prepared: Prepared, known: Sequence[PricedPlan], within: float
) -> LatticeMap:
    """Return the map of a lattice.

    `known` are plans of it, the best one first; without any, none fits. Dots within the
    share `within` of the fastest of them are near.
    """
    job, lattice = prepared.job, prepared.lattice
    groups = DotGroups.of(prepared)
    bounds = DotBounds(prepared, groups)
    bounds.look()
    if known:
        fastest_s = min(plan.step_s for plan in known)
        bounds.place(ticks_up(fastest_s * (1 + within)))
    limits = job.spec.limits.max_link_utilisation
    return LatticeMap(
        skeletons=lattice.skeletons,
        dots=_Drawing(prepared, groups, bounds, known).dots(),
        shared=groups.shared,
        refusals=refusals(job, lattice),
        usable_gib=job.spec.usable_gib,
        within=within,
        has_open_rules=limits is not None or bool(split_dependent(job.spec)),
    )


@dataclass(frozen=True)
class _Drawing:
    """Groups as dots."""

    prepared: Prepared
    groups: DotGroups
    bounds: DotBounds
    known: Sequence[PricedPlan]

    def dots(self) -> tuple[Dot, ...]:
        """Return a dot for each group."""
        lattice, groups, bounds = self.prepared.lattice, self.groups, self.bounds
        fits = bounds.skeleton >= 0
        small, small_ticks = self._small()
        shown = lattice.take(np.where(fits, bounds.skeleton, small)).rows
        step_s = TICK_S * np.where(fits, bounds.ticks, small_ticks)
        chunks = self._held(shown, fits)
        techniques = techniques_of(shown).tolist()
        degree = lattice.take(groups.families.start).degree
        meshes = groups.families.count * lattice.copies[degree]
        count = np.bincount(groups.group, weights=meshes, minlength=len(groups))
        best = groups.number_of(self.known[0].plan) if self.known else None
        return tuple(
            self._best(int(count[i]))
            if i == best
            else Dot(
                state=_state(bool(fits[i]), bool(bounds.is_near[i])),
                fields=_fields(shown, i),
                techniques=name_of(techniques[i]),
                skeletons=int(count[i]),
                step_s=float(step_s[i]),
                is_exact=False,
                memory_gib=float(chunks[i]) * CHUNK_BYTES / GIB,
            )
            for i in range(len(groups))
        )

    def _best(self, count: int) -> Dot:
        best = self.known[0]
        return Dot(
            state="best",
            fields={field.name: getattr(best.plan, field.name) for field in FIELDS},
            techniques=technique_names(best.plan),
            skeletons=count,
            step_s=best.step_s,
            is_exact=True,
            memory_gib=max(stage.total_gib for stage in best.stages),
        )

    def _small(self) -> tuple[Ints, Floats]:
        """Return a skeleton of each group that holds little, and its bound.

        It is the one that frees the most with the smallest micro-batch.
        """
        families, rows, group = (
            self.groups.families,
            self.groups.rows,
            self.groups.group,
        )
        order = np.lexsort((families.lower, rows.vpp, rows.micro_batch, group))
        _, first = np.unique(group[order], return_index=True)
        one = order[first]
        return families.start[one] + families.count[one] - 1, families.lower[one]

    def _held(self, rows: Skeletons, fits: Bools) -> Floats:
        """Return the chunks that the fullest GPU of each row holds."""
        job, result = self.prepared.job, np.zeros(len(rows))
        own = np.flatnonzero(fits)
        for index, stages in stages_by_pp(job, scaled_costs(job, rows.take(own))):
            layers, recomputed = construct_pinned_split(job.spec.pins, stages)
            costs, stage = stages.costs, np.arange(stages.count)
            in_flight = costs.in_flight(stages.count)
            ends = stage == 0, stage == stages.count - 1
            held = costs.holding(in_flight, *ends)
            chunks = held.fixed + layers * held.per_layer - recomputed * held.freed
            result[own[index]] = chunks.max(axis=1)
        others = np.flatnonzero(~fits)
        for index, costs in costs_by_pp(scaled_memory(job, rows.take(others))):
            result[others[index]] = least_capacity(job, costs)
        return result


def _state(fits: bool, is_near: bool) -> State:
    if not fits:
        return "memory"
    return "near" if is_near else "slower"


def _fields(rows: Skeletons, row: int) -> dict[str, Value]:
    return {
        field.name: field.decoded(int(getattr(rows, field.name)[row]))
        for field in FIELDS
    }
