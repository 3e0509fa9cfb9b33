"""The refusal of each legal skeleton: its memory, or a bound on its time, with terms.

Most are refused as families, by the bounds that the solver starts with. The others are
asked once more, each against what the claims of the answer need: whether it fits, what
it takes at least on the best links and on each mesh, and last by the best split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from math import inf
from typing import Any, NamedTuple

import numpy as np

from meshwright.certificates.domain import DECISIONS, Domain
from meshwright.cost.job import Job
from meshwright.deadline import NEVER
from meshwright.errors import InternalError
from meshwright.frameworks.base.framework import ALL_LAYERS
from meshwright.planner.candidates import Candidates, Pricing, lower_bound_against
from meshwright.planner.degrees import OrderSearch
from meshwright.planner.families import Prepared
from meshwright.planner.integer_costs import Scaled, zero_costs
from meshwright.planner.memory_fit import (
    MemoryFit,
    measure_stages,
    stages_by_pp,
    with_times,
)
from meshwright.planner.model import ANY_SPLIT, Demand
from meshwright.planner.narrow import order_bound
from meshwright.planner.options import Options
from meshwright.planner.pipeline import Pairs, Proof
from meshwright.planner.placer import Placer
from meshwright.planner.plans import Plans
from meshwright.planner.rule_cuts import RuleEffort
from meshwright.planner.split_bounds import time_only_bound
from meshwright.planner.stages import Stages
from meshwright.planner.table import least_ticks
from meshwright.plans.columns import Bools, Floats, Ints, ranges
from meshwright.plans.simplicity import OF_PLAN, OF_ROWS
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.goals import Criterion

MEASURED_AT_ONCE = 2**15
"""Skeletons of which it is found out at once what refuses them."""

PLACED_AT_ONCE = 20_000
"""Placed skeletons that are priced at once."""

MEMORY, SLOWER = 1, 2
"""The ways in which a skeleton is refused."""

TIMES = (
    *("extra", "layer", "recompute", "pace_extra", "pace_layer", "pace_recompute"),
    *("sync", "sync_layer"),
)
"""The columns of stages that terms of time state: see `planner.stages.Stages`."""


@dataclass(frozen=True)
class Need:
    """The ticks that a bound must reach for the answer's claims to hold."""

    pricing: Pricing
    ticks: int = 0
    """Of the fastest plan; 0 where no plan fits: no bound is enough then."""
    least: int = 0
    """The least price, of the cheapest plan."""
    most: int = -1
    """The largest price within the tolerance, -1 without a recommended plan."""
    most_near: int = -1
    """Ticks within which all plans are listed, -1 if they are not."""

    def of(self, rows: Skeletons) -> Ints:
        """Return the ticks that refuse rows altogether."""
        unit = self.pricing.of(rows)
        enough = np.maximum(self.of_price(unit), self.most // unit + 1)
        return np.asarray(np.maximum(enough, self.most_near + 1))

    def of_price(self, unit: Ints) -> Ints:
        """Return the ticks at which rows are neither the fastest nor the cheapest."""
        return np.maximum(self.ticks, -(-self.least // unit))


class Row(NamedTuple):
    """A skeleton on a mesh, or in its best case, of which costs are not kept."""

    costs: Scaled | None
    """The table of costs that has it on its mesh."""
    place: int
    """Its place there, or in the lattice."""
    has_memory: bool = True
    """Whether its memory is told: the bound of a family does not depend on it."""


@dataclass
class Refusal:
    """The refusal of a skeleton, or of a group of them, and the row with its terms."""

    kind: int
    value: int
    """Ticks that none goes below, or the most layers that fit in memory."""
    row: Row
    """The skeleton whose terms are told."""
    demands: list[tuple[Demand, int, Row]] = field(default_factory=list)
    """Higher bounds on splits of this skeleton that are simpler."""


class Found(NamedTuple):
    """A plan that was proven: its row, its split, and its ticks."""

    plans: Plans
    row: int
    split: Pairs
    ticks: int


class Survey:
    """The refusals of all legal skeletons of a prepared job."""

    def __init__(self, prepared: Prepared, domain: Domain, need: Need) -> None:
        """Refuse families by their bounds, and the skeletons of others one by one."""
        self.job, self.lattice = prepared.job, prepared.lattice
        self.domain, self.need = domain, need
        self.families = prepared.families
        first = self.lattice.take(self.families.start)
        self.degree = first.degree
        """Index of the degrees of each family."""
        enough = need.of(first.rows) if need.ticks else inf
        self.is_slow = self.families.lower >= enough
        """Which families are refused as such."""
        near = np.flatnonzero(~self.is_slow)
        self.number = ranges(self.families.start[near], self.families.count[near])
        """The skeletons of the other families."""
        self.kind = np.zeros(len(self.number), dtype=np.int8)
        self.value = np.zeros(len(self.number), dtype=np.int64)
        self.refusals: dict[int, Refusal] = {}
        """By the place of a skeleton in `number`, where it was proven."""
        self._placed: dict[int, Row] = {}
        """The same of those that are slow on every mesh; the others are refused in
        their best case."""
        self.cheapest: Found | None = None
        self.near: list[Found] = []
        self._left: list[tuple[Ints, Candidates]] = []
        count = len(self.number)
        for start in range(0, count, MEASURED_AT_ONCE):
            self._measure(np.arange(start, min(start + MEASURED_AT_ONCE, count)))

    def _measure(self, places: Ints) -> None:
        """Find which skeletons fit, and the least ticks of those."""
        part = self.lattice.take(self.number[places])
        memory = MemoryFit(self.job, part)
        fits = memory.is_fitting()
        pins = self.job.spec.pins
        if (pins.layers or pins.stage_recompute) is not None:
            within = np.flatnonzero(fits)
            costs = memory.costs(within)
            fits[within] = measure_stages(self.job, costs, self._fits_pins) > 0
        out, within = np.flatnonzero(~fits), np.flatnonzero(fits)
        costs = memory.costs(out)
        self._refuse(places[out], MEMORY, measure_stages(self.job, costs, self._held))
        if not len(within):
            return
        if not self.need.ticks:
            raise InternalError("a plan fits, though the answer says that none does")
        held = memory.costs(within)
        costs = with_times(self.job, held, memory.price_group[within])
        lower = self._lower(costs)
        is_slow = lower >= self.need.of(costs.rows)
        slow = np.flatnonzero(is_slow)
        self._refuse(places[within[slow]], SLOWER, lower[slow])
        left = np.flatnonzero(~is_slow)
        copies = self.lattice.copies[part.degree[within[left]]]
        batch = np.cumsum(copies) // PLACED_AT_ONCE
        for _, alike in groupby(range(len(left)), key=lambda i: int(batch[i])):
            some = left[np.array(list(alike))]
            self._place(places[within[some]], held.take(some))

    def _held(self, stages: Stages) -> Floats:
        return most_held(hold_pins(self.job, stages))

    def _fits_pins(self, stages: Stages) -> Bools:
        """Return whether stages hold all layers, as many on each as are pinned."""
        pinned = hold_pins(self.job, stages)
        has_room = pinned.least.sum(axis=1) <= stages.layers
        return np.asarray(has_room & (most_held(pinned) >= stages.layers))

    def _lower(self, costs: Scaled) -> Floats:
        """Return ticks that no split of skeletons goes below.

        The bound with memory is about splits below the need, and says no more.
        """
        need = self.need.of(costs.rows)
        against = lower_bound_against(
            self.job.spec.pins, lambda rows: self.need.of(rows).astype(np.float64)
        )
        by_memory = np.minimum(measure_stages(self.job, costs, against), need)
        return np.maximum(by_memory, time_only_bound(costs, self.job.spec.model))

    def _refuse(self, places: Ints, kind: int, value: Floats) -> None:
        self.kind[places], self.value[places] = kind, value.astype(np.int64)

    def _place(self, places: Ints, memory: Scaled) -> None:
        """Refuse skeletons that are slow on every mesh; keep what is left."""
        search = self._order_search(places, memory.rows)
        rows, which = self.lattice.on_meshes(self.number[places], search)
        costs = with_times(self.job, memory.shared(rows, which))
        lower = self._lower(costs)
        least, row_of = np.full(len(places), inf), np.zeros(len(places), dtype=np.int64)
        np.minimum.at(least, which, lower)
        is_least = lower == least[which]
        row_of[which[is_least]] = np.flatnonzero(is_least)
        is_slow = least >= self.need.of(costs.rows)[row_of]
        slow = np.flatnonzero(is_slow)
        self._refuse(places[slow], SLOWER, least[slow])
        table = costs.take(row_of[slow])
        rows_told = (Row(table, row) for row in range(len(slow)))
        self._placed.update(zip(places[slow].tolist(), rows_told, strict=True))
        open_ = np.flatnonzero(~is_slow[which] & (lower < self.need.of(costs.rows)))
        # The fewest ticks that are known of the meshes left out are those of the need.
        if not len(open_):
            return
        count, none = len(open_), np.full(len(open_), inf)
        kept, bound = costs.take(open_), lower[open_]
        found = Candidates(
            *(kept, self.number[places[which[open_]]], bound, bound, none),
            *(np.ones(count, dtype=bool), np.zeros(count, dtype=bool)),
            self.need.pricing.of(kept.rows),
        )
        self._left.append((places[which[open_]], found))

    def _order_search(self, places: Ints, rows: Skeletons) -> OrderSearch | None:
        """Return the limits within which orders of unlike GPUs of a host are listed.

        All other orders take so many ticks that they refuse every one of the rows.
        """
        if not self.lattice.table.has_choice:
            return None
        most = float(self.need.of(rows).max())
        ticks = order_bound(self.job, self.lattice, self.number[places])
        return OrderSearch(most, ticks, Placer.placements, most)

    @property
    def _open(self) -> tuple[Ints, Plans]:
        """Return the rows that bounds leave, and whose skeletons they are."""
        places = np.concatenate([places for places, _ in self._left])
        rows = Candidates.joined([found for _, found in self._left])
        options = Options()
        return places, Plans(self.job, self.lattice, options, NEVER, RuleEffort(), rows)

    def find_cheapest(self, known: int) -> None:
        """Look for the plan of the least price, if that is below a known one."""
        if not self._left:
            return
        _, plans = self._open
        unit, lower = plans.rows.scale, plans.rows.lower
        order = np.argsort(lower * unit, kind="stable")
        for row in order.tolist():
            if lower[row] * unit[row] >= known:
                break
            below = -(-known // int(unit[row]))
            proof = plans.prove(row, ANY_SPLIT, below)
            if proof.has_plan:
                known = proof.ticks * int(unit[row])
                self.cheapest = self._found(plans, row, proof)

    def _found(self, plans: Plans, row: int, proof: Proof) -> Found:
        found = plans.unique(row, ANY_SPLIT, proof)
        return Found(plans, row, found.split, found.ticks)

    def prove(
        self, need: Need, criteria: tuple[Criterion, ...], simplicity: tuple[int, ...]
    ) -> None:
        """Prove the skeletons that bounds leave; the need is known by now.

        `simplicity` is that of the recommended plan by the criteria: what is no simpler
        need not be dearer than the tolerance.
        """
        self.need = need
        if not self._left:
            return
        places, plans = self._open
        order = np.argsort(places, kind="stable")
        for place, rows in groupby(order.tolist(), key=lambda row: int(places[row])):
            self._prove_one(place, list(rows), plans, criteria, simplicity)

    def _prove_one(
        self,
        place: int,
        rows: list[int],
        plans: Plans,
        criteria: tuple[Criterion, ...],
        simplicity: tuple[int, ...],
    ) -> None:
        """Prove one skeleton, which some meshes may not refuse."""
        need, skeleton = self.need, plans.rows.costs.rows.take(np.array(rows[:1]))
        unit = self.need.pricing.of(skeleton)
        enough, least = int(need.of(skeleton)[0]), int(need.of_price(unit)[0])
        simpler = [
            Demand(not is_uneven, not is_partial)
            for is_uneven, is_partial in product((True, False), repeat=2)
            if need.most >= 0
            and self._criteria(skeleton, criteria, is_uneven, is_partial) < simplicity
        ]
        below = enough if ANY_SPLIT in simpler else max(least, need.most_near + 1)
        value, row = self._least(plans, rows, ANY_SPLIT, below)
        refusal = Refusal(SLOWER, value, Row(plans.rows.costs, row))
        for demand in simpler if value * int(unit[0]) <= need.most else ():
            bound, own = self._least(plans, rows, demand, enough)
            refusal.demands.append((demand, bound, Row(plans.rows.costs, own)))
        self.kind[place], self.value[place] = SLOWER, value
        self.refusals[place] = refusal
        if value <= need.most_near:
            proof = Proof("optimal", (), value, float(value), row)
            self.near.append(self._found(plans, row, proof))

    def _criteria(
        self,
        skeleton: Skeletons,
        criteria: tuple[Criterion, ...],
        is_uneven: bool,
        is_partial: bool,
    ) -> tuple[int, ...]:
        of_split = {"uneven_stages": is_uneven, "partial_recompute": is_partial}
        return tuple(
            int(of_split[name])
            if name in OF_PLAN
            else int(OF_ROWS[name](self.job.spec, skeleton)[0])
            for name in criteria
        )

    def _least(
        self, plans: Plans, rows: list[int], demand: Demand, below: int
    ) -> tuple[int, int]:
        """Return the least ticks of a skeleton over its meshes, or `below`.

        Comes with the row that has the least.
        """
        bounds = {row: self._bound(plans, row, demand) for row in rows}
        best, best_row = below, min(rows, key=lambda row: bounds[row])
        for row in sorted(rows, key=lambda row: bounds[row]):
            if bounds[row] >= best:
                break
            ticks = plans.prove(row, demand, best).bound
            if ticks < best:
                best, best_row = int(ticks), row
        return best, best_row

    def _bound(self, plans: Plans, row: int, demand: Demand) -> float:
        one = plans.one(row)
        ((_, stages),) = stages_by_pp(self.job, one.costs)
        return float(least_ticks(self.job, stages, one.lower, demand)[0])

    def refusal(self, place: int) -> Refusal:
        """Return the refusal of a skeleton that is not refused with its family."""
        if place in self.refusals:
            return self.refusals[place]
        row = self._placed.get(place) or Row(None, int(self.number[place]))
        return Refusal(int(self.kind[place]), int(self.value[place]), row)

    def of_family(self, family: int) -> Refusal:
        """Return the refusal of a family by its bound."""
        first = Row(None, int(self.families.start[family]), has_memory=False)
        return Refusal(SLOWER, int(self.families.lower[family]), first)

    def best_case(self, number: Ints, *, has_memory: bool, has_times: bool) -> Scaled:
        """Return costs of skeletons of the lattice; those not asked for are zero."""
        part = self.lattice.take(number)
        if not has_memory:
            return with_times(
                self.job, zero_costs(part.rows), part.unplaced.price_group
            )
        memory = MemoryFit(self.job, part)
        costs = memory.costs(np.arange(len(part)))
        return with_times(self.job, costs, memory.price_group) if has_times else costs


def most_held(stages: Stages) -> Floats:
    """Return how many layers the stages hold at most, all of them recomputed.

    It is 0 where a stage does not hold as many as it must.
    """
    has_all = (stages.full_cap >= stages.least).all(axis=1)
    return np.where(has_all, stages.full_cap.sum(axis=1), 0.0)


def hold_pins(job: Job, stages: Stages) -> Stages:
    """Return stages that hold as many layers as the spec pins, if it does.

    Where it pins recomputed layers, they hold at least those, and what fits beside them
    without recomputation; where all layers are recomputed, no others.
    """
    pins, least, most = job.spec.pins, stages.least, stages.full_cap
    if pins.layers is not None:
        least, most = np.maximum(least, pins.layers), np.minimum(most, pins.layers)
    if pins.stage_recompute is not None:
        again = np.array(pins.stage_recompute)
        has_all = (stages.costs.recompute_scope == ALL_LAYERS)[:, None]
        room = stages.layer_capacity + again * stages.freed
        beside = np.where(
            stages.per_layer > 0, room // np.maximum(stages.per_layer, 1), most
        )
        least = np.maximum(least, again)
        most = np.minimum(most, np.where(has_all, again, beside))
    return replace(stages, least=least, full_cap=most)


def told_terms(
    domain: Domain, costs: Scaled, *, has_times: bool, has_stages: bool
) -> list[dict[str, Any]]:
    """Return the terms of skeletons, as the certificate has them."""
    at, scope = decided(domain, costs.rows), costs.recompute_scope.tolist()
    told: list[dict[str, Any]] = [
        dict(zip(("at", "scope"), column, strict=True))
        for column in zip(at, scope, strict=True)
    ]
    for index, stages in stages_by_pp(domain.job, costs):
        columns = (
            {"times": [getattr(stages, name) for name in TIMES]} if has_times else {}
        )
        if has_stages:
            columns["stages"] = _held(domain.job, stages)
        for name, found in columns.items():
            runs = told_runs(found)
            for place, run in zip(index.tolist(), runs, strict=True):
                told[place][name] = run
    return told


def told_runs(columns: list[Ints]) -> Iterator[list[list[int]]]:
    """Yield numbers of the stages of each row; equal neighbours are told once.

    The columns are (rows, stages).
    """
    for row in np.stack(columns, axis=2).astype(np.int64).tolist():
        yield runs_of(row)


def runs_of(stages: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return numbers of stages; equal neighbours are told once."""
    return [[len(list(alike)), *numbers] for numbers, alike in groupby(stages)]


def decided(domain: Domain, rows: Skeletons) -> list[list[int]]:
    """Return the decisions of skeletons."""
    values = [getattr(rows, name) for name in DECISIONS[:-1]]
    modes = np.stack([rows.recompute, rows.recompute_modules, rows.recompute_segment])
    way = (domain.ways[None] == modes.T[:, None]).all(axis=2).argmax(axis=1)
    every: Ints = np.stack([*values, way], axis=1).astype(np.int64)
    listed: list[list[int]] = every.tolist()
    return listed


def _held(job: Job, stages: Stages) -> list[Ints]:
    """Return the limits on the layers of stages, each column (rows, stages)."""
    index, fixed = np.arange(stages.count), stages.fixed
    kind = job.gpu_kind_of_stage(stages.count) if job.gpu_kinds else 0 * index
    kept = stages.per_layer - stages.freed
    by_memory = stages.layer_capacity // np.maximum(kept, 1)
    # Where memory leaves the least room, chunks and hosts say no more.
    is_memory = (kept > 0) & (stages.full_cap >= by_memory)
    most = np.where(is_memory, stages.layers, stages.full_cap)
    columns = (kind, fixed, stages.per_layer, stages.freed, stages.least, most)
    return [np.broadcast_to(column, fixed.shape) for column in columns]
