"""The CP-SAT model of one host: the GPU of each rank, and the cost of its groups."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.cpsat.group_cost import GpuOrder, GroupCost, Hop
from meshwright.cpsat.interruptible import solve_until
from meshwright.cpsat.ortools_import import (
    CpSolver,
    Domain,
    IntVar,
    LinearExpr,
    cp_model,
    new_model,
)
from meshwright.deadline import Deadline
from meshwright.errors import InternalError

MOST_EFFORT = 4.0
"""Deterministic seconds of CP-SAT for one host; about as many of a clock."""

Arcs = dict[Hop, IntVar]
"""Whether one GPU sends to another."""


class OrderModel:
    """A model that is solved again and again, each time for an order that improves."""

    def __init__(
        self,
        groups: Sequence[GroupCost],
        rank_order: Sequence[Hop],
        first_gpu_ranks: Sequence[int],
    ) -> None:
        """Make the variables and constraints: see `pareto_orders`."""
        self.model = new_model()
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
