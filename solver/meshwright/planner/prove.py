"""Proves rows: the model chooses one, its best split is proven, and cuts the model.

This is logic-based Benders decomposition. The model chooses the row with the least
bound; the best split of its layers is proven and comes back as a cut. Once the model
chooses a row whose split is proven, no plan is better. A row is only asked whether it
beats the best plan so far: most are refuted by that, and never solved to their optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

import numpy as np

from meshwright.deadline import Deadline
from meshwright.planner.best_split import ENDLESS, Bools, Ints
from meshwright.planner.model import (
    ANY_SPLIT,
    ENDLESS_TICKS,
    STEP,
    Choice,
    Demand,
    PlanModel,
    Table,
)
from meshwright.planner.pipeline import Pairs, Proof

NO_PLAN = Proof("infeasible", (), 0, inf)


class Splits(Protocol):
    """Splits the layers of rows."""

    def prove(self, row: int, demand: Demand, below: int) -> Proof:
        """Return the proof of a row's best split that takes less than some ticks."""

    def unique(self, row: int, demand: Demand, proof: Proof) -> Proof:
        """Return a proof with the split that the tie-break picks among equals."""

    def constructed(self, row: int) -> Pairs:
        """Return the split of a row whose ticks are its upper bound."""


class Search:
    """Proves the best rows of a table by any question: fastest, simplest, one row."""

    def __init__(
        self,
        table: Table,
        upper: Ints,
        is_left: Bools,
        splits: Splits,
        deadline: Deadline,
        seed: int = 0,
    ) -> None:
        """Build the model of a table.

        `upper` are the ticks of a split that exists of each row, ENDLESS_TICKS where
        none is known. Of rows that are not left, none is proven.
        """
        self.model = PlanModel(table, seed)
        self.upper = upper
        self.is_left = is_left.copy()
        self.least = table.least_ticks[ANY_SPLIT]
        self.known: dict[tuple[int, Demand], Proof] = {}
        """Proofs of rows; the proof of a row that is too slow is a lower bound."""
        self._splits, self._deadline = splits, deadline
        self._first: dict[tuple[int, Demand, Proof], Proof] = {}
        """Proofs with the split that the tie-break picks."""

    def fastest(self, among: Bools | None = None) -> Proof:
        """Return the proof of the fastest plan of some rows; of equals the first wins.

        Once the deadline has passed or a row was left unproven, the constructed split
        that is the fastest may be better than the best one that was proven.
        """
        return self._best(STEP, among)

    def recommended(self, among: Bools | None = None) -> Proof:
        """Return the proof of the plan of the least price, as `fastest` does.

        Its bound is on the ticks of that plan, as its price bounds them.
        """
        return self._best(self.model.table.price, among)

    def price(self, proof: Proof) -> int:
        """Return the price of a proven plan."""
        table = self.model.table
        return proof.ticks * int(table.scale(table.price)[proof.row])

    def _best(self, objective: str, among: Bools | None = None) -> Proof:
        asked, best = _Asked.of(self, objective, among), NO_PLAN
        open_before, bound = self._open_bound(asked), inf
        while choice := self.model.least(objective, asked.most(best), among):
            if bound < inf or self._deadline.has_passed:
                bound = min(bound, choice.price)
                break
            best, open_bound = self._best_from(asked, best, choice.row)
            bound = min(bound, open_bound)
            # No row's bound came before the choice's, and proofs only raise bounds.
            if best.has_plan and asked.comes_first(best, choice.price, choice.row):
                break
        bound = min(bound, open_before)
        if bound < inf:
            best = self._or_constructed(asked, best, bound)
        if not best.has_plan:
            return replace(best, bound=bound)
        is_proven = bound >= asked.price(best)
        return replace(
            self._unique(best.row, ANY_SPLIT, best),
            status="optimal" if is_proven else "feasible",
            bound=float(best.ticks) if is_proven else bound / asked.scale[best.row],
        )

    def simplest(self, criteria: Sequence[str], most: int) -> tuple[Proof, bool]:
        """Return the proof of the simplest plan within a price, of equals the first.

        The second result says whether it is proven that none is simpler.
        """
        scale, is_proven = self.model.table.scale(self.model.table.price), True
        while choice := self.model.simplest(criteria, most):
            row, demand = choice.row, choice.demand
            if self._is_known(row, demand, most // int(scale[row]) + 1):
                proof = self.known[row, demand]
                return self._unique(row, demand, proof), is_proven
            # Where bounds are weak, dozens of rows that are as simple are refuted, or
            # found to be dearer: the model need not be asked after each.
            cheapest = most, len(scale)
            for row, least in self._as_simple(choice, criteria, most):
                if self._deadline.has_passed:
                    return NO_PLAN, False
                if (least, row) > cheapest:
                    break
                limit = cheapest[0] // int(scale[row]) + 1
                proof = self.prove(row, demand, limit)
                if proof.is_open:
                    is_proven &= proof.bound >= limit
                price = proof.ticks * int(scale[row])
                is_least = row == choice.row and price == choice.price
                if is_least and proof.status == "optimal":
                    # No row as simple had a lower bound, and proofs only raise bounds.
                    return self._unique(row, demand, proof), is_proven
                if proof.has_plan:
                    cheapest = min(cheapest, (price, row))
        return NO_PLAN, is_proven

    def _as_simple(
        self, choice: Choice, criteria: Sequence[str], most: int
    ) -> list[tuple[int, int]]:
        """Return a choice and the rows that are as simple, within a price.

        Each comes with the least that it may cost, and the cheapest first.
        """
        table, alike = self.model.table, self.is_left.copy()
        for name in table.criteria.keys() & {*criteria}:
            values = table.criteria[name]
            alike &= values == values[choice.row]
        price = table.least_ticks[choice.demand] * table.scale(table.price)
        rows = np.flatnonzero(alike & (price <= most))
        rows = rows[np.argsort(price[rows], kind="stable")]
        rows = np.concatenate(([choice.row], rows[rows != choice.row]))
        return list(zip(rows.tolist(), price[rows].tolist(), strict=True))

    def leave_out(self, rows: Ints) -> None:
        """Leave out rows from all that is asked from now on."""
        self.model.leave_out(rows)
        self.is_left[rows] = False

    def prove(self, row: int, demand: Demand, below: int) -> Proof:
        """Return the proof of a row's best split below some ticks, and cut by it."""
        if self._is_known(row, demand, below):
            return self.known[row, demand]
        if demand == ANY_SPLIT and self.least[row] == self.upper[row]:
            # The constructed split takes no longer than any.
            ticks, status = int(self.upper[row]), "optimal"
            proof = Proof(status, self._splits.constructed(row), ticks, float(ticks))
        else:
            proof = self._splits.prove(row, demand, below)
        proof = replace(proof, row=row)
        self.known[row, demand] = proof
        # An open row is left out: its bound is kept, and the model knows no more of it.
        is_settled = proof.status in ("optimal", "slower")
        self.model.cut(row, demand, int(proof.bound) if is_settled else None)
        return proof

    def _unique(self, row: int, demand: Demand, proof: Proof) -> Proof:
        """Return a proof with the split that the tie-break picks among equals."""
        asked = row, demand, proof
        if asked not in self._first:
            self._first[asked] = self._splits.unique(row, demand, proof)
        return self._first[asked]

    def _best_from(self, asked: _Asked, best: Proof, first: int) -> tuple[Proof, float]:
        """Return the best plan among one, a first row, and rows whose bounds are below.

        The second result is the least bound of what is left unproven.
        """
        order = np.argsort(asked.least, kind="stable")
        for row in [first, *order[asked.left[order]].tolist()]:
            least = int(asked.least[row])
            if best.has_plan and asked.comes_first(best, least, row):
                if least > asked.price(best):
                    break
                continue
            if row != first and self._deadline.has_passed:
                break
            limit = asked.limit(best, row)
            proof = self.prove(row, ANY_SPLIT, limit)
            if proof.has_plan and proof.ticks < limit:
                best = proof
            if proof.is_open:
                return best, proof.bound * asked.scale[row]
        return best, inf

    def _open_bound(self, asked: _Asked) -> float:
        """Return the least bound of rows that earlier questions left unproven."""
        bounds = (
            proof.bound * int(asked.scale[row])
            for (row, demand), proof in self.known.items()
            if demand == ANY_SPLIT and proof.is_open and asked.left[row]
        )
        return min(bounds, default=inf)

    def _is_known(self, row: int, demand: Demand, limit: int) -> bool:
        """Return whether it is proven whether a row takes less than a limit."""
        proof = self.known.get((row, demand))
        return proof is not None and (proof.status != "slower" or proof.bound >= limit)

    def _or_constructed(self, asked: _Asked, best: Proof, bound: float) -> Proof:
        """Return the best plan that was proven, or a constructed one that is better."""
        upper = np.where(asked.left, asked.upper, ENDLESS)
        row = int(upper.argmin())
        if upper[row] < (asked.price(best) if best.has_plan else ENDLESS):
            ticks, split = int(self.upper[row]), self._splits.constructed(row)
            return Proof("feasible", split, ticks, bound, row)
        return best if best.has_plan else replace(best, status="unknown")


@dataclass(frozen=True)
class _Asked:
    """The bounds of rows on a question's objective, in its unit."""

    scale: Ints
    """The weight of a tick in each row."""
    left: Bools
    """The rows of which it asks."""
    least: Ints
    upper: Ints

    @classmethod
    def of(cls, search: Search, objective: str, among: Bools | None) -> _Asked:
        """Return the bounds of a search on an objective, for some of its rows."""
        scale = search.model.table.scale(objective)
        left = search.is_left if among is None else search.is_left & among
        is_known = search.upper < ENDLESS_TICKS
        upper = np.where(is_known, search.upper * scale, ENDLESS)
        return cls(scale, left, search.least * scale, upper)

    def price(self, proof: Proof) -> int:
        """Return the price of a plan."""
        return proof.ticks * int(self.scale[proof.row])

    def most(self, best: Proof) -> int:
        """Return a price that the best plan does not exceed: one that exists."""
        most = int(self.upper[self.left].min(initial=ENDLESS - 1))
        return min(most, self.price(best)) if best.has_plan else most

    def limit(self, best: Proof, row: int) -> int:
        """Return the ticks that a split of a row must stay below to be the best."""
        limit = self.most(best) + 1
        if best.has_plan and row > best.row:
            limit = min(limit, self.price(best))
        return min(-(-limit // int(self.scale[row])), ENDLESS_TICKS)

    def comes_first(self, best: Proof, price: int, row: int) -> bool:
        """Return whether a plan comes before a row of a price, or is it."""
        return (self.price(best), best.row) <= (price, row)
