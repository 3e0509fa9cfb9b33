"""Places ranks on the GPUs of one host: every order that no other one betters.

Each goal is the load of the fullest link while the groups of one axis pass bytes round
their rings, and the longest way of such a hop. A plan's time never falls when one of
them grows, so the best plan lies on one of the orders returned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model
from ortools.sat.python.cp_model import CpModel, CpSolver, IntVar, LinearExpr

from meshwright.cpsat.listed import front, orders_of
from meshwright.errors import InternalError

Ints = NDArray[np.int64]
Hop = tuple[int, int]
Seats = tuple[int, ...]
"""The GPU of each rank."""

MOST_EFFORT, LEAST_EFFORT = 2.0, 1.0
"""Deterministic seconds of CP-SAT for one question; about as many of a clock.

The second is for what one kind of group costs at least, by itself.
"""


MOST_LISTED = 10_000
"""Orders that are looked at one by one; more are left to CP-SAT."""


@dataclass(frozen=True)
class Goal:
    """What the rings of one kind of group cost: smaller is better."""

    hops: tuple[Hop, ...]
    """Ranks that send to ranks, all at once; each to equally many."""
    loads: Ints
    """Of each pair of GPUs on each link, (gpus, gpus, links)."""
    base: Ints
    """On each link whoever sits where, (links,)."""
    latency: Ints
    """Of each pair of GPUs, (gpus, gpus)."""
    most: tuple[int, int]
    """Load and latency that are of interest; both may be the most there are."""
    least: tuple[int, int] = (0, 0)
    """Load and latency that no order gets below, as far as is known."""

    @cached_property
    def arcs(self) -> list[Hop]:
        """Return the pairs of GPUs of which one may send to the other."""
        gpus = range(len(self.loads))
        alone = (self.loads + self.base).max(axis=2)
        is_open = (alone <= self.most[0]) & (self.latency <= self.most[1])
        return [(i, j) for i in gpus for j in gpus if i != j and is_open[i, j]]

    @cached_property
    def is_mutual(self) -> bool:
        """Return whether who receives also sends back: rings of two."""
        return set(self.hops) == {(b, a) for a, b in self.hops}

    @property
    def each(self) -> int:
        """Return to how many others each rank sends."""
        return len(self.hops) // len(self.loads)

    @cached_property
    def turns(self) -> list[list[int]]:
        """Return the ways to turn all rings at once: where each rank comes to lie."""
        if self.each > 1:
            return []
        step, turns = dict(self.hops), []
        own = [step[rank] for rank in range(len(step))]
        while own != list(range(len(step))):
            turns.append(own)
            own = [step[rank] for rank in own]
        return turns

    def is_kept(self, turn: Sequence[int]) -> bool:
        """Return whether the hops are the same with ranks in other places."""
        return {(turn[a], turn[b]) for a, b in self.hops} == set(self.hops)

    def costs(self, seats: Ints) -> Ints:
        """Return the load of the fullest link and the longest way of orders, (., 2)."""
        links = np.flatnonzero(self.loads.any(axis=(0, 1)))
        passed, fullest = self.loads[:, :, links], int(self.base.max())
        loads = np.tile(self.base[links], (len(seats), 1))
        longest = np.zeros(len(seats), dtype=np.int64)
        for a, b in self.hops:
            loads += passed[seats[:, a], seats[:, b]]
            longest = np.maximum(longest, self.latency[seats[:, a], seats[:, b]])
        return np.stack([loads.max(axis=1, initial=fullest), longest], axis=1)


@dataclass(frozen=True)
class Found:
    """Orders of which none is better than another in all costs."""

    orders: tuple[Seats, ...]
    is_all: bool
    """Whether no other order is better in some cost, within what is of interest."""


def best_orders(goals: Sequence[Goal], before: Sequence[Hop]) -> Found:
    """Return an order for every least set of costs that is of interest.

    `before` are pairs of GPUs of which the first may be taken to have the lower rank,
    because the host looks the same with others in their places. Ranks that rings can
    be turned to are alike too: of those the first sits on GPU 0.
    """
    few = _few(goals, before)
    if few is not None:
        costs = np.concatenate([goal.costs(few) for goal in goals], axis=1)
        most = np.array([limit for goal in goals for limit in goal.most])
        rows = np.flatnonzero((costs <= most).all(axis=1))
        least = rows[front(costs[rows])]
        return Found(tuple(tuple(own) for own in few[least].tolist()), True)
    seating = _Seating(goals, before)
    orders: list[Seats] = []
    while True:
        seats, is_decided = seating.solve()
        orders += [seats] if seats else []
        if seats is None or not is_decided:
            return Found(tuple(orders), is_decided)
        known = [goal.costs(np.array([seats]))[0].tolist() for goal in goals]
        seating.ask_for_less(known)


def least_costs(goal: Goal, before: Sequence[Hop]) -> tuple[int, int]:
    """Return load and latency that no order gets below, each by itself."""
    few = _few([goal], before)
    if few is not None:
        load, latency = goal.costs(few).min(axis=0).tolist()
        return load, latency
    seating = _Seating([goal], before)
    load, latency = (seating.least(cost) for cost in seating.costs[0])
    return load, latency


def _few(goals: Sequence[Goal], before: Sequence[Hop]) -> Ints | None:
    """Return every order worth telling apart; None if there are too many."""
    unlike = tuple(_unlike_ranks(goals))
    return orders_of(len(goals[0].loads), tuple(before), unlike, MOST_LISTED)


class _Seating:
    """The model of one host, which learns what is known already."""

    def __init__(self, goals: Sequence[Goal], before: Sequence[Hop]) -> None:
        self.model = CpModel()
        gpus = range(len(goals[0].loads))
        self.sits = [[self.model.new_bool_var("") for _ in gpus] for _ in gpus]
        for index in gpus:
            self.model.add_exactly_one(self.sits[index])
            self.model.add_exactly_one(rank[index] for rank in self.sits)
        unlike = _unlike_ranks(goals)
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
        least = max(int(goal.base.max()), goal.least[0])
        fullest = self.model.new_int_var(least, goal.most[0], "")
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
        return fullest

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

    def solve(self) -> tuple[Seats | None, bool]:
        """Return an order of least summed costs; None, and whether there is no other.

        Raises:
            InternalError: CP-SAT refuses the model.
        """
        costs = [own for pair in self.costs for own in pair]
        solver, status = self._solved(LinearExpr.sum(costs), MOST_EFFORT)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, bool(status == cp_model.INFEASIBLE)
        seats = tuple(
            next(gpu for gpu, own in enumerate(rank) if solver.boolean_value(own))
            for rank in self.sits
        )
        return seats, bool(status == cp_model.OPTIMAL)

    def least(self, cost: IntVar) -> int:
        """Return what a cost is at least; what is known if no order is of interest."""
        solver, status = self._solved(cost, LEAST_EFFORT)
        is_bounded = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        return math.ceil(solver.best_objective_bound - 1e-6) if is_bounded else 0

    def _solved(
        self, objective: LinearExpr, effort: float
    ) -> tuple[CpSolver, cp_model.CpSolverStatus]:
        self.model.minimize(objective)
        solver = CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = effort
        status = solver.solve(self.model)
        if status == cp_model.MODEL_INVALID:
            raise InternalError(f"CP-SAT refuses the model: {self.model.validate()}")
        return solver, status

    def ask_for_less(self, known: Sequence[Sequence[int]]) -> None:
        """Ensure that some cost is below what is known."""
        lower = []
        for pair, costs in zip(self.costs, known, strict=True):
            for own, cost in zip(pair, costs, strict=True):
                is_lower = self.model.new_bool_var("")
                self.model.add(own <= cost - 1).only_enforce_if(is_lower)
                lower.append(is_lower)
        self.model.add_bool_or(lower)


def _unlike_ranks(goals: Sequence[Goal]) -> list[int]:
    """Return the first of the ranks that turns take to each other, for all of them."""
    gpus = range(len(goals[0].loads))
    turns = [
        turn
        for goal in goals
        for turn in goal.turns
        if all(own.is_kept(turn) for own in goals)
    ]
    least = list(gpus)
    for _ in gpus:
        for turn in turns:
            for rank, place in enumerate(turn):
                least[place] = min(least[place], least[rank])
    return sorted(set(least))
