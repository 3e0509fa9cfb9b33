"""Places ranks on the GPUs of one host: every order that no other one betters.

Each goal is the load of the fullest link while the groups of one axis pass bytes round
their rings, and the longest way of such a hop. A plan's time never falls when one of
them grows, so the best plan lies on one of the orders returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.cpsat.climb import climbed
from meshwright.cpsat.goal import Goal, Hop, Ints, Seats
from meshwright.cpsat.listed import front, orders_of
from meshwright.cpsat.seating import Seating
from meshwright.deadline import NEVER, Deadline

MOST_LISTED = 10_000
"""Orders that are looked at one by one; more are left to CP-SAT."""


@dataclass(frozen=True)
class Found:
    """Orders of which none is better than another in all costs."""

    orders: tuple[Seats, ...]
    is_all: bool
    """Whether no other order is better in some cost, within what is of interest."""


def best_orders(
    goals: Sequence[Goal],
    before: Sequence[Hop],
    known: Sequence[Seats] = (),
    deadline: Deadline = NEVER,
) -> Found:
    """Return an order for every least set of costs that is of interest.

    `before` are pairs of GPUs of which the first may be taken to have the lower rank,
    because the host looks the same with others in their places. Ranks that rings can
    be turned to are alike too: of those the first sits on GPU 0. `known` orders spare
    the search for them.
    """
    few = _few(goals, before)
    if few is not None:
        return Found(_best(goals, few), True)
    seating = Seating(goals, before, _unlike_ranks(goals))
    orders: list[Seats] = []
    found = list(known)
    while True:
        for order in found:
            orders.append(order)
            own = [goal.costs(np.array([order]))[0].tolist() for goal in goals]
            seating.ask_for_less(own)
        seats, is_decided = seating.solve(deadline)
        if seats is None:
            every = np.array(orders, dtype=np.int64).reshape(-1, len(goals[0].loads))
            return Found(_best(goals, every), is_decided)
        found = [seats, climbed(goals, seats)]


def _best(goals: Sequence[Goal], orders: Ints) -> tuple[Seats, ...]:
    """Return those orders that are of interest and that no other one betters."""
    costs = np.concatenate([goal.costs(orders) for goal in goals], axis=1)
    most = np.array([limit for goal in goals for limit in goal.most])
    rows = np.flatnonzero((costs <= most).all(axis=1))
    least = rows[front(costs[rows])]
    return tuple(tuple(own) for own in orders[least].tolist())


def least_costs(goal: Goal, before: Sequence[Hop]) -> tuple[int, int]:
    """Return load and latency that no order gets below, each by itself."""
    few = _few([goal], before)
    if few is None:
        return goal.floor
    load, latency = goal.costs(few).min(axis=0).tolist()
    return load, latency


def _few(goals: Sequence[Goal], before: Sequence[Hop]) -> Ints | None:
    """Return every order worth telling apart; None if there are too many."""
    return listed_orders(len(goals[0].loads), before, _unlike_ranks(goals))


def listed_orders(
    gpus: int, before: Sequence[Hop], first: Sequence[int]
) -> Ints | None:
    """Return every order of GPUs with GPU 0 on a `first` rank; None if too many."""
    return orders_of(gpus, tuple(before), tuple(first), MOST_LISTED)


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
