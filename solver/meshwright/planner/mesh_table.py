"""Meshes of given degrees: listed, priced and tested when they are first asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from meshwright.cost.job import Job
from meshwright.deadline import NEVER, Deadline
from meshwright.planner.degrees import (
    Key,
    enumerate_meshes,
    first_of_equal,
    listed,
    mesh_rows,
)
from meshwright.planner.placer import Cutoff, ExpertDegree, Placements, Placer
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


class PricedMeshes(NamedTuple):
    """The meshes of one key, one mesh of each price."""

    start: int
    """Number of the first mesh in the table; the others follow."""
    meshes: Meshes
    orders: list[HostOrders]
    """GPU order of each mesh: which GPU of its host each rank has."""
    paths: PathCosts
    """Seconds per byte and latency of the groups of each mesh."""
    kind_paths: tuple[PathCosts, ...]
    """The same for each kind of GPU, between GPUs of that kind."""
    bound: float
    """Lower bound on the ticks of plans with any other GPU order; inf if too slow."""


FindAll = Callable[[Placer, Meshes, ExpertDegree, Cutoff], list[Placements]]


class OrderSearch(NamedTuple):
    """The limits of a search of GPU orders: step time and thoroughness."""

    best: float
    """Ticks of the best plan known; slower plans are of no interest."""
    ticks: Callable[[int, ExpertDegree, PathCosts], Floats]
    """Lower bound on step time for an index of degrees, ep, and costs of paths."""
    find: FindAll
    reach: float
    """Ticks up to which `find` misses no plan."""
    deadline: Deadline = NEVER


class MeshTable:
    """The meshes that the rules allow, priced when a key is first asked for."""

    def __init__(self, job: Job) -> None:
        """Start with no meshes."""
        self.job = job
        self._known: dict[Key, tuple[float, PricedMeshes]] = {}
        self._in_order: list[PricedMeshes] = []
        fabric = job.fabric
        self._placer = Placer(fabric) if isinstance(fabric, RoutedFabric) else None

    @property
    def has_choice(self) -> bool:
        """Return whether the order of GPUs on a host is a choice."""
        return self._placer is not None and self._placer.has_choice

    def open_bound(self, key: Key) -> float:
        """Return a lower bound on the ticks of plans with GPU orders not looked at.

        It is infinite where every order left is too slow.
        """
        return self._known[key][1].bound if key in self._known else np.inf

    def meshes_of(
        self, wanted: Sequence[tuple[int, Key]], search: OrderSearch | None
    ) -> list[PricedMeshes]:
        """Return the meshes of some keys, each given with its index of degrees.

        Without a search, the GPUs of a host keep the order in which they are listed.
        """
        new = [(degree, key) for degree, key in wanted if not self._has(key, search)]
        if self.has_choice or self.job.gpu_kinds or has_mesh_rules(self.job):
            for degree, key in new:
                self._keep(key, search, self._price(degree, key, search))
        else:
            every = listed(self.job.fabric, [key for _, key in new])
            for (_, key), (meshes, paths) in zip(new, every, strict=True):
                orders: list[HostOrders] = [()] * len(meshes)
                priced = PricedMeshes(self._count, meshes, orders, paths, (), np.inf)
                self._keep(key, search, priced)
        return [self._known[key][1] for _, key in wanted]

    @property
    def _count(self) -> int:
        """Return the number of meshes in the table."""
        last = self._in_order[-1] if self._in_order else None
        return last.start + len(last.meshes) if last else 0

    def _keep(self, key: Key, search: OrderSearch | None, priced: PricedMeshes) -> None:
        self._known[key] = search.reach if search else -np.inf, priced
        self._in_order.append(priced)

    def _has(self, key: Key, search: OrderSearch | None) -> bool:
        """Return whether the meshes of a key were searched as far as asked."""
        if key not in self._known:
            return False
        if search is None or not self.has_choice:
            return True
        return search.reach <= self._known[key][0]

    def _price(self, degree: int, key: Key, search: OrderSearch | None) -> PricedMeshes:
        """Return the legal meshes of a key, in every GPU order that may be worth it."""
        job, (degrees, share) = self.job, key
        meshes = legal_meshes(job, np.array(degrees))
        orders: list[HostOrders] = [()] * len(meshes)
        bound = np.inf
        if search and self._placer and self.has_choice:
            ticks = partial(search.ticks, degree, share)
            cutoff = Cutoff(search.best, ticks, search.deadline)
            found = search.find(self._placer, meshes, share, cutoff)
            bound = min((placements.bound for placements in found), default=np.inf)
            if job.spec.limits.max_link_utilisation is not None:
                # An order that is no worse for any group may still load one link more.
                bound = -np.inf
            meshes = meshes.repeat([len(on_mesh.orders) for on_mesh in found], axis=0)
            orders = [order for on_mesh in found for order in on_mesh.orders]
        ep = None if share is None else np.full(len(meshes), share)
        paths = price_placed(job.fabric, meshes, orders, ep)
        fabrics = [kind.fabric for kind in job.gpu_kinds]
        kind_paths = price_groups_by_gpu_kind(fabrics, meshes, paths, ep)
        every = (paths, *kind_paths)
        first = first_of_equal(
            column for p in every for column in (p.s_per_byte, p.latency_s)
        )
        rules = mesh_rules(job.spec, meshes)
        if rules:
            rows = mesh_rows(meshes, paths)
            first = first[holding(rules, job.spec, rows)[first]]
        orders = [orders[row] for row in first]
        paths, kind_paths = paths.take(first), take(kind_paths, first)
        return PricedMeshes(
            self._count, meshes[first], orders, paths, kind_paths, bound
        )

    def place(self, number: int) -> Place:
        """Return a mesh by its number."""
        starts = [priced.start for priced in self._in_order]
        priced = self._in_order[bisect_right(starts, number) - 1]
        index = number - priced.start
        return Place(priced.meshes[index], priced.orders[index])


def has_mesh_rules(job: Job) -> bool:
    """Return whether some rule depends on the mesh, not only on its degrees."""
    return bool(mesh_rules(job.spec, np.empty((0, 0, 0), dtype=np.int64)))


def price_placed(
    fabric: Fabric, meshes: Meshes, orders: Sequence[HostOrders], ep: Ints | None
) -> PathCosts:
    """Return the path costs of meshes, each with its GPU order."""
    if not any(orders):
        return price_groups(fabric, meshes, ep)
    paths = free_paths(len(meshes), len(GROUPS))
    rows_of: dict[HostOrders, list[int]] = {}
    for row, order in enumerate(orders):
        rows_of.setdefault(order, []).append(row)
    for order, rows in rows_of.items():
        experts = None if ep is None else ep[rows]
        ordered = price_groups(fabric.placed(order), meshes[rows], experts)
        paths.s_per_byte[rows] = ordered.s_per_byte
        paths.latency_s[rows] = ordered.latency_s
    return paths


def legal_meshes(job: Job, degrees: Ints) -> Meshes:
    """Return the meshes of given degrees that the rules allow in some GPU order."""
    meshes, fabric = enumerate_meshes(job.fabric.sizes, degrees), job.fabric
    rules = mesh_rules(job.spec, meshes)
    if not rules:
        return meshes
    if isinstance(fabric, RoutedFabric):
        paths = least_group_prices(fabric, meshes)
    else:
        paths = price_groups(fabric, meshes)
    return meshes[holding(rules, job.spec, mesh_rows(meshes, paths))]
