"""Decides on which GPU of its host each rank sits, where GPUs are not all alike.

For one mesh that is a question of its own: a plan's time never falls when groups pay
more. So each mesh is listed once for every order of GPUs that no other one betters,
and the rest of the search does not know that there was a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshwright.cost.arrays import Bools, Floats, Ints, take
from meshwright.cpsat.climb import climbed
from meshwright.cpsat.goal import Goal, Seats
from meshwright.cpsat.seats import Found, best_orders, least_costs, listed_orders
from meshwright.topology.groups import EP, floor_of_groups, price_groups, views
from meshwright.topology.host_kind import HostKind
from meshwright.topology.paths import Meshes, Order, Paths
from meshwright.topology.rings import hops_of
from meshwright.topology.routed import RoutedFabric
from meshwright.topology.symmetry import before

MOST_GPUS = 16
"""GPUs of a host up to which orders are searched; above, ranks lie as listed."""

UNIT_S = 1e-18
"""Seconds per byte of a unit of load."""

WAIT_UNIT_S = 1e-9
"""Seconds of a unit of latency."""

MOST_UNITS = 2**50

FLOAT_ERROR = 1e-9
"""Share of a price by which two ways to add it up may differ."""

RESTARTS = 7
"""Orders by chance from which good ones are looked for, besides as listed."""

STEPS, LARGEST = 12, 64.0
"""Values of a cost that are tried, to see from where on plans are too slow.

Up to so many times the least.
"""

Limits = tuple[tuple[float, float], ...]
"""Of each ring: seconds per byte and latency, from where on plans are too slow."""

NO_LIMIT = (np.inf, np.inf)

Find = Callable[["Question"], Found]
"""How orders of one kind of host are found."""

Share = int | None
"""Among how many GPUs experts are shared out; None where there are none."""


@dataclass(frozen=True)
class Worth:
    """Which prices of groups leave a plan that may still be the best one."""

    best: float
    """Ticks of the best plan known."""
    ticks: Callable[[Paths], Floats]
    """What plans take at least."""

    def __call__(self, paths: Paths) -> Bools:
        """Return which prices are of interest."""
        return self.ticks(paths) <= self.best


@dataclass(frozen=True)
class Ring:
    """What the groups of one column of `Paths` do on a host: rings, or exchanges."""

    column: int
    hops: tuple[tuple[int, int], ...]
    inside: float
    """Bytes on each hop, and the part that leaves the host, per byte of the ring."""
    out: float


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
        for mesh in above[worth(take(floor, above))].tolist():
            own = tuple(_rings(self.fabric, meshes[[mesh]], ep))
            least = self._raised(own, take(floor, np.array([mesh])))
            if worth(least)[0]:
                limits = _limits(own, least, worth, 1 + self._has_many)
                orders, is_all = self._search(own, limits, find)
                bound = np.inf if is_all else float(worth.ticks(least)[0])
                result[mesh] = Placements(((), *orders), bound)
        return result

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
        self, own: tuple[Ring, ...], limits: Limits, find: Find
    ) -> tuple[list[Order], bool]:
        """Return orders of all kinds of hosts together, and whether those are all."""
        kinds = range(len(self.fabric.kinds))
        found = [find(Question(kind, own, limits)) for kind in kinds]
        orders = _combined(own, self.fabric.kinds, [each.orders for each in found])
        return orders, all(each.is_all for each in found)

    def _least(self, kind: int, ring: Ring) -> tuple[int, int]:
        """Return what the groups of a ring pay at least on a kind of host, in units."""
        key = (kind, ring.hops, ring.inside, ring.out)
        if key not in self._alone:
            (goal,) = _goals(self.fabric.kinds[kind], (ring,), (NO_LIMIT,))
            self._alone[key] = least_costs(goal, self._before[kind])
        return self._alone[key]

    def _goals(self, asked: Question) -> list[Goal]:
        """Return what orders are judged by, with what each goal is at least."""
        goals = _goals(self.fabric.kinds[asked.kind], asked.own, asked.limits)
        return [
            replace(goal, least=self._least(asked.kind, ring))
            for goal, ring in zip(goals, asked.own, strict=True)
        ]

    def _front(self, asked: Question) -> Found:
        """Return the orders of one kind of host that no other betters."""
        if asked not in self._fronts:
            known = self._known.get(asked[:2], [])
            self._fronts[asked] = best_orders(
                self._goals(asked), self._before[asked.kind], known
            )
        return self._fronts[asked]

    def _climb(self, asked: Question) -> Found:
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


def _rings(fabric: RoutedFabric, mesh: Meshes, ep: Share) -> list[Ring]:
    """Return what every kind of group does inside hosts, on one mesh."""
    found: dict[int, Ring] = {}
    for columns, view in views(mesh, None if ep is None else np.array([ep])):
        members = fabric.members(view)[0]
        for axis, column in enumerate(columns):
            if members[axis] > 1 and column not in found:
                is_exchange = column == EP
                hops = hops_of(fabric.inside(view[0]), axis, is_exchange)
                inside, out = fabric.passed(view, is_exchange)
                found[column] = Ring(
                    column, tuple(hops), float(inside[0, axis]), float(out[0, axis])
                )
    return list(found.values())


def _limits(own: Sequence[Ring], floor: Paths, worth: Worth, rounds: int) -> Limits:
    """Return from where on the price of each ring is too much, s per byte and s.

    A second round tells more exactly; what is listed hardly gains by that.
    """
    low = np.ones((len(own), 2))
    high = LARGEST * low
    for _ in range(rounds):
        steps = np.geomspace(low, high, STEPS)
        count = worth(_alone(own, floor, steps)).reshape(steps.shape).sum(axis=0)
        past = np.array([np.maximum(count - 1, 0), np.minimum(count, STEPS - 1)])
        low, high = np.take_along_axis(steps, past, axis=0)
    columns = [ring.column for ring in own]
    least = np.stack([floor.s_per_byte[0], floor.latency_s[0]], axis=1)[columns]
    limits = np.where(low < LARGEST, high * least, np.inf)
    return tuple((load, wait) for load, wait in limits.tolist())


def _alone(own: Sequence[Ring], floor: Paths, steps: Floats) -> Paths:
    """Return a floor with one price at a time raised, each by a number of factors.

    `steps` has shape (factors, rings, 2): of load and of latency.
    """
    trials = steps.size
    load, wait = (
        paths.repeat(trials, axis=0).reshape(*steps.shape, -1)
        for paths in (floor.s_per_byte, floor.latency_s)
    )
    for index, ring in enumerate(own):
        load[:, index, 0, ring.column] *= steps[:, index, 0]
        wait[:, index, 1, ring.column] *= steps[:, index, 1]
    return Paths(load.reshape(trials, -1), wait.reshape(trials, -1))


def _goals(kind: HostKind, own: tuple[Ring, ...], limits: Limits) -> list[Goal]:
    """Return what orders of the GPUs of a host are judged by, in whole units."""
    loads, latency_s = kind.tables
    waits = _units(latency_s, WAIT_UNIT_S)
    goals = []
    for ring, (load_limit, wait_limit) in zip(own, limits, strict=True):
        passed = _units(loads * ring.inside, UNIT_S)
        base = _units(kind.exits * ring.out, UNIT_S)
        most_load = len(ring.hops) * int(passed.max()) + int(base.max())
        most = (
            min(most_load, _whole(load_limit / UNIT_S) + len(ring.hops)),
            min(int(waits.max()), _whole(wait_limit / WAIT_UNIT_S)),
        )
        goals.append(Goal(ring.hops, passed, base, waits, most))
    return goals


def _whole(units: float) -> int:
    return int(min(units, MOST_UNITS)) + 1


def _units(amounts: Floats, unit: float) -> Ints:
    return np.rint(np.minimum(amounts / unit, MOST_UNITS)).astype(np.int64)


def _combined(
    own: Sequence[Ring],
    kinds: Sequence[HostKind],
    fronts: Sequence[tuple[Seats, ...]],
) -> list[Order]:
    """Return the orders of all kinds together: every step waits for the slowest."""
    known: dict[tuple[float, ...], Order] = {(0.0,) * (2 * len(own)): ()}
    for kind, orders in zip(kinds, fronts, strict=True):
        grown: dict[tuple[float, ...], Order] = {}
        for costs, order in known.items():
            for seats in orders:
                new = np.maximum(costs, _costs(own, replace(kind, order=seats)))
                grown.setdefault(tuple(new.tolist()), (*order, seats))
        known = {
            costs: order
            for costs, order in grown.items()
            if not any(_is_better(other, costs) for other in grown)
        }
    return list(known.values())


def _costs(own: Iterable[Ring], kind: HostKind) -> list[float]:
    costs = []
    for ring in own:
        load = ring.inside * kind.sends(ring.hops) + ring.out * kind.exits
        costs += [float(load.max()), kind.longest_us(ring.hops) * 1e-6]
    return costs


def _is_better(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
