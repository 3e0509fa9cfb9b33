"""The best plan of each part of a lattice, proven where it is near the best of all.

A part is all skeletons with one value of a column: with tp 8, or with TP and DP alone.
The best plan is the fastest, or the one with the least doubted step. All parts are
searched at once. A plan of each is constructed, and a bound says what no
plan of it takes less than. Only what may be within a share of a plan that is known is
bounded further, against the best plan of its parts, and proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from meshwright.deadline import Deadline
from meshwright.planner.candidates import (
    Candidates,
    Limit,
    Pricing,
    Unplaced,
    lower_bound_against,
    no_candidates,
    place_and_bound,
)
from meshwright.planner.degrees import degree_rows
from meshwright.planner.families import Prepared
from meshwright.planner.integer_costs import TICK_S, seconds
from meshwright.planner.memory_fit import measure_stages
from meshwright.planner.narrow import MOST_IN_PART, fitting_rows
from meshwright.planner.options import Options
from meshwright.planner.pipeline import Pairs, Proof
from meshwright.planner.plans import Plans
from meshwright.planner.prove import NO_PLAN
from meshwright.planner.rows import Lattice
from meshwright.planner.rule_cuts import RuleEffort
from meshwright.planner.split_bounds import (
    construct_pinned_split,
    split_fits,
    split_ticks,
    time_only_bound,
)
from meshwright.planner.stages import Stages
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.simplicity import WHOLE, percents, techniques_of
from meshwright.plans.skeletons import Skeletons
from meshwright.results.outcome import NearMiss
from meshwright.results.priced_plan import PricedPlan
from meshwright.rules.user_rules import split_dependent

KIND = "kind"
"""The column that tells sets of techniques apart."""

FIRST_FAMILIES = 64
"""Families of a part among which its first plan is looked for."""

GROWTH = 4
"""Families among which it is looked for next, over those before."""


FIRST_PLACED = 8
"""Skeletons of a part that are placed before the others."""


class Part(NamedTuple):
    """The skeletons with one value of a column: a degree, or a set of techniques."""

    column: str
    value: int
    is_doubted: bool = False
    """Whether plans are compared by their doubted step, not by their step."""

    def takes_s(self, plan: PricedPlan) -> float:
        """Return the seconds by which a plan is compared."""
        return plan.takes_s(is_doubted=self.is_doubted)


@dataclass(frozen=True)
class PartPlan:
    """The best plan of a part, or one that was constructed, and a bound."""

    best: PricedPlan | None
    """None where no plan fits, or none is known."""
    bound_s: float
    """No plan of the part takes less, doubts included where these are compared.

    It is infinite where none fits.
    """
    is_proven: bool
    """Whether no plan of the part takes less."""
    near_miss: NearMiss | None = None
    """The nearest miss where no plan fits, if it was looked for."""


def search_parts(
    prepared: Prepared,
    parts: Sequence[Part],
    most_s: Sequence[float],
    options: Options,
    deadline: Deadline,
) -> list[PartPlan]:
    """Return the best plan of each of some parts of a lattice.

    Of parts whose plans all take more than their `most_s`, it is one that was
    constructed. Where a plan may fit but none could be constructed, none is returned.
    """
    search = _PartSearch(prepared, parts, most_s, options, deadline)
    search.construct()
    search.narrow()
    return search.plans()


def can_be_searched(prepared: Prepared) -> bool:
    """Return whether the parts of a lattice can be searched at once.

    Limits and rules that a split may break or keep need proofs of slower splits, and
    GPU orders are searched with all skeletons of their degrees in view.
    """
    spec, table = prepared.job.spec, prepared.lattice.table
    has_limit = spec.limits.max_link_utilisation is not None
    is_mixed = table.has_choice or bool(prepared.job.gpu_kinds)
    return not (has_limit or split_dependent(spec) or is_mixed)


def degrees_of(lattice: Lattice, part: Part) -> Bools:
    """Return which of the degrees of a lattice a part has."""
    return np.asarray(
        values_of(degree_rows(lattice.degrees), part.column) == part.value
    )


def values_of(rows: Skeletons, column: str) -> Ints:
    """Return the value by which the parts of a column are told apart."""
    if column == KIND:
        return techniques_of(rows)
    return np.asarray(getattr(rows, column))


class _PartSearch:
    """The state of one search for the best plans of parts."""

    def __init__(
        self,
        prepared: Prepared,
        parts: Sequence[Part],
        most_s: Sequence[float],
        options: Options,
        deadline: Deadline,
    ) -> None:
        self._job, self._lattice = prepared.job, prepared.lattice
        self._families, self._parts = prepared.families, parts
        self._options, self._deadline = options, deadline
        self._degrees = degree_rows(self._lattice.degrees)
        self._has_degree = self._having(self._degrees)
        """Which parts have each of the degrees, (parts, degrees)."""
        self._degree = self._lattice.take(self._families.start).degree
        """Index of the degrees of each family."""
        least = np.full(len(self._degrees), inf)
        np.minimum.at(least, self._degree, self._families.lower)
        self._is_doubted = np.array([part.is_doubted for part in parts])
        self.least = WHOLE * _over_parts(self._has_degree, least)
        """Price that no plan of a part goes below: like all, in hundredths of ticks."""
        self.upper = np.full(len(parts), inf)
        """Price of the best plan constructed of each part."""
        self.fits = np.zeros(len(parts), dtype=bool)
        """Whether some skeleton of each part fits in memory, or may."""
        self.most = WHOLE * np.array(most_s) / TICK_S
        """Price above which a plan of each part is not asked for."""
        self.found = [no_candidates(self._lattice)]
        self.left: Ints = np.zeros(0, dtype=np.int64)
        """Families that time ran out on."""
        self._checked: dict[tuple[int, int, Pairs], PricedPlan] = {}
        """Plans by unplaced skeleton, mesh and split: parts often share one."""

    def construct(self) -> None:
        """Construct a plan of each part, until no family of it is left."""
        count = FIRST_FAMILIES
        of_part = {
            number: np.flatnonzero(has_degree[self._degree])
            for number, has_degree in enumerate(self._has_degree)
        }
        while of_part and not self._deadline.has_passed:
            some = [self._families.least(each, count)[0] for each in of_part.values()]
            rows, costs, _ = fitting_rows(
                self._job,
                self._lattice,
                self._families,
                np.unique(np.concatenate(some)),
                drops_dominated=True,
            )
            self.fits |= self._having(costs.rows).any(axis=1)
            # On the links that are best for each group alone.
            likely = measure_stages(self._job, costs, self._constructed)
            self._place(rows.take(self._nearest(rows, likely)), None)
            of_part = {
                number: each
                for number, each in of_part.items()
                if np.isinf(self.upper[number]) and len(each) > count
            }
            count *= GROWTH
        # Whether the others fit is open.
        self.fits[list(of_part)] = True

    def _constructed(self, stages: Stages) -> Floats:
        split = construct_pinned_split(self._job.spec.pins, stages)
        return np.where(split_fits(stages, *split), split_ticks(stages, *split), inf)

    def narrow(self) -> None:
        """Bound the skeletons that may be as fast as the best of their parts."""
        families = self._families
        left = self._within(np.arange(len(families)))
        while len(left) and not self._deadline.has_passed:
            part, left = families.least(left, MOST_IN_PART)
            rows, costs, _ = fitting_rows(
                self._job, self._lattice, families, part, drops_dominated=True
            )
            bound = time_only_bound(costs, self._job.spec.model)
            near = np.flatnonzero(bound <= self._limit(costs.rows))
            rows, costs = rows.take(near), costs.take(near)
            against = lower_bound_against(self._job.spec.pins, self._limit)
            lower = measure_stages(self._job, costs, against)
            first = self._nearest(rows, lower)
            self._place(rows.take(first), self._limit)
            rest = np.setdiff1d(np.arange(len(lower)), first)
            is_near = lower[rest] <= self._limit(costs.rows.take(rest))
            self._place(rows.take(rest[is_near]), self._limit)
            left = self._within(left)
        self.left = left

    def _within(self, families: Ints) -> Ints:
        """Return the families whose bound is within the limit of some part."""
        # How much is doubted depends on more than degrees.
        most = np.where(self._has_degree, self.most[:, None], 0.0).max(axis=0)
        near = WHOLE * self._families.lower[families] <= most[self._degree[families]]
        return np.asarray(families[near])

    def plans(self) -> list[PartPlan]:
        """Return the best plan of each part, proven where it is near."""
        asked = self._job, self._lattice, self._options, self._deadline
        effort = RuleEffort.of(self._job.spec, is_brief=True)
        found = Candidates.joined(self.found)
        every = Plans(*asked, effort, found)
        near = Plans.of(*asked, effort, found.up_to(self._limit(found.costs.rows)))
        is_found, is_near = (self._having(one.rows.costs.rows) for one in (every, near))
        prices = found.upper * self._prices(found.costs.rows)
        near_prices = self._prices(near.rows.costs.rows)
        is_late = self._has_degree[:, self._degree[self.left]]
        late = WHOLE * _over_parts(is_late, self._families.lower[self.left])
        bounds = np.maximum(self.least, np.minimum(late, self.most))
        result = list[PartPlan]()
        for number, bound in enumerate(bounds.tolist()):
            plans, proof, price = every, NO_PLAN, inf
            if np.isfinite(self.upper[number]):
                row = int(np.where(is_found[number], prices[number], inf).argmin())
                ticks, price = int(found.upper[row]), float(prices[number, row])
                proof = Proof("feasible", every.constructed(row), ticks, 0.0, row)
            if is_near[number].any():
                search, among = near.search, is_near[number]
                is_doubted = self._parts[number].is_doubted
                ask = search.recommended if is_doubted else search.fastest
                other = ask(among)
                scale = near_prices[number, other.row] if other.has_plan else WHOLE
                if other.has_plan and other.ticks * scale <= price:
                    plans, proof, price = near, other, float(other.ticks * scale)
                    bound = min(bound, other.bound * scale)
            result.append(self._told(number, plans, proof, price, bound))
        return result

    def _told(
        self, number: int, plans: Plans, proof: Proof, price: float, bound: float
    ) -> PartPlan:
        """Return a plan of a part with its price, and a bound on the price of all."""
        bound_s = seconds(bound / WHOLE)
        if not proof.has_plan:
            # Where nothing fits in memory, that is proven.
            is_fitting = bool(self.fits[number])
            return PartPlan(
                None, bound_s if is_fitting else inf, is_proven=not is_fitting
            )
        mesh = int(plans.rows.costs.rows.mesh[proof.row])
        key = int(plans.rows.unplaced[proof.row]), mesh, proof.split
        if key not in self._checked:
            self._checked[key] = plans.checked(proof)
        best = self._checked[key]
        takes_s = self._parts[number].takes_s(best)
        if bound >= price:
            return PartPlan(best, takes_s, is_proven=True)
        return PartPlan(best, min(bound_s, takes_s), is_proven=False)

    def _place(self, rows: Unplaced, limit: Limit | None) -> None:
        """Place skeletons on their meshes, and note the fastest of each part."""
        if not len(rows):
            return
        pricing = Pricing(self._job.spec)
        found = place_and_bound(self._job, self._lattice, rows, limit, None, pricing)
        self.found.append(found)
        rows_found = found.costs.rows
        prices = found.upper * self._prices(rows_found)
        upper = _over_parts(self._having(rows_found), prices)
        self.upper = np.minimum(self.upper, upper)
        self.most = np.minimum(self.most, self.upper)

    def _nearest(self, rows: Unplaced, lower: Floats) -> Ints:
        """Return a few rows of each part: of other degrees, and of the least bounds."""
        order = np.argsort(lower, kind="stable")
        degree = self._lattice.take(rows.number).degree[order]
        order = order[np.sort(np.unique(degree, return_index=True)[1])]
        of_part = self._has_degree[:, self._lattice.take(rows.number[order]).degree]
        first = [order[np.flatnonzero(has)[:FIRST_PLACED]] for has in of_part]
        return np.unique(np.concatenate(first))

    def _having(self, rows: Skeletons) -> Bools:
        """Return which rows each part has, (parts, rows)."""
        column = {part.column: values_of(rows, part.column) for part in self._parts}
        return np.stack([column[part.column] == part.value for part in self._parts])

    def _prices(self, rows: Skeletons) -> Ints:
        """Return the price of a tick of rows, as each part counts it, (parts, rows)."""
        whole = np.full(len(rows.tp), WHOLE, dtype=np.int64)
        if not self._is_doubted.any():
            return np.broadcast_to(whole, (len(self._parts), len(whole)))
        doubted = percents(self._job.spec, rows)
        return np.where(self._is_doubted[:, None], doubted, whole)

    def _limit(self, rows: Skeletons) -> Floats:
        """Return the ticks above which no part asks for a row; 0 where none has it."""
        most = self.most[:, None] / self._prices(rows)
        return np.asarray(np.where(self._having(rows), most, 0.0).max(axis=0))


def _over_parts(has: Bools, amounts: Floats) -> Floats:
    """Return the least of some amounts in each part, infinite where it has none."""
    least: Floats = np.where(has, amounts, inf).min(axis=1, initial=inf)
    return least
