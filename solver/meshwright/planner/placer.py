"""Chooses the GPU of each rank, where the GPUs of a host are not all alike.

The choice can be made for each mesh by itself: a plan's time never falls when groups
cost more. So every mesh is listed once for each Pareto-optimal order of GPUs, and the
rest of the search need not know that there was a choice.

Groups cost by the order of GPUs on a host; above limits on those costs no plan can be
the best one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshwright.cpsat.group_cost import GpuOrder, GroupCost, local_optimum
from meshwright.cpsat.order_model import (
    FoundOrders,
    least_costs,
    listed_orders,
    pareto_orders,
)
from meshwright.deadline import Deadline
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.topology.fabric import HostOrders, Meshes, PathCosts
from meshwright.topology.graph import rank_order_pairs
from meshwright.topology.groups import (
    GROUPS,
    group_meshes,
    is_longest,
    least_group_prices,
    price_groups,
)
from meshwright.topology.routed_fabric import HostKind, RoutedFabric, hops_of

LOAD_UNIT_S = 1e-18
"""Seconds per byte of one unit of load."""

WAIT_UNIT_S = 1e-9
"""Seconds of one unit of latency."""

MOST_UNITS = 2**50

Limits = tuple[tuple[float, float], ...]
"""For each kind of group, the s per byte and the latency of interest at most, s."""

NO_LIMIT = (np.inf, np.inf)

ExpertDegree = int | None
"""`Plan.expert_key`; None for models without experts."""


@dataclass(frozen=True)
class GroupTraffic:
    """Messages that the groups of one column of `PathCosts` send on a host."""

    column: int
    hops: tuple[tuple[int, int], ...]
    """Ranks that send to ranks: round their rings, or all to all."""
    hop_bytes: float
    """Bytes on each hop, per byte of the ring or sent by a member."""
    out_bytes: float
    """Bytes that leave the host, per byte of the ring or sent by a member."""
    wait_share: float = 1.0
    """How much of the latency inside the host counts in that of the group."""


def traffic_of(
    fabric: RoutedFabric, mesh: Meshes, ep: ExpertDegree
) -> list[GroupTraffic]:
    """Return the traffic of every kind of group inside hosts, on one mesh."""
    found: dict[int, GroupTraffic] = {}
    for columns, view in group_meshes(mesh, None if ep is None else np.array([ep])):
        members = fabric.members(view)[0]
        for axis, column in enumerate(columns):
            if members[axis] > 1 and column not in found:
                exchange = fabric.exchanging.get(GROUPS[column])
                hops = hops_of(fabric.inside(view[0]), axis, exchange is not None)
                inside, out = fabric.byte_shares(view, axis, exchange)
                found[column] = GroupTraffic(
                    column,
                    tuple(hops),
                    float(inside[0]),
                    float(out[0]),
                    _wait_share(fabric, view, axis, column),
                )
    return list(found.values())


def _wait_share(fabric: RoutedFabric, view: Meshes, axis: int, column: int) -> float:
    """Return the share of the hops of a ring that stay inside hosts, else 1."""
    size, members = int(view[0, axis].prod()), int(fabric.members(view)[0, axis])
    if is_longest(fabric, column):
        return 1.0
    return (size - size // members) / (size - 1)


def group_costs(
    kind: HostKind, traffic: tuple[GroupTraffic, ...], limits: Limits
) -> list[GroupCost]:
    """Return the costs by which orders of a host's GPUs compare, in whole units."""
    loads, latency_s = kind.tables
    waits = _units(latency_s, WAIT_UNIT_S)
    costs = []
    for group, (load_limit, wait_limit) in zip(traffic, limits, strict=True):
        per_hop = _units(loads * group.hop_bytes, LOAD_UNIT_S)
        base = _units(kind.exits * group.out_bytes, LOAD_UNIT_S)
        most_load = len(group.hops) * int(per_hop.max()) + int(base.max())
        most = (
            min(most_load, _units_above(load_limit / LOAD_UNIT_S) + len(group.hops)),
            min(
                int(waits.max()),
                _units_above(wait_limit / group.wait_share / WAIT_UNIT_S),
            ),
        )
        costs.append(GroupCost(group.hops, per_hop, base, waits, most))
    return costs


def _units_above(units: float) -> int:
    return int(min(units, MOST_UNITS)) + 1


def _units(amounts: Floats, unit: float) -> Ints:
    return np.rint(np.minimum(amounts / unit, MOST_UNITS)).astype(np.int64)


def combined_orders(
    traffic: Sequence[GroupTraffic],
    kinds: Sequence[HostKind],
    fronts: Sequence[tuple[GpuOrder, ...]],
) -> list[HostOrders]:
    """Return the Pareto-optimal combinations of the orders of all kinds of hosts.

    The cost of a combination is that of its slowest host: every step waits for it.
    """
    known: dict[tuple[float, ...], HostOrders] = {(0.0,) * (2 * len(traffic)): ()}
    for kind, orders in zip(kinds, fronts, strict=True):
        grown: dict[tuple[float, ...], HostOrders] = {}
        for costs, combination in known.items():
            for order in orders:
                slowest = np.maximum(costs, _costs(traffic, replace(kind, order=order)))
                grown.setdefault(tuple(slowest.tolist()), (*combination, order))
        known = {
            costs: combination
            for costs, combination in grown.items()
            if not any(_dominates(other, costs) for other in grown)
        }
    return list(known.values())


def _costs(traffic: Iterable[GroupTraffic], kind: HostKind) -> list[float]:
    """Return load and latency of every kind of group, s per byte and s."""
    costs = []
    for group in traffic:
        load = group.hop_bytes * kind.sends(group.hops) + group.out_bytes * kind.exits
        costs += [float(load.max()), kind.longest_us(group.hops) * 1e-6]
    return costs


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


STEPS, LARGEST = 12, 64.0
"""Factors tried for each cost: so many, from 1 up to `LARGEST` times the least."""


@dataclass(frozen=True)
class Cutoff:
    """Tests whether costs of groups leave room for a plan as good as the best one."""

    best: float
    """Ticks of the best plan known."""
    ticks: Callable[[PathCosts], Floats]
    """Lower bound on the ticks of plans at these costs; infinite if there are none."""
    deadline: Deadline
    """The time after which no more orders are searched."""

    def keeps(self, paths: PathCosts) -> Bools:
        """Return for which costs the lower bound does not exceed the best plan."""
        ticks = self.ticks(paths)
        return np.isfinite(ticks) & (ticks <= self.best)


def limits_of(
    traffic: Sequence[GroupTraffic], floor: PathCosts, cutoff: Cutoff, rounds: int
) -> Limits:
    """Return the costs above which each kind of group alone rules out the best plan.

    Every round narrows the limits, which pays only where CP-SAT searches the orders.
    """
    low = np.ones((len(traffic), 2))
    high = LARGEST * low
    for _ in range(rounds):
        factors = np.geomspace(low, high, STEPS)
        kept = cutoff.keeps(_raised_alone(traffic, floor, factors))
        count = kept.reshape(factors.shape).sum(axis=0)
        bracket = np.array([np.maximum(count - 1, 0), np.minimum(count, STEPS - 1)])
        low, high = np.take_along_axis(factors, bracket, axis=0)
    columns = [group.column for group in traffic]
    least = np.stack([floor.s_per_byte[0], floor.latency_s[0]], axis=1)[columns]
    limits = np.where(low < LARGEST, high * least, np.inf)
    return tuple((s_per_byte, wait_s) for s_per_byte, wait_s in limits.tolist())


def _raised_alone(
    traffic: Sequence[GroupTraffic], floor: PathCosts, factors: Floats
) -> PathCosts:
    """Return the floor with one cost at a time raised by each of its factors.

    `factors` has shape (factors, groups, 2): those of load and of latency.
    """
    trials = factors.size
    load, wait = (
        costs.repeat(trials, axis=0).reshape(*factors.shape, -1)
        for costs in (floor.s_per_byte, floor.latency_s)
    )
    for index, group in enumerate(traffic):
        load[:, index, 0, group.column] *= factors[:, index, 0]
        wait[:, index, 1, group.column] *= factors[:, index, 1]
    return PathCosts(load.reshape(trials, -1), wait.reshape(trials, -1))


MOST_GPUS = 16
"""GPUs of a host up to which orders are searched; above, ranks follow the list."""

FLOAT_ERROR = 1e-9
"""Relative error of a cost: two ways to add it up may differ by so much."""

RESTARTS = 7
"""Random orders from which local search starts, besides the list."""


class HostSearch(NamedTuple):
    """A search for orders of one kind of host: its groups, and their cost limits."""

    kind: int
    traffic: tuple[GroupTraffic, ...]
    limits: Limits


Find = Callable[[HostSearch, Deadline], FoundOrders]
"""Finds orders of one kind of host."""


@dataclass(frozen=True)
class Placements:
    """The orders of GPUs that may be worth it on one mesh."""

    orders: tuple[HostOrders, ...]
    bound: float = np.inf
    """Lower bound on plans with any other order, ticks; infinite if too slow."""


LISTED = Placements(((),))
"""No order but that of the list."""


class Placer:
    """Finds placements on one fabric, and remembers what it found."""

    def __init__(self, fabric: RoutedFabric) -> None:
        """Keep the fabric; nothing is searched yet."""
        self.fabric = fabric
        self._least: dict[tuple[object, ...], tuple[int, int]] = {}
        self._proven: dict[HostSearch, FoundOrders] = {}
        self._good: dict[tuple[int, tuple[GroupTraffic, ...]], list[GpuOrder]] = {}

    @cached_property
    def _rank_orders(self) -> list[list[tuple[int, int]]]:
        """Return, for each kind of host, pairs of GPUs in the order of their ranks."""
        return [
            rank_order_pairs(kind.routes.graph, kind.routes.gpus, kind.way_out)
            for kind in self.fabric.kinds
        ]

    @cached_property
    def has_choice(self) -> bool:
        """Return whether the order of GPUs matters, and can be searched."""
        gpus = self.fabric.gpus_per_host
        pairs = gpus * (gpus - 1) // 2
        is_uneven = any(len(ordered) < pairs for ordered in self._rank_orders)
        return gpus <= MOST_GPUS and is_uneven

    def placements(
        self, meshes: Meshes, ep: ExpertDegree, cutoff: Cutoff
    ) -> list[Placements]:
        """Return the orders that may hold a plan as good as the best one known.

        The order of the list is always among those of a mesh, and the only one where
        no order could make any group cost less.
        """
        return self._placements(meshes, ep, cutoff, self._proven_orders)

    def quick_placements(
        self, meshes: Meshes, ep: ExpertDegree, cutoff: Cutoff
    ) -> list[Placements]:
        """Return orders from local search: soon found, better than the list."""
        if not self._needs_search:
            return [LISTED] * len(meshes)
        return self._placements(meshes, ep, cutoff, self._good_orders)

    def _placements(
        self, meshes: Meshes, ep: ExpertDegree, cutoff: Cutoff, find: Find
    ) -> list[Placements]:
        result = [LISTED] * len(meshes)
        if not self.has_choice:
            return result
        share = None if ep is None else np.full(len(meshes), ep)
        floor = least_group_prices(self.fabric, meshes, share)
        listed = price_groups(self.fabric, meshes, share)
        above = np.flatnonzero(_is_above(listed, floor))
        for mesh in above[cutoff.keeps(floor.take(above))].tolist():
            traffic = tuple(traffic_of(self.fabric, meshes[[mesh]], ep))
            least = self._raised(traffic, floor.take(np.array([mesh])))
            if cutoff.keeps(least)[0]:
                result[mesh] = self._on_mesh(traffic, least, cutoff, find)
        return result

    def _on_mesh(
        self,
        traffic: tuple[GroupTraffic, ...],
        least: PathCosts,
        cutoff: Cutoff,
        find: Find,
    ) -> Placements:
        """Return the orders of one mesh; once the time is up, that of the list."""
        orders: list[HostOrders] = []
        is_all = False
        if not cutoff.deadline.has_passed:
            limits = limits_of(traffic, least, cutoff, 1 + self._needs_search)
            orders, is_all = self._search(traffic, limits, find, cutoff.deadline)
        bound = np.inf if is_all else float(cutoff.ticks(least)[0])
        return Placements(((), *orders), bound)

    @cached_property
    def _needs_search(self) -> bool:
        """Return whether some kind of host has too many orders to list them."""
        gpus = self.fabric.gpus_per_host
        listed = [listed_orders(gpus, ordered, (0,)) for ordered in self._rank_orders]
        return any(orders is None for orders in listed)

    def _raised(self, traffic: Sequence[GroupTraffic], floor: PathCosts) -> PathCosts:
        """Return a floor raised to the least cost of each kind of group by itself."""
        kinds = range(len(self.fabric.kinds))
        for group in traffic:
            least = [self._least_costs(kind, group) for kind in kinds]
            load, wait = np.max(least, axis=0) - [len(group.hops), 1]
            at = (0, group.column)
            floor.s_per_byte[at] = max(floor.s_per_byte[at], load * LOAD_UNIT_S)
            wait_s = wait * WAIT_UNIT_S * group.wait_share
            floor.latency_s[at] = max(floor.latency_s[at], wait_s)
        return floor

    def _search(
        self,
        traffic: tuple[GroupTraffic, ...],
        limits: Limits,
        find: Find,
        deadline: Deadline,
    ) -> tuple[list[HostOrders], bool]:
        """Return orders for all kinds of hosts together, and whether these are all."""
        kinds = range(len(self.fabric.kinds))
        found = [find(HostSearch(kind, traffic, limits), deadline) for kind in kinds]
        fronts = [front.orders for front in found]
        orders = combined_orders(traffic, self.fabric.kinds, fronts)
        return orders, all(front.is_all for front in found)

    def _least_costs(self, kind: int, group: GroupTraffic) -> tuple[int, int]:
        """Return the least load and latency of a group on a kind of host, in units."""
        key = (kind, group.hops, group.hop_bytes, group.out_bytes)
        if key not in self._least:
            (cost,) = group_costs(self.fabric.kinds[kind], (group,), (NO_LIMIT,))
            self._least[key] = least_costs(cost, self._rank_orders[kind])
        return self._least[key]

    def _costs(self, asked: HostSearch) -> list[GroupCost]:
        """Return the costs of the groups in question, with the least of each."""
        kind = self.fabric.kinds[asked.kind]
        costs = group_costs(kind, asked.traffic, asked.limits)
        return [
            replace(cost, least=self._least_costs(asked.kind, group))
            for cost, group in zip(costs, asked.traffic, strict=True)
        ]

    def _proven_orders(self, asked: HostSearch, deadline: Deadline) -> FoundOrders:
        """Return the Pareto-optimal orders of one kind of host."""
        if asked not in self._proven:
            known = self._good.get(asked[:2], [])
            self._proven[asked] = pareto_orders(
                self._costs(asked), self._rank_orders[asked.kind], known, deadline
            )
        return self._proven[asked]

    def _good_orders(self, asked: HostSearch, _deadline: Deadline) -> FoundOrders:
        """Return the local optima of one kind of host, from several starts."""
        costs = self._costs(asked)
        found = [local_optimum(costs, start) for start in self._starts]
        self._good[asked[:2]] = list(dict.fromkeys(found))
        return FoundOrders(tuple(self._good[asked[:2]]), False)

    @cached_property
    def _starts(self) -> list[GpuOrder]:
        """Return the order of the list, and some random ones."""
        gpus = np.arange(self.fabric.gpus_per_host)
        random = np.random.default_rng(0)
        starts = [gpus, *(random.permutation(gpus) for _ in range(RESTARTS))]
        return [tuple(order.tolist()) for order in starts]


def _is_above(prices: PathCosts, floor: PathCosts) -> Bools:
    """Return which meshes have a group that costs more than its lower bound."""
    slack = 1 + FLOAT_ERROR
    is_loaded = (prices.s_per_byte > floor.s_per_byte * slack).any(axis=1)
    is_late = (prices.latency_s > floor.latency_s * slack).any(axis=1)
    return np.asarray(is_loaded | is_late)
