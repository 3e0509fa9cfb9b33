"""Which skeletons of a lattice share a dot of its map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.cost.job import Job
from meshwright.deadline import Deadline
from meshwright.planner.candidates import lower_bound_against, up_to
from meshwright.planner.degrees import (
    degree_rows,
    enumerate_degrees,
    enumerate_meshes,
    legal_degrees,
    mesh_rows,
)
from meshwright.planner.families import Families, Prepared
from meshwright.planner.integer_costs import CHUNK_BYTES, TICK_S, ticks_up
from meshwright.planner.memory_fit import (
    KnownFits,
    MemoryFit,
    costs_by_pp,
    measure_stages,
    scaled_costs,
    scaled_memory,
    stages_by_pp,
    state_fits,
    with_times,
)
from meshwright.planner.narrow import Window, prune
from meshwright.planner.nearest_miss import broken_counts, least_capacity
from meshwright.planner.rows import Lattice
from meshwright.planner.split_bounds import construct_pinned_split
from meshwright.planner.unplaced import list_layouts
from meshwright.plans.columns import Bools, Floats, Ints, distinct, joined, ranges
from meshwright.plans.plan import Plan
from meshwright.plans.rule import Rule
from meshwright.plans.simplicity import name_of, technique_names, techniques_of
from meshwright.plans.skeletons import Skeletons, to_unplaced_row
from meshwright.results.outcome_parts import Dot, LatticeMap, Refusal, State
from meshwright.results.priced_plan import PricedPlan
from meshwright.rules.legality import degree_rules, mesh_rules, plan_rules
from meshwright.rules.user_rules import split_dependent
from meshwright.spec.plan_fields import FIELD, FIELDS, FREEING, Value
from meshwright.spec.spec import Spec
from meshwright.spec.units import GIB
from meshwright.topology.groups import price_groups

MOST_DOTS = 2_500
"""Dots that a page still draws at once."""

SHARED = (
    tuple(field.name for field in FIELDS if field.name not in FREEING),
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

DEGREES_AT_ONCE = 64
"""Degrees whose layouts are listed together, legal or not: a degree has thousands."""

MOST_S = 2.0
"""Seconds after which skeletons are left without meshes."""

MOST_REACH = 1e6
"""Upper limit on step time: plans above it are not searched."""

MOST_EXAMPLES = 200
"""Examples of a rule that are told."""

MOST_EXPERTS, ZERO_STAGES = 2**20, 4
"""More than any expert-parallel degree; the number of ZeRO stages."""

OF_DEGREES = ("tp", "pp", "cp", "dp_replicate", "dp_shard")

OF_LAYOUTS = (*OF_DEGREES, "ep", "zero")


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
        fitting = np.flatnonzero(fits)
        for index, stages in stages_by_pp(job, scaled_costs(job, rows.take(fitting))):
            layers, recomputed = construct_pinned_split(job.spec.pins, stages)
            chunks = layers * stages.per_layer - recomputed * stages.freed
            chunks = chunks + stages.fixed
            result[fitting[index]] = chunks.max(axis=1)
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


@dataclass(frozen=True)
class DotGroups:
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
    def of(cls, prepared: Prepared) -> DotGroups:
        """Return the first grouping with few enough dots, or else the coarsest."""
        lattice, families = prepared.lattice, prepared.families
        if len(lattice) <= MOST_DOTS:
            each = np.arange(len(lattice))
            lower = np.repeat(families.lower, families.count)
            fits = KnownFits(prepared.job, len(each))
            alone = Families(each, np.ones_like(each), lower, each, fits)
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

    def of_skeletons(self, index: Ints) -> Ints:
        """Return the groups of some unplaced skeletons."""
        family = np.searchsorted(self.families.start, index, side="right") - 1
        return self.group[family]


class DotBounds:
    """The skeleton of each group that fits and has the least bound.

    Groups of ranks are on the links that are best for them, until `place` is called.
    """

    def __init__(self, prepared: Prepared, groups: DotGroups) -> None:
        """Begin with nothing that fits."""
        self._job, self._lattice = prepared.job, prepared.lattice
        self._groups, self._families = groups, prepared.families
        self.ticks = np.full(len(groups), np.inf)
        """Least bound of the skeletons of each group that fit; infinite if none do."""
        self.skeleton = np.full(len(groups), -1)
        self.is_near = np.zeros(len(groups), dtype=bool)
        """Which groups may have a plan within the limit that they were placed with."""

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
        index = ranges(families.start[part], families.count[part])
        group = np.repeat(self._groups.group[part], families.count[part])
        has_room = state_fits(job, self._lattice.take(index))
        index, group = index[has_room], group[has_room]
        memory = MemoryFit(job, self._lattice.take(index))
        fitting = np.flatnonzero(memory.is_fitting())
        group_of_price = memory.price_group[fitting]
        costs = with_times(job, memory.costs(fitting), group_of_price)
        against = lower_bound_against(job.spec.pins, up_to(np.inf))
        ticks = measure_stages(job, costs, against)
        index, group = index[fitting], group[fitting]
        order = np.lexsort((index, ticks, group))
        found, first = np.unique(group[order], return_index=True)
        best = order[first]
        is_less = ticks[best] < self.ticks[found]
        self.ticks[found[is_less]] = ticks[best[is_less]]
        self.skeleton[found[is_less]] = index[best[is_less]]

    def place(self, limit: float) -> None:
        """Bound the skeletons that may be within a limit of ticks on their meshes.

        All others take longer than the limit. Where the orders of GPUs are too many
        to look at, groups stay on the links that are best for them.
        """
        self.is_near = self.ticks <= limit
        if not self.is_near.any():
            return
        pruned = prune(
            self._job,
            self._lattice,
            Window(spare=0, known=limit, reach=MOST_REACH, has_dominated=True),
            families=self._families,
            deadline=Deadline(MOST_S),
        )
        if pruned.open_bound <= limit:
            return
        found = pruned.near.up_to(limit)
        found = found.take(np.flatnonzero(found.fits))
        group = self._groups.of_skeletons(found.unplaced)
        order = np.lexsort((found.lower, group))
        has_plan, first = np.unique(group[order], return_index=True)
        self.ticks[self.is_near] = np.maximum(self.ticks[self.is_near], limit + 1)
        self.ticks[has_plan] = found.lower[order[first]]
        self.skeleton[has_plan] = found.unplaced[order[first]]
        self.is_near = self.ticks <= limit


def refusals(job: Job, lattice: Lattice) -> tuple[Refusal, ...]:
    """Return the rules that refuse degrees, the rule that refuses most first.

    Degrees are told by the first rule that they break, and so are degrees with an
    expert-parallel degree and a ZeRO stage, by the first rule that their plainest
    skeleton breaks.
    """
    found = [*_of_degrees(job), *_of_meshes(job, lattice), *_of_layouts(job, lattice)]
    return tuple(sorted(found, key=lambda refusal: -refusal.count))


def _of_degrees(job: Job) -> Iterator[Refusal]:
    degrees, _ = enumerate_degrees(job.fabric.sizes)
    yield from _by_rule(job, degree_rules(job.spec), degree_rows(degrees), OF_DEGREES)


def _of_meshes(job: Job, lattice: Lattice) -> Iterator[Refusal]:
    """Yield the degrees of which rules on the levels of axes refuse every mesh."""
    legal, _ = legal_degrees(job)
    kept = set(map(tuple, lattice.degrees.tolist()))
    refused: dict[str, tuple[Rule, list[Ints]]] = {}
    for degrees in legal:
        if tuple(degrees.tolist()) not in kept:
            rule = _rule_on_meshes(job, degrees)
            refused.setdefault(rule.name, (rule, []))[1].append(degrees)
    for rule, found in refused.values():
        yield _refusal(rule, degree_rows(np.array(found)), OF_DEGREES)


def _rule_on_meshes(job: Job, degrees: Ints) -> Rule:
    """Return the first rule that is broken by the mesh which breaks the fewest."""
    meshes = enumerate_meshes(job.fabric.sizes, degrees, job.spec.tp_levels)
    rules = mesh_rules(job.spec, meshes)
    rows = mesh_rows(meshes, price_groups(job.fabric, meshes))
    broken = ~np.stack([rule.holds(job.spec, rows) for rule in rules])
    nearest = int(broken.sum(axis=0).argmin())
    return rules[int(broken[:, nearest].argmax())]


def _of_layouts(job: Job, lattice: Lattice) -> Iterator[Refusal]:
    """Yield the refusals at legal degrees that have no skeleton left."""
    unplaced = lattice.unplaced
    is_legal = unplaced.legal.counts > 0
    legal = np.unique(_keys(unplaced.base, unplaced.base_degree)[is_legal])
    starts = range(0, max(len(lattice.degrees), 1), DEGREES_AT_ONCE)
    rows = joined([_plainest(job.spec, lattice.degrees, at, legal) for at in starts])
    yield from _by_rule(job, plan_rules(job.spec), rows, OF_LAYOUTS)


def _plainest(spec: Spec, degrees: Ints, start: int, legal: Ints) -> Skeletons:
    """Return the skeletons that break the fewest rules, of some degrees from a start.

    There is one for each key that is not among the legal ones.
    """
    layouts = list_layouts(spec, degrees[start : start + DEGREES_AT_ONCE])
    keys = _keys(layouts.rows, layouts.degree + start)
    others = np.flatnonzero(~np.isin(keys, legal))
    rows, keys = layouts.rows.take(others), keys[others]
    plainest = np.lexsort((broken_counts(spec, plan_rules(spec), rows), keys))
    return rows.take(plainest[np.unique(keys[plainest], return_index=True)[1]])


def _keys(rows: Skeletons, degree: Ints) -> Ints:
    """Return a number for each set of degrees, with its ep and ZeRO stage."""
    return np.asarray((degree * MOST_EXPERTS + rows.ep) * ZERO_STAGES + rows.zero)


def _by_rule(
    job: Job, rules: list[Rule], rows: Skeletons, names: tuple[str, ...]
) -> Iterator[Refusal]:
    """Yield the refusals of each rule that no earlier rule makes."""
    left = np.ones(len(rows), dtype=bool)
    for rule in rules:
        broken = left & ~np.broadcast_to(rule.holds(job.spec, rows), len(rows))
        if broken.any():
            yield _refusal(rule, rows.take(np.flatnonzero(broken)), names)
        left &= ~broken


def _refusal(rule: Rule, rows: Skeletons, names: tuple[str, ...]) -> Refusal:
    count = len(rows)
    shown = np.unique(np.linspace(0, count - 1, MOST_EXAMPLES).astype(np.int64))
    columns = {name: getattr(rows, name)[shown].tolist() for name in names}
    return Refusal(
        rule=rule.name,
        sentence=rule.sentence,
        count=count,
        examples=tuple(
            {name: FIELD[name].decoded(columns[name][i]) for name in names}
            for i in range(len(shown))
        ),
    )
