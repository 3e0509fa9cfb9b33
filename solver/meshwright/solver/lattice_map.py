"""The map of a lattice: which of its skeletons fit, and how fast they may be.

It has the skeletons, families and bounds of the proof. Skeletons are shown together if
they are too many: all that share some fields are one dot. A dot stands at the least of
the lower bounds of its skeletons that fit in memory. Families are looked at in the
order of their bounds, so that most need no look: once one fits and is faster than the
bound of the next, so it is than all after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.bounds.candidates import lower_bound_against
from meshwright.bounds.families import Families
from meshwright.bounds.integer_costs import CHUNK_BYTES, seconds
from meshwright.bounds.memory_fit import (
    MemoryFit,
    costs_by_pp,
    measure_stages,
    scaled_costs,
    scaled_memory,
    stages_by_pp,
    with_times,
)
from meshwright.bounds.state_fit import state_fits
from meshwright.bounds.upper_bounds import construct_pinned_split
from meshwright.plans.columns import Bools, Floats, Ints, distinct, ranges
from meshwright.plans.encoding import to_unplaced_row
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import Skeletons
from meshwright.results.lattice_map import Dot, LatticeMap, State
from meshwright.results.priced_plan import PricedPlan
from meshwright.rules.user_rules import split_dependent
from meshwright.solver.nearest_miss import least_capacity
from meshwright.solver.prepared import Prepared
from meshwright.solver.refused_degrees import refusals
from meshwright.spec.plan_fields import FIELDS, Value
from meshwright.spec.units import GIB

MOST_DOTS = 2_500
"""Dots that a page still draws at once."""

FREEING = ("recompute", "recompute_modules", "recompute_segment", "offload")
"""Fields in which the skeletons of a family differ."""

SHARED = (
    tuple(own.name for own in FIELDS if own.name not in FREEING),
    ("tp", "pp", "cp", "ep", "dp_replicate", "dp_shard", "zero"),
    ("tp", "pp", "cp", "ep", "zero"),
    ("tp", "pp", "ep", "zero"),
)
"""Fields that the skeletons of a dot share: the first with few enough dots is taken."""

FIRST_LOOK = 2
"""Families of a dot that are looked at first."""

GROWTH = 4
"""Families of a later look over those of the one before."""

AT_ONCE = 8_192
"""Families looked at together: the columns of more leave the processor's caches."""


def lattice_map(
    prepared: Prepared, known: Sequence[PricedPlan], within: float
) -> LatticeMap:
    """Return the map of a lattice.

    `known` are plans of it, the best one first; without any, none fits. Dots within the
    share `within` of the fastest of them are near.
    """
    job, lattice = prepared.job, prepared.lattice
    groups = _Groups.of(prepared)
    nearest = _Nearest(prepared, groups)
    nearest.look()
    limits = job.spec.limits.max_link_utilisation
    return LatticeMap(
        skeletons=lattice.skeletons,
        dots=_Drawing(prepared, groups, nearest, known, within).dots(),
        shared=groups.shared,
        refusals=refusals(job, lattice),
        usable_gib=job.spec.usable_gib,
        within=within,
        has_open_rules=limits is not None or bool(split_dependent(job.spec)),
    )


@dataclass(frozen=True)
class _Groups:
    """Families in groups, each of which is a dot."""

    families: Families
    group: Ints
    """The group of each family."""
    first: Ints
    """A family of each group."""
    rows: Skeletons
    """The first skeleton of each family."""
    shared: tuple[str, ...]

    @classmethod
    def of(cls, prepared: Prepared) -> _Groups:
        """Return the first grouping with few enough dots, or else the coarsest."""
        lattice, families = prepared.lattice, prepared.families
        if len(lattice) <= MOST_DOTS:
            each = np.arange(len(lattice))
            lower = np.repeat(families.lower, families.count)
            alone = Families(each, np.ones_like(each), lower)
            return cls(alone, each, each, lattice.rows, ())
        rows = lattice.take(families.start).rows
        for shared in SHARED:
            first, group = distinct([getattr(rows, name) for name in shared], few=0)
            if len(first) <= MOST_DOTS:
                break
        return cls(families, group, first, rows, shared)

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.first)

    def number_of(self, plan: Plan) -> int | None:
        """Return the group of a plan, if the lattice has it."""
        row = to_unplaced_row(plan)
        names = self.shared or tuple(field.name for field in FIELDS)
        mine = self.rows.take(self.first)
        same = [getattr(mine, name) == getattr(row, name)[0] for name in names]
        found = np.flatnonzero(np.all(same, axis=0))
        return int(found[0]) if len(found) else None


class _Nearest:
    """The skeleton of each group that fits and has the least bound."""

    def __init__(self, prepared: Prepared, groups: _Groups) -> None:
        self._job, self._lattice = prepared.job, prepared.lattice
        self._groups = groups
        self.ticks = np.full(len(groups), np.inf)
        """Least bound of the skeletons of each group that fit; infinite if none do."""
        self.skeleton = np.full(len(groups), -1)

    def look(self) -> None:
        """Look at the families of each group in order, until the next are slower."""
        lower, group = self._groups.families.lower, self._groups.group
        order = np.lexsort((lower, group))
        end = np.cumsum(np.bincount(group, minlength=len(self._groups)))
        at, size = end - np.bincount(group, minlength=len(self._groups)), FIRST_LOOK
        while (at < end).any():
            until = np.minimum(at + size, end)
            part = order[ranges(at, until - at)]
            for start in range(0, len(part), AT_ONCE):
                self._look_at(part[start : start + AT_ONCE])
            at, size = until, size * GROWTH
            is_left = at < end
            next_bound = lower[order[at[is_left]]]
            at[is_left] = np.where(
                next_bound < self.ticks[is_left], at[is_left], end[is_left]
            )

    def _look_at(self, part: Ints) -> None:
        """Bound the skeletons of some families that fit in memory."""
        job, families = self._job, self._groups.families
        part = part[families.lower[part] < self.ticks[self._groups.group[part]]]
        index = families.rows(part)
        group = np.repeat(self._groups.group[part], families.count[part])
        has_room = state_fits(job, self._lattice.take(index))
        index, group = index[has_room], group[has_room]
        memory = MemoryFit(job, self._lattice.take(index))
        fitting = np.flatnonzero(memory.is_fitting())
        group_of_price = memory.price_group[fitting]
        costs = with_times(job, memory.costs(fitting), group_of_price)
        ticks = measure_stages(job, costs, lower_bound_against(np.inf))
        index, group = index[fitting], group[fitting]
        order = np.lexsort((index, ticks, group))
        found, first = np.unique(group[order], return_index=True)
        best = order[first]
        is_less = ticks[best] < self.ticks[found]
        self.ticks[found[is_less]] = ticks[best[is_less]]
        self.skeleton[found[is_less]] = index[best[is_less]]


@dataclass(frozen=True)
class _Drawing:
    """Groups as dots."""

    prepared: Prepared
    groups: _Groups
    nearest: _Nearest
    known: Sequence[PricedPlan]
    within: float

    def dots(self) -> tuple[Dot, ...]:
        """Return a dot for each group."""
        lattice, groups, nearest = self.prepared.lattice, self.groups, self.nearest
        fits = nearest.skeleton >= 0
        small, small_ticks = self._small()
        shown = lattice.take(np.where(fits, nearest.skeleton, small)).rows
        step_s = seconds(1.0) * np.where(fits, nearest.ticks, small_ticks)
        chunks = self._held(shown, fits)
        fastest_s = min((plan.step_s for plan in self.known), default=0.0)
        is_near = fits & (step_s <= fastest_s * (1 + self.within))
        degree = lattice.take(groups.families.start).degree
        meshes = groups.families.count * lattice.copies[degree]
        count = np.bincount(groups.group, weights=meshes, minlength=len(groups))
        best = groups.number_of(self.known[0].plan) if self.known else None
        return tuple(
            self._best(int(count[i]))
            if i == best
            else Dot(
                state=_state(bool(fits[i]), bool(is_near[i])),
                fields=_fields(shown, i),
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
