"""Meshes of given degrees: listed, priced and tested when they are first asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from meshwright.cost.job import Job
from meshwright.deadline import NEVER, Deadline
from meshwright.lattice.degrees import mesh_rows
from meshwright.lattice.mesh_enumeration import (
    Key,
    enumerate_meshes,
    first_of_equal,
    listed,
)
from meshwright.placement.cutoff import Cutoff
from meshwright.placement.order_costs import ExpertDegree
from meshwright.placement.placer import Placements, Placer
from meshwright.plans.columns import Floats, Ints, take
from meshwright.plans.rule import holding
from meshwright.rules.legality import mesh_rules
from meshwright.topology.fabric import (
    Fabric,
    HostOrders,
    Meshes,
    PathCosts,
    Place,
    free_paths,
)
from meshwright.topology.groups import (
    GROUPS,
    least_group_prices,
    price_groups,
    price_groups_by_gpu_kind,
)
from meshwright.topology.routed_fabric import RoutedFabric


class Placed(NamedTuple):
    """The meshes of some degrees, one of each price."""

    start: int
    """Number of the first one; the others follow."""
    meshes: Meshes
    orders: list[HostOrders]
    """Of each mesh: where its ranks sit on their hosts."""
    paths: PathCosts
    """What groups pay on each mesh."""
    kind_paths: tuple[PathCosts, ...]
    """The same as each kind of GPU sees it."""
    bound: float
    """Ticks of plans on other orders, at least; infinite if those are too slow."""


FindAll = Callable[[Placer, Meshes, ExpertDegree, Cutoff], list[Placements]]


class Budget(NamedTuple):
    """How slow plans may be to be of interest, and how hard to look for orders."""

    best: float
    """Ticks up to which plans are of interest."""
    ticks: Callable[[int, ExpertDegree, PathCosts], Floats]
    """What plans of some degrees take at least, by what groups pay."""
    find: FindAll
    reach: float
    """Ticks up to which no plan is missed."""
    deadline: Deadline = NEVER


AS_LISTED = Budget(
    -np.inf,
    lambda *own: np.zeros(len(own[-1].latency_s)),
    Placer.quick_placements,
    -np.inf,
)
"""No order of GPUs but the one in which they are listed is of interest."""


class MeshTable:
    """The meshes that the rules allow, of the degrees that were asked for so far."""

    def __init__(self, job: Job) -> None:
        """Start with no meshes."""
        self.job = job
        self._known: dict[Key, tuple[float, Placed]] = {}
        self._in_order: list[Placed] = []
        fabric = job.fabric
        self._placer = Placer(fabric) if isinstance(fabric, RoutedFabric) else None

    @property
    def has_choice(self) -> bool:
        """Return whether ranks may sit on their hosts in other orders than listed."""
        return self._placer is not None and self._placer.has_choice

    def open_bound(self, key: Key) -> float:
        """Return ticks of plans on orders that nobody looked at, at least.

        Infinite where none is left that is fast enough.
        """
        return self._known[key][1].bound if key in self._known else np.inf

    def of(self, asked: Sequence[tuple[int, Key]], budget: Budget) -> list[Placed]:
        """Return the meshes of some degrees that may be worth it within a budget.

        Each comes with the number by which the budget knows it.
        """
        new = [own for own in asked if not self._is_known(own[1], budget)]
        if self.has_choice or self.job.kinds or has_mesh_rules(self.job):
            for number, key in new:
                self._keep(key, budget, self._placed(number, key, budget))
        else:
            every = listed(self.job.fabric, [key for _, key in new])
            for (_, key), (meshes, paths) in zip(new, every, strict=True):
                orders: list[HostOrders] = [()] * len(meshes)
                placed = Placed(self._count, meshes, orders, paths, (), np.inf)
                self._keep(key, budget, placed)
        return [self._known[key][1] for _, key in asked]

    @property
    def _count(self) -> int:
        """Return how many meshes there are so far."""
        last = self._in_order[-1] if self._in_order else None
        return last.start + len(last.meshes) if last else 0

    def _keep(self, key: Key, budget: Budget, placed: Placed) -> None:
        self._known[key] = budget.reach, placed
        self._in_order.append(placed)

    def _is_known(self, key: Key, budget: Budget) -> bool:
        if key not in self._known:
            return False
        return not self.has_choice or budget.reach <= self._known[key][0]

    def _placed(self, number: int, key: Key, budget: Budget) -> Placed:
        """Return what rules and orders leave of the meshes of some degrees."""
        job, (degrees, share) = self.job, key
        meshes = legal_meshes(job, np.array(degrees))
        orders: list[HostOrders] = [()] * len(meshes)
        bound = np.inf
        if self._placer and self.has_choice:
            ticks = partial(budget.ticks, number, share)
            cutoff = Cutoff(budget.best, ticks, budget.deadline)
            found = budget.find(self._placer, meshes, share, cutoff)
            bound = min((own.bound for own in found), default=np.inf)
            if job.spec.limits.max_link_utilisation is not None:
                # An order that is no worse for any group may fill one link with all.
                bound = -np.inf
            meshes = meshes.repeat([len(own.orders) for own in found], axis=0)
            orders = [order for own in found for order in own.orders]
        ep = None if share is None else np.full(len(meshes), share)
        paths = price_placed(job.fabric, meshes, orders, ep)
        fabrics = [kind.fabric for kind in job.kinds]
        kinds = price_groups_by_gpu_kind(fabrics, meshes, paths, ep)
        prices = [(own.s_per_byte, own.latency_s) for own in (paths, *kinds)]
        first = first_of_equal(column for own in prices for column in own)
        rules = mesh_rules(job.spec, meshes)
        if rules:
            rows = mesh_rows(meshes, paths)
            first = first[holding(rules, job.spec, rows)[first]]
        orders = [orders[row] for row in first]
        own, seen = paths.take(first), take(kinds, first)
        return Placed(self._count, meshes[first], orders, own, seen, bound)

    def place(self, number: int) -> Place:
        """Return a mesh by its number."""
        starts = [placed.start for placed in self._in_order]
        placed = self._in_order[bisect_right(starts, number) - 1]
        own = number - placed.start
        return Place(placed.meshes[own], placed.orders[own])


def has_mesh_rules(job: Job) -> bool:
    """Return whether rules tell where axes may lie."""
    return bool(mesh_rules(job.spec, np.empty((0, 0, 0), dtype=np.int64)))


def price_placed(
    fabric: Fabric, meshes: Meshes, orders: Sequence[HostOrders], ep: Ints | None
) -> PathCosts:
    """Return what groups pay on meshes, each with its ranks in its own order."""
    if not any(orders):
        return price_groups(fabric, meshes, ep)
    paths = free_paths(len(meshes), len(GROUPS))
    rows_of: dict[HostOrders, list[int]] = {}
    for row, order in enumerate(orders):
        rows_of.setdefault(order, []).append(row)
    for order, rows in rows_of.items():
        experts = None if ep is None else ep[rows]
        own = price_groups(fabric.placed(order), meshes[rows], experts)
        paths.s_per_byte[rows], paths.latency_s[rows] = own.s_per_byte, own.latency_s
    return paths


def legal_meshes(job: Job, degrees: Ints) -> Meshes:
    """Return the meshes of some degrees that rules may allow, in the best order."""
    meshes, fabric = enumerate_meshes(job.fabric.sizes, degrees), job.fabric
    rules = mesh_rules(job.spec, meshes)
    if not rules:
        return meshes
    if isinstance(fabric, RoutedFabric):
        paths = least_group_prices(fabric, meshes)
    else:
        paths = price_groups(fabric, meshes)
    return meshes[holding(rules, job.spec, mesh_rows(meshes, paths))]
