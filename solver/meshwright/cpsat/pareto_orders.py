"""Finds the Pareto-optimal orders of ranks on the GPUs of one host.

The costs are, for each kind of group, the load of the fullest link while its rings
pass bytes, and the latency of their longest hop. A plan's time never falls when one of
them grows, so the best plan lies on one of the orders returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.cpsat.group_cost import GpuOrder, GroupCost, Hop, Ints
from meshwright.cpsat.local_search import local_optimum
from meshwright.cpsat.order_enumeration import enumerate_orders, pareto_front
from meshwright.cpsat.order_model import OrderModel
from meshwright.deadline import NEVER, Deadline

MOST_LISTED = 10_000
"""Orders up to which all are priced one by one; more are left to CP-SAT."""


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
    """Return the load and the latency that no order goes below, each on its own."""
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
