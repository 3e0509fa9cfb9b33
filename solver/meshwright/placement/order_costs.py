"""Costs of groups by the order of GPUs on a host, and limits on those costs.

Above the limits no plan can be the best one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cpsat.group_cost import GpuOrder, GroupCost
from meshwright.deadline import Deadline
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.topology.fabric import HostOrders, Meshes, PathCosts
from meshwright.topology.groups import GROUPS, group_meshes, is_longest
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
"""The number of GPUs that share out the experts; None for models without experts."""


@dataclass(frozen=True)
class GroupTraffic:
    """Messages that the groups of one column of `PathCosts` send on a host."""

    column: int
    hops: tuple[tuple[int, int], ...]
    """Ranks that send to ranks: round their rings, or all to all."""
    hop_bytes: float
    """Bytes on each hop, per byte of the ring or sent by a member."""
    out_bytes: float
    """Bytes that leave the host, likewise."""
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
    """Tells which costs of groups leave room for a plan as good as the best one."""

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
