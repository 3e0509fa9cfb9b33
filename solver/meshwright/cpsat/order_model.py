"""Finds the Pareto-optimal orders of ranks on the GPUs of one host.

The costs are, for each kind of group, the load of the fullest link while its rings pass
bytes, and the latency of their longest hop. A plan's time never falls when one of them
grows, so the best plan lies on one of the orders returned. Few orders are listed and
priced; more are left to CP-SAT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.cpsat.group_cost import (
    GpuOrder,
    GroupCost,
    Hop,
    Ints,
    enumerate_orders,
    local_optimum,
    pareto_front,
)
from meshwright.cpsat.ortools import (
    CpModel,
    CpSolver,
    Domain,
    IntVar,
    LinearExpr,
    cp_model,
    solve_until,
)
from meshwright.deadline import NEVER, Deadline
from meshwright.errors import InternalError

MOST_LISTED = 10_000
"""Orders up to which all are priced one by one; more are left to CP-SAT."""

MOST_EFFORT = 4.0
"""Deterministic seconds of CP-SAT for one host; about as many of a clock."""

Arcs = dict[Hop, IntVar]
"""Whether one GPU sends to another."""


@dataclass(frozen=True)
class FoundOrders:
    """Orders none of which is at least as good as another in all costs."""

    orders: tuple[GpuOrder, ...]
    is_all: bool
    """Whether they are proven to dominate every other order within the limits."""


def pareto_orders(
    groups: Sequence[GroupCost],
    rank_order: Sequence[Hop],
    known: Sequence[GpuOrder] = (),
    deadline: Deadline = NEVER,
) -> FoundOrders:
    """Return one order for each Pareto-optimal set of costs within the limits.

    In each pair of `rank_order` the first GPU may be taken to have the lower rank,
    because the host looks the same with the two exchanged. Ranks that a rotation of
    the rings takes to each other are alike too: GPU 0 has the first of them. `known`
    orders need not be found again.
    """
    listed = _few_orders(groups, rank_order)
    if listed is not None:
        return FoundOrders(_best(groups, listed), True)
    model = OrderModel(groups, rank_order, _distinct_ranks(groups))
    orders: list[GpuOrder] = []
    found = list(known)
    while True:
        for order in found:
            orders.append(order)
            costs = [group.costs(np.array([order]))[0].tolist() for group in groups]
            model.require_improvement(costs)
        order_found, is_decided = model.solve(deadline)
        if order_found is None:
            rows = np.array(orders, dtype=np.int64).reshape(-1, groups[0].gpus)
            return FoundOrders(_best(groups, rows), is_decided)
        found = [order_found, local_optimum(groups, order_found)]


def _best(groups: Sequence[GroupCost], orders: Ints) -> tuple[GpuOrder, ...]:
    """Return the Pareto-optimal ones of some orders, within the limits on costs."""
    costs = np.concatenate([group.costs(orders) for group in groups], axis=1)
    most = np.array([limit for group in groups for limit in group.most])
    rows = np.flatnonzero((costs <= most).all(axis=1))
    front = rows[pareto_front(costs[rows])]
    return tuple(tuple(order) for order in orders[front].tolist())


def least_costs(group: GroupCost, rank_order: Sequence[Hop]) -> tuple[int, int]:
    """Return the load and the latency that no order goes below, each by itself."""
    listed = _few_orders([group], rank_order)
    if listed is None:
        return group.lower_bound
    load, latency = group.costs(listed).min(axis=0).tolist()
    return load, latency


def _few_orders(groups: Sequence[GroupCost], rank_order: Sequence[Hop]) -> Ints | None:
    """Return every order worth telling apart; None if there are too many."""
    return listed_orders(groups[0].gpus, rank_order, _distinct_ranks(groups))


def listed_orders(
    gpus: int, rank_order: Sequence[Hop], first_gpu_ranks: Sequence[int]
) -> Ints | None:
    """Return every order of GPUs, with GPU 0 on given ranks; None if too many."""
    return enumerate_orders(
        gpus, tuple(rank_order), tuple(first_gpu_ranks), MOST_LISTED
    )


def _distinct_ranks(groups: Sequence[GroupCost]) -> list[int]:
    """Return the lowest rank of every set that rotations of all rings permute."""
    ranks = range(groups[0].gpus)
    rotations = [
        rotation
        for group in groups
        for rotation in group.rotations
        if all(other.is_invariant(rotation) for other in groups)
    ]
    lowest = list(ranks)
    for _ in ranks:
        for rotation in rotations:
            for rank, place in enumerate(rotation):
                lowest[place] = min(lowest[place], lowest[rank])
    return sorted(set(lowest))


class OrderModel:
    """A model that is solved again and again, each time for an order that improves."""

    def __init__(
        self,
        groups: Sequence[GroupCost],
        rank_order: Sequence[Hop],
        first_gpu_ranks: Sequence[int],
    ) -> None:
        """Make the variables and constraints: see `pareto_orders`."""
        self.model = CpModel()
        self.effort_left = MOST_EFFORT
        self._sides: dict[GpuOrder, list[IntVar]] = {}
        self._crossings: dict[tuple[GpuOrder, Hop], IntVar] = {}
        gpus = range(groups[0].gpus)
        # sits[rank][gpu]: a permutation matrix.
        self.sits = [[self.model.new_bool_var("") for _ in gpus] for _ in gpus]
        for index in gpus:
            self.model.add_exactly_one(self.sits[index])
            self.model.add_exactly_one(rank[index] for rank in self.sits)
        self.model.add_exactly_one(self.sits[rank][0] for rank in first_gpu_ranks)
        rank_of = [
            LinearExpr.weighted_sum([rank[gpu] for rank in self.sits], list(gpus))
            for gpu in gpus
        ]
        for first, second in rank_order:
            self.model.add(rank_of[first] < rank_of[second])
        self.costs = [self._costs(group) for group in groups]

    def _costs(self, group: GroupCost) -> tuple[IntVar, IntVar]:
        """Return the variables of a group's load and latency."""
        sends = {arc: self.model.new_bool_var("") for arc in group.arcs}
        if group.is_symmetric:
            sends = {
                (i, j): sends[min(i, j), max(i, j)] for i, j in sends if (j, i) in sends
            }
        for gpu in range(group.gpus):
            sent = [arc for (i, _), arc in sends.items() if i == gpu]
            heard = [arc for (_, j), arc in sends.items() if j == gpu]
            self.model.add(LinearExpr.sum(sent) == group.receivers)
            self.model.add(LinearExpr.sum(heard) == group.receivers)
        for hop in group.hops:
            self._link_ranks_to_arcs(hop, sends, group.receivers == 1)
        return self._fullest_link(group, sends), self._longest_hop(group, sends)

    def _link_ranks_to_arcs(self, hop: Hop, sends: Arcs, is_only: bool) -> None:
        """Ensure that the GPUs of a hop's ranks send, and if `is_only` to no others."""
        first, second = (self.sits[rank] for rank in hop)
        for i in range(len(first)):
            for j in range(len(first)):
                arc = sends.get((i, j))
                if arc is None:
                    self.model.add_bool_or(~first[i], ~second[j])
                    continue
                self.model.add_bool_or(~first[i], ~second[j], arc)
                if is_only:
                    self.model.add_bool_or(~first[i], ~arc, second[j])
                    self.model.add_bool_or(~second[j], ~arc, first[i])

    def _fullest_link(self, group: GroupCost, sends: Arcs) -> IntVar:
        """Return the load of the fullest link: at least that of every link."""
        fullest = self.model.new_int_var_from_domain(_load_domain(group), "")
        for link in range(group.loads.shape[2]):
            terms = [
                (arc, int(group.loads[i, j, link]))
                for (i, j), arc in sends.items()
                if group.loads[i, j, link]
            ]
            if terms:
                variables, weights = zip(*terms, strict=True)
                load = LinearExpr.weighted_sum(list(variables), list(weights))
                self.model.add(load + int(group.base[link]) <= fullest)
        self._bound_cuts(group, fullest)
        return fullest

    def _bound_cuts(self, group: GroupCost, fullest: IntVar) -> None:
        """Bound the load of links that separate the GPUs by the side of each rank.

        This follows from the other constraints, but prunes partial orders much sooner.
        """
        for cut in group.cuts:
            if 1 < len(cut.side) < group.gpus - 1:
                crossings = [self._crosses(cut.side, hop) for hop in group.hops]
                load = LinearExpr.sum(crossings) * cut.load + cut.base
                self.model.add(load <= fullest)

    def _crosses(self, side: GpuOrder, hop: Hop) -> IntVar:
        """Return whether a hop goes from GPUs of a side to others."""
        if (side, hop) not in self._crossings:
            is_inside = self._is_on(side)
            first, second = (is_inside[rank] for rank in hop)
            crosses = self.model.new_bool_var("")
            self.model.add_bool_or(~first, second, crosses)
            self.model.add_implication(crosses, first)
            self.model.add_implication(crosses, ~second)
            self._crossings[side, hop] = crosses
        return self._crossings[side, hop]

    def _is_on(self, side: GpuOrder) -> list[IntVar]:
        """Return for each rank whether it is on the GPUs of a side."""
        if side not in self._sides:
            self._sides[side] = [self.model.new_bool_var("") for _ in self.sits]
            for is_inside, rank in zip(self._sides[side], self.sits, strict=True):
                on_side = LinearExpr.sum([rank[gpu] for gpu in side])
                self.model.add(on_side == is_inside)
        return self._sides[side]

    def _longest_hop(self, group: GroupCost, sends: Arcs) -> IntVar:
        """Return the latency of the longest hop: at least that of every hop."""
        longest = self.model.new_int_var(group.least[1], group.most[1], "")
        latencies: dict[Hop, list[LinearExpr]] = {}
        for (i, j), arc in sends.items():
            # A GPU that sends to one other uses just one of its arcs: they add up.
            at = (i, 0) if group.receivers == 1 else (i, j)
            latencies.setdefault(at, []).append(arc * int(group.latency[i, j]))
        for terms in latencies.values():
            self.model.add(LinearExpr.sum(terms) <= longest)
        return longest

    def solve(self, deadline: Deadline) -> tuple[GpuOrder | None, bool]:
        """Return an order and True; or None, and whether none is proven to be left.

        Raises:
            InternalError: CP-SAT refuses the model.
        """
        solver = CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = self.effort_left
        status = solve_until(deadline, solver, self.model)
        self.effort_left = max(self.effort_left - solver.deterministic_time, 0.0)
        if status == cp_model.MODEL_INVALID:
            raise InternalError(f"CP-SAT refuses the model: {self.model.validate()}")
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, bool(status == cp_model.INFEASIBLE)
        order = tuple(
            next(gpu for gpu, sits in enumerate(rank) if solver.boolean_value(sits))
            for rank in self.sits
        )
        return order, True

    def require_improvement(self, known: Sequence[Sequence[int]]) -> None:
        """Ensure that some cost is below that of a known order."""
        lower = []
        for variables, costs in zip(self.costs, known, strict=True):
            for variable, cost in zip(variables, costs, strict=True):
                is_lower = self.model.new_bool_var("")
                self.model.add(variable <= cost - 1).only_enforce_if(is_lower)
                lower.append(is_lower)
        self.model.add_bool_or(lower)


def _load_domain(group: GroupCost) -> Domain:
    """Return the loads that the fullest link may have, as far as they are known."""
    least, most = max(int(group.base.max()), group.least[0]), group.most[0]
    if not group.possible_loads:
        return Domain(least, most)
    possible = {load for load in group.possible_loads if least <= load <= most}
    return Domain.from_values(sorted({least, most} | possible))
