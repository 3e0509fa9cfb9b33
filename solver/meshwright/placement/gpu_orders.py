"""What the orders of a host's GPUs are judged by: what each kind of group pays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cpsat.group_cost import GpuOrder, GroupCost
from meshwright.deadline import Deadline
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.topology.groups import EP, views
from meshwright.topology.host_kind import HostKind
from meshwright.topology.paths import Meshes, Order, Paths
from meshwright.topology.rings import hops_of
from meshwright.topology.routed import RoutedFabric

UNIT_S = 1e-18
"""Seconds per byte of a unit of load."""

WAIT_UNIT_S = 1e-9
"""Seconds of a unit of latency."""

MOST_UNITS = 2**50

STEPS, LARGEST = 12, 64.0
"""Values of a cost that are tried, to see from where on plans are too slow.

Up to so many times the least.
"""

Limits = tuple[tuple[float, float], ...]
"""Of each ring: seconds per byte and latency, from where on plans are too slow."""

NO_LIMIT = (np.inf, np.inf)

Share = int | None
"""Among how many GPUs experts are shared out; None where there are none."""


@dataclass(frozen=True)
class Worth:
    """Which prices of groups leave a plan that may still be the best one."""

    best: float
    """Ticks of the best plan known."""
    ticks: Callable[[Paths], Floats]
    """What plans take at least; infinite where there are none."""
    deadline: Deadline
    """When no more orders are looked for."""

    def __call__(self, paths: Paths) -> Bools:
        """Return which prices are of interest."""
        ticks = self.ticks(paths)
        return np.isfinite(ticks) & (ticks <= self.best)


@dataclass(frozen=True)
class Ring:
    """What the groups of one column of `Paths` do on a host: rings, or exchanges."""

    column: int
    hops: tuple[tuple[int, int], ...]
    inside: float
    """Bytes on each hop, and the part that leaves the host, per byte of the ring."""
    out: float


def rings_of(fabric: RoutedFabric, mesh: Meshes, ep: Share) -> list[Ring]:
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


def limits_of(own: Sequence[Ring], floor: Paths, worth: Worth, rounds: int) -> Limits:
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


def goals_of(kind: HostKind, own: tuple[Ring, ...], limits: Limits) -> list[GroupCost]:
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
        goals.append(GroupCost(ring.hops, passed, base, waits, most))
    return goals


def _whole(units: float) -> int:
    return int(min(units, MOST_UNITS)) + 1


def _units(amounts: Floats, unit: float) -> Ints:
    return np.rint(np.minimum(amounts / unit, MOST_UNITS)).astype(np.int64)


def combined(
    own: Sequence[Ring],
    kinds: Sequence[HostKind],
    fronts: Sequence[tuple[GpuOrder, ...]],
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
