"""Proves rows: the model chooses one, its best split is proven, and cuts the model.

This is logic-based Benders decomposition. The model chooses the row with the least
bound; the best split of its layers is proven and comes back as a cut. Once the model
chooses a row whose split is proven, no plan is better. A row is only asked whether it
beats the best plan so far: most are refuted by that, and never solved to their optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Protocol

import numpy as np

from meshwright.deadline import Deadline
from meshwright.planner.model import (
    ANY_SPLIT,
    ENDLESS_TICKS,
    Bools,
    Demand,
    Ints,
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

    def fastest(self, among: Bools | None = None) -> Proof:
        """Return the proof of the fastest plan of some rows; of equals the first wins.

        Once the deadline has passed or a row was left unproven, the constructed split
        that is the fastest may be better than the best one that was proven.
        """
        best, bound = NO_PLAN, inf
        left = self.is_left if among is None else self.is_left & among
        while choice := self.model.fastest(self._most_ticks(best, left), among):
            if best.has_plan and _comes_first(best, choice.ticks, choice.row):
                break
            if bound < inf or self._deadline.has_passed:
                bound = min(bound, choice.ticks)
                break
            best, open_bound = self._best_from(best, choice.row, left)
            bound = min(bound, open_bound)
        if bound < inf:
            best = self._or_constructed(best, bound, left)
        if not best.has_plan:
            return replace(best, bound=bound)
        is_proven = bound >= best.ticks
        return replace(
            self._splits.unique(best.row, ANY_SPLIT, best),
            status="optimal" if is_proven else "feasible",
            bound=float(best.ticks) if is_proven else bound,
        )

    def simplest(self, criteria: Sequence[str], most_ticks: int) -> tuple[Proof, bool]:
        """Return the proof of the simplest plan within some ticks, of equals the first.

        The second result says whether it is proven that none is simpler.
        """
        is_proven = True
        while choice := self.model.simplest(criteria, most_ticks):
            row, demand = choice.row, choice.demand
            if self._is_known(row, demand, most_ticks + 1):
                proof = self.known[row, demand]
                return self._splits.unique(row, demand, proof), is_proven
            if self._deadline.has_passed:
                return NO_PLAN, False
            proof = self.prove(row, demand, most_ticks + 1)
            if proof.is_open:
                is_proven &= proof.bound > most_ticks
        return NO_PLAN, is_proven

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

    def _best_from(self, best: Proof, first: int, left: Bools) -> tuple[Proof, float]:
        """Return the best plan among one, a first row, and rows whose bounds are below.

        The second result is the least bound of what is left unproven.
        """
        order = np.argsort(self.least, kind="stable")
        for row in [first, *order[left[order]].tolist()]:
            if best.has_plan and _comes_first(best, int(self.least[row]), row):
                if self.least[row] > best.ticks:
                    break
                continue
            if row != first and self._deadline.has_passed:
                break
            limit = self._most_ticks(best, left) + 1
            if best.has_plan and best.ticks < limit and row > best.row:
                limit = best.ticks
            proof = self.prove(row, ANY_SPLIT, limit)
            if proof.has_plan and proof.ticks < limit:
                best = proof
            if proof.is_open:
                return best, proof.bound
        return best, inf

    def _most_ticks(self, best: Proof, left: Bools) -> int:
        """Return ticks that the best plan does not exceed: those of one that exists."""
        most = int(self.upper[left].min(initial=ENDLESS_TICKS - 1))
        return min(most, best.ticks) if best.has_plan else most

    def _is_known(self, row: int, demand: Demand, limit: int) -> bool:
        """Return whether it is proven whether a row takes less than a limit."""
        proof = self.known.get((row, demand))
        return proof is not None and (proof.status != "slower" or proof.bound >= limit)

    def _or_constructed(self, best: Proof, bound: float, left: Bools) -> Proof:
        """Return the best plan that was proven, or a constructed one that is faster."""
        upper = np.where(left, self.upper, ENDLESS_TICKS)
        row = int(upper.argmin())
        if upper[row] < (best.ticks if best.has_plan else ENDLESS_TICKS):
            split = self._splits.constructed(row)
            return Proof("feasible", split, int(upper[row]), bound, row)
        return best if best.has_plan else replace(best, status="unknown")


def _comes_first(best: Proof, ticks: int, row: int) -> bool:
    """Return whether a plan comes before a row that takes so many ticks, or is it."""
    return (best.ticks, best.row) <= (ticks, row)
