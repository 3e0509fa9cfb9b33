"""The CP-SAT model of one host: which GPU each rank sits on, and what groups pay."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.cpsat.goal import Goal, Hop, Seats
from meshwright.cpsat.ortools_import import (
    CpModel,
    CpSolver,
    Domain,
    IntVar,
    LinearExpr,
    cp_model,
)
from meshwright.cpsat.solver import solved
from meshwright.deadline import Deadline
from meshwright.errors import InternalError

MOST_EFFORT = 4.0
"""Deterministic seconds of CP-SAT for one host; about as many of a clock."""


class Seating:
    """The model of one host, which learns what is known already."""

    def __init__(
        self, goals: Sequence[Goal], before: Sequence[Hop], unlike: Sequence[int]
    ) -> None:
        """Make the model; GPU 0 has one of the ranks `unlike`."""
        self.model = CpModel()
        self.left = MOST_EFFORT
        self._sides: dict[Seats, list[IntVar]] = {}
        self._across: dict[tuple[Seats, Hop], IntVar] = {}
        gpus = range(len(goals[0].loads))
        self.sits = [[self.model.new_bool_var("") for _ in gpus] for _ in gpus]
        for index in gpus:
            self.model.add_exactly_one(self.sits[index])
            self.model.add_exactly_one(rank[index] for rank in self.sits)
        self.model.add_exactly_one(self.sits[rank][0] for rank in unlike)
        ranks = [
            LinearExpr.weighted_sum([rank[gpu] for rank in self.sits], list(gpus))
            for gpu in gpus
        ]
        for first, second in before:
            self.model.add(ranks[first] < ranks[second])
        self.costs = [self._costs(goal) for goal in goals]

    def _costs(self, goal: Goal) -> tuple[IntVar, IntVar]:
        """Return the variables of a goal: load and latency."""
        sends = {arc: self.model.new_bool_var("") for arc in goal.arcs}
        if goal.is_mutual:
            sends = {
                (i, j): sends[min(i, j), max(i, j)] for i, j in sends if (j, i) in sends
            }
        gpus = range(len(goal.loads))
        for gpu in gpus:
            out = [own for (i, _), own in sends.items() if i == gpu]
            back = [own for (_, j), own in sends.items() if j == gpu]
            self.model.add(LinearExpr.sum(out) == goal.each)
            self.model.add(LinearExpr.sum(back) == goal.each)
        for hop in goal.hops:
            self._seat(hop, sends, goal.each == 1)
        return self._fullest_link(goal, sends), self._longest_way(goal, sends)

    def _seat(self, hop: Hop, sends: dict[Hop, IntVar], is_only: bool) -> None:
        """Ensure that the GPUs of two ranks of a hop send, to no others if only one."""
        first, second = (self.sits[rank] for rank in hop)
        for i in range(len(first)):
            for j in range(len(first)):
                own = sends.get((i, j))
                if own is None:
                    self.model.add_bool_or(~first[i], ~second[j])
                    continue
                self.model.add_bool_or(~first[i], ~second[j], own)
                if is_only:
                    self.model.add_bool_or(~first[i], ~own, second[j])
                    self.model.add_bool_or(~second[j], ~own, first[i])

    def _fullest_link(self, goal: Goal, sends: dict[Hop, IntVar]) -> IntVar:
        least, most = max(int(goal.base.max()), goal.least[0]), goal.most[0]
        sums = {own for own in goal.sums if least <= own <= most}
        domain = (
            Domain.from_values(sorted({least, most} | sums))
            if goal.sums
            else Domain(least, most)
        )
        fullest = self.model.new_int_var_from_domain(domain, "")
        for link in range(goal.loads.shape[2]):
            terms = [
                (own, int(goal.loads[i, j, link]))
                for (i, j), own in sends.items()
                if goal.loads[i, j, link]
            ]
            if terms:
                variables, weights = zip(*terms, strict=True)
                load = LinearExpr.weighted_sum(list(variables), list(weights))
                self.model.add(load + int(goal.base[link]) <= fullest)
        self._bound_cuts(goal, fullest)
        return fullest

    def _bound_cuts(self, goal: Goal, fullest: IntVar) -> None:
        """Bound links that part the GPUs in two by which part each rank is in.

        That follows from the rest, but says much more about an order half made.
        """
        for cut in goal.cuts:
            if 1 < len(cut.side) < len(goal.loads) - 1:
                across = [self._is_across(cut.side, hop) for hop in goal.hops]
                load = LinearExpr.sum(across) * cut.load + cut.base
                self.model.add(load <= fullest)

    def _is_across(self, side: Seats, hop: Hop) -> IntVar:
        """Return whether a hop leaves some GPUs."""
        if (side, hop) not in self._across:
            ranks = self._is_in(side)
            first, second = (ranks[rank] for rank in hop)
            own = self.model.new_bool_var("")
            self.model.add_bool_or(~first, second, own)
            self.model.add_implication(own, first)
            self.model.add_implication(own, ~second)
            self._across[side, hop] = own
        return self._across[side, hop]

    def _is_in(self, side: Seats) -> list[IntVar]:
        """Return which ranks are on some GPUs."""
        if side not in self._sides:
            self._sides[side] = [self.model.new_bool_var("") for _ in self.sits]
            for own, rank in zip(self._sides[side], self.sits, strict=True):
                self.model.add(LinearExpr.sum([rank[gpu] for gpu in side]) == own)
        return self._sides[side]

    def _longest_way(self, goal: Goal, sends: dict[Hop, IntVar]) -> IntVar:
        longest = self.model.new_int_var(goal.least[1], goal.most[1], "")
        ways: dict[Hop, list[LinearExpr]] = {}
        for (i, j), own in sends.items():
            # Of the ways of a GPU that sends to one other only one is taken.
            at = (i, 0) if goal.each == 1 else (i, j)
            ways.setdefault(at, []).append(own * int(goal.latency[i, j]))
        for terms in ways.values():
            self.model.add(LinearExpr.sum(terms) <= longest)
        return longest

    def solve(self, deadline: Deadline) -> tuple[Seats | None, bool]:
        """Return an order; or None, and whether there is no other.

        Raises:
            InternalError: CP-SAT refuses the model.
        """
        solver = CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = self.left
        status = solved(solver, self.model, deadline)
        self.left = max(self.left - solver.deterministic_time, 0.0)
        if status == cp_model.MODEL_INVALID:
            raise InternalError(f"CP-SAT refuses the model: {self.model.validate()}")
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, bool(status == cp_model.INFEASIBLE)
        seats = tuple(
            next(gpu for gpu, own in enumerate(rank) if solver.boolean_value(own))
            for rank in self.sits
        )
        return seats, True

    def ask_for_less(self, known: Sequence[Sequence[int]]) -> None:
        """Ensure that some cost is below what is known."""
        lower = []
        for pair, costs in zip(self.costs, known, strict=True):
            for own, cost in zip(pair, costs, strict=True):
                is_lower = self.model.new_bool_var("")
                self.model.add(own <= cost - 1).only_enforce_if(is_lower)
                lower.append(is_lower)
        self.model.add_bool_or(lower)
