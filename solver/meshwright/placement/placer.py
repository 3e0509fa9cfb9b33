"""Decides on which GPU of its host each rank sits, where GPUs are not all alike.

For one mesh that is a question of its own: a plan's time never falls when groups pay
more. So each mesh is listed once for every order of GPUs that no other one betters,
and the rest of the search does not know that there was a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshwright.cpsat.climb import climbed
from meshwright.cpsat.goal import Goal, Seats
from meshwright.cpsat.seats import Found, best_orders, least_costs, listed_orders
from meshwright.deadline import Deadline
from meshwright.placement.gpu_orders import (
    NO_LIMIT,
    UNIT_S,
    WAIT_UNIT_S,
    Limits,
    Ring,
    Share,
    Worth,
    combined,
    goals_of,
    limits_of,
    rings_of,
)
from meshwright.plans.columns import Bools
from meshwright.topology.groups import floor_of_groups, price_groups
from meshwright.topology.paths import Meshes, Order, Paths
from meshwright.topology.routed import RoutedFabric
from meshwright.topology.symmetry import before

MOST_GPUS = 16
"""GPUs of a host up to which orders are searched; above, ranks lie as listed."""

FLOAT_ERROR = 1e-9
"""Share of a price by which two ways to add it up may differ."""

RESTARTS = 7
"""Orders by chance from which good ones are looked for, besides as listed."""

Find = Callable[["Question", Deadline], Found]
"""How orders of one kind of host are found."""


class Question(NamedTuple):
    """Which orders of one kind of host to find."""

    kind: int
    own: tuple[Ring, ...]
    limits: Limits


@dataclass(frozen=True)
class Placements:
    """The orders of GPUs that are worth a look for one mesh."""

    orders: tuple[Order, ...]
    bound: float = np.inf
    """Ticks of plans on any other order, at least; infinite if above the best plan."""


LISTED = Placements(((),))


class Placer:
    """Finds placements on one fabric, and remembers what it found."""

    def __init__(self, fabric: RoutedFabric) -> None:
        """Keep the fabric; nothing is searched yet."""
        self.fabric = fabric
        self._alone: dict[tuple[object, ...], tuple[int, int]] = {}
        self._fronts: dict[Question, Found] = {}
        self._known: dict[tuple[int, tuple[Ring, ...]], list[Seats]] = {}

    @cached_property
    def _before(self) -> list[list[tuple[int, int]]]:
        """Return, for each kind of host, pairs of GPUs in the order of their ranks."""
        return [
            before(kind.routes.graph, kind.routes.gpus, kind.way_out)
            for kind in self.fabric.kinds
        ]

    @cached_property
    def has_choice(self) -> bool:
        """Return whether it matters where ranks sit, and can be searched."""
        gpus = self.fabric.gpus_per_host
        pairs = gpus * (gpus - 1) // 2
        return gpus <= MOST_GPUS and any(len(own) < pairs for own in self._before)

    def placements(self, meshes: Meshes, ep: Share, worth: Worth) -> list[Placements]:
        """Return the orders that may hold a plan as good as the best one known.

        The order in which GPUs are listed is always among those of each mesh; it is
        the only one where no order could make any group pay less.
        """
        return self._found(meshes, ep, worth, self._front)

    def good(self, meshes: Meshes, ep: Share, worth: Worth) -> list[Placements]:
        """Return orders that are better than as listed, and soon found."""
        if not self._has_many:
            return [LISTED] * len(meshes)
        return self._found(meshes, ep, worth, self._climb)

    def _found(
        self, meshes: Meshes, ep: Share, worth: Worth, find: Find
    ) -> list[Placements]:
        result = [LISTED] * len(meshes)
        if not self.has_choice:
            return result
        share = None if ep is None else np.full(len(meshes), ep)
        floor = floor_of_groups(self.fabric, meshes, share)
        listed = price_groups(self.fabric, meshes, share)
        above = np.flatnonzero(_is_above(listed, floor))
        for mesh in above[worth(floor.take(above))].tolist():
            own = tuple(rings_of(self.fabric, meshes[[mesh]], ep))
            least = self._raised(own, floor.take(np.array([mesh])))
            if worth(least)[0]:
                result[mesh] = self._placed(own, least, worth, find)
        return result

    def _placed(
        self, own: tuple[Ring, ...], least: Paths, worth: Worth, find: Find
    ) -> Placements:
        """Return the orders of one mesh, as listed alone once the time is up."""
        orders: list[Order] = []
        is_all = False
        if not worth.deadline.has_passed:
            limits = limits_of(own, least, worth, 1 + self._has_many)
            orders, is_all = self._search(own, limits, find, worth.deadline)
        bound = np.inf if is_all else float(worth.ticks(least)[0])
        return Placements(((), *orders), bound)

    @cached_property
    def _has_many(self) -> bool:
        """Return whether some host has too many orders to list, whatever turns."""
        gpus = self.fabric.gpus_per_host
        found = [listed_orders(gpus, own, (0,)) for own in self._before]
        return any(own is None for own in found)

    def _raised(self, own: Sequence[Ring], floor: Paths) -> Paths:
        """Return a floor with what each kind of group pays at least alone."""
        for ring in own:
            least = [self._least(kind, ring) for kind in range(len(self.fabric.kinds))]
            load, wait = np.max(least, axis=0) - [len(ring.hops), 1]
            at = (0, ring.column)
            floor.s_per_byte[at] = max(floor.s_per_byte[at], load * UNIT_S)
            floor.latency_s[at] = max(floor.latency_s[at], wait * WAIT_UNIT_S)
        return floor

    def _search(
        self, own: tuple[Ring, ...], limits: Limits, find: Find, deadline: Deadline
    ) -> tuple[list[Order], bool]:
        """Return orders of all kinds of hosts together, and whether those are all."""
        kinds = range(len(self.fabric.kinds))
        found = [find(Question(kind, own, limits), deadline) for kind in kinds]
        orders = combined(own, self.fabric.kinds, [each.orders for each in found])
        return orders, all(each.is_all for each in found)

    def _least(self, kind: int, ring: Ring) -> tuple[int, int]:
        """Return what the groups of a ring pay at least on a kind of host, in units."""
        key = (kind, ring.hops, ring.inside, ring.out)
        if key not in self._alone:
            (goal,) = goals_of(self.fabric.kinds[kind], (ring,), (NO_LIMIT,))
            self._alone[key] = least_costs(goal, self._before[kind])
        return self._alone[key]

    def _goals(self, asked: Question) -> list[Goal]:
        """Return what orders are judged by, with what each goal is at least."""
        goals = goals_of(self.fabric.kinds[asked.kind], asked.own, asked.limits)
        return [
            replace(goal, least=self._least(asked.kind, ring))
            for goal, ring in zip(goals, asked.own, strict=True)
        ]

    def _front(self, asked: Question, deadline: Deadline) -> Found:
        """Return the orders of one kind of host that no other betters."""
        if asked not in self._fronts:
            known = self._known.get(asked[:2], [])
            self._fronts[asked] = best_orders(
                self._goals(asked), self._before[asked.kind], known, deadline
            )
        return self._fronts[asked]

    def _climb(self, asked: Question, _deadline: Deadline) -> Found:
        """Return orders of one kind of host to which swaps of GPUs lead."""
        goals = self._goals(asked)
        found = [climbed(goals, start) for start in self._starts]
        self._known[asked[:2]] = list(dict.fromkeys(found))
        return Found(tuple(self._known[asked[:2]]), False)

    @cached_property
    def _starts(self) -> list[Seats]:
        """Return the order as listed, and some by chance."""
        gpus = np.arange(self.fabric.gpus_per_host)
        chance = np.random.default_rng(0)
        starts = [gpus, *(chance.permutation(gpus) for _ in range(RESTARTS))]
        return [tuple(own.tolist()) for own in starts]


def _is_above(prices: Paths, floor: Paths) -> Bools:
    """Return which meshes have a group that pays more than the least there is."""
    pairs = (
        (prices.s_per_byte, floor.s_per_byte),
        (prices.latency_s, floor.latency_s),
    )
    above = [(own > least * (1 + FLOAT_ERROR)).any(axis=1) for own, least in pairs]
    return np.asarray(above[0] | above[1])
