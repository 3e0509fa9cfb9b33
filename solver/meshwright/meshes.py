"""Meshes of given degrees: listed, priced and tested when they are first asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from meshwright.cost.arrays import Floats, Ints, take
from meshwright.degrees import factorisations, mesh_rows
from meshwright.job import Job
from meshwright.legality import mesh_rules
from meshwright.orders import Share, Worth
from meshwright.placement import Placements, Placer
from meshwright.rule import holding
from meshwright.spec.divisors import divisors
from meshwright.topology.groups import (
    GROUPS,
    floor_of_groups,
    price_groups,
    seen_by_kinds,
)
from meshwright.topology.paths import Fabric, Meshes, Order, Paths, Place, free_paths
from meshwright.topology.routed import RoutedFabric

MOST_LISTED = 20_000
"""Degrees on fabrics whose meshes are kept; a thousand are some 3 MiB."""


def enumerate_meshes(sizes: Sequence[int], degrees: Ints) -> Meshes:
    """Return every mesh of a cluster with given degrees, (meshes, axes, levels)."""
    left, meshes = degrees[None, :], np.ones((1, len(degrees), 0), dtype=np.int64)
    for size in sizes[:-1]:
        options = factorisations(size)
        options = options[(degrees % options == 0).all(axis=1)]
        row, option = np.nonzero((left[:, None] % options[None] == 0).all(axis=2))
        left = left[row] // options[option]
        meshes = np.concatenate([meshes[row], options[option][:, :, None]], axis=2)
    # What is left is for the last level, if it has that many.
    whole = left.prod(axis=1) == sizes[-1]
    return np.concatenate([meshes[whole], left[whole][:, :, None]], axis=2)


class Placed(NamedTuple):
    """The meshes of some degrees, one of each price."""

    start: int
    """Number of the first one; the others follow."""
    meshes: Meshes
    orders: list[Order]
    """Of each mesh: where its ranks sit on their hosts."""
    paths: Paths
    """What groups pay on each mesh, but for those of experts."""
    kind_paths: tuple[Paths, ...]
    """The same as each kind of GPU sees it."""
    bound: float
    """Ticks of plans on other orders, at least; infinite if those are too slow."""


class Budget(NamedTuple):
    """How slow plans may be to be of interest, and how hard to look for orders."""

    best: float
    """Ticks up to which plans are of interest."""
    ticks: Callable[[int, Share, Paths], Floats]
    """What plans of some degrees take at least, by what groups pay."""
    find: Callable[[Placer, Meshes, Share, Worth], list[Placements]]
    reach: float
    """Ticks up to which no plan is missed."""


AS_LISTED = Budget(
    -np.inf, lambda *own: np.zeros(len(own[-1].latency_s)), Placer.good, -np.inf
)
"""No order of GPUs but the one in which they are listed is of interest."""


class MeshTable:
    """The meshes that the rules allow, of the degrees that were asked for so far."""

    def __init__(self, job: Job) -> None:
        """Start with no meshes."""
        self.job = job
        self._known: dict[tuple[int, ...], tuple[float, Placed]] = {}
        self._latest: dict[int, Placed] = {}
        self._in_order: list[Placed] = []
        fabric = job.fabric
        self._placer = Placer(fabric) if isinstance(fabric, RoutedFabric) else None

    @property
    def has_choice(self) -> bool:
        """Return whether ranks may sit on their hosts in other orders than listed."""
        return self._placer is not None and self._placer.has_choice

    def open_bound(self, degree: int) -> float:
        """Return ticks of plans on orders that nobody looked at, at least.

        Infinite where none is left that is fast enough.
        """
        placed = self._latest.get(degree)
        return placed.bound if placed else np.inf

    def of(self, degree: int, degrees: Ints, budget: Budget) -> Placed:
        """Return the meshes of some degrees that may be worth it within a budget."""
        key = tuple(degrees.tolist())
        if key in self._known:
            reach, placed = self._known[key]
            if budget.reach <= reach or not self.has_choice:
                return placed
        placed = self._place(degree, degrees, budget)
        self._known[key] = budget.reach, placed
        self._latest[degree] = placed
        self._in_order.append(placed)
        return placed

    def _place(self, degree: int, degrees: Ints, budget: Budget) -> Placed:
        last = self._in_order[-1] if self._in_order else None
        start = last.start + len(last.meshes) if last else 0
        job = self.job
        has_experts = bool(job.spec.model.moe)
        if not (self.has_choice or job.kinds or has_mesh_rules(job)):
            meshes, paths = _listed(job.fabric, tuple(degrees.tolist()), has_experts)
            return Placed(start, meshes, [()] * len(meshes), paths, (), np.inf)
        meshes = legal_meshes(job, degrees)
        orders: list[Order] = [()] * len(meshes)
        bound = np.inf
        if self._placer and self.has_choice:
            find = partial(budget.find, self._placer)
            ticks = partial(budget.ticks, degree)
            found = _placements(job, find, meshes, budget.best, ticks)
            bound = min((own.bound for own in found), default=np.inf)
            meshes = meshes.repeat([len(own.orders) for own in found], axis=0)
            orders = [order for own in found for order in own.orders]
        ep = _one_expert(job, meshes)
        paths = price_placed(job.fabric, meshes, orders, ep)
        fabrics = [kind.fabric for kind in job.kinds]
        kinds = seen_by_kinds(fabrics, meshes, paths, ep)
        first = _first_of_equal_price(meshes, orders, (paths, *kinds), has_experts)
        rules = mesh_rules(job.spec, meshes)
        if rules:
            rows = mesh_rows(meshes, paths)
            first = first[holding(rules, job.spec, rows)[first]]
        orders = [orders[row] for row in first]
        own, seen = take(paths, first), take(kinds, first)
        return Placed(start, meshes[first], orders, own, seen, bound)

    def place(self, number: int) -> Place:
        """Return a mesh by its number."""
        starts = [placed.start for placed in self._in_order]
        placed = self._in_order[bisect_right(starts, number) - 1]
        own = number - placed.start
        return Place(placed.meshes[own], placed.orders[own])


def has_mesh_rules(job: Job) -> bool:
    """Return whether rules tell where axes may lie."""
    return bool(mesh_rules(job.spec, np.empty((0, 0, 0), dtype=np.int64)))


@lru_cache(maxsize=MOST_LISTED)
def _listed(
    fabric: Fabric, degrees: tuple[int, ...], has_experts: bool
) -> tuple[Meshes, Paths]:
    """Return one mesh of each price, where the order of GPUs is no matter.

    Many specs on one fabric, and solves of one spec with changes, share them.
    """
    meshes = enumerate_meshes(fabric.sizes, np.array(degrees))
    ep = np.ones(len(meshes), dtype=np.int64) if has_experts else None
    paths = price_groups(fabric, meshes, ep)
    first = _first_of_equal_price(meshes, [()] * len(meshes), (paths,), has_experts)
    return meshes[first], take(paths, first)


def _placements(
    job: Job,
    find: Callable[[Meshes, Share, Worth], list[Placements]],
    meshes: Meshes,
    best: float,
    ticks: Callable[[Share, Paths], Floats],
) -> list[Placements]:
    """Return where ranks may sit on each mesh, however experts are shared out."""
    moe = job.spec.model.moe
    shares: list[Share] = [*divisors(moe.n_experts)] if moe else [None]
    found = [find(meshes, ep, Worth(best, partial(ticks, ep))) for ep in shares]
    # An order that is no worse for any kind of group may fill one link with all.
    is_proven = job.spec.limits.max_link_utilisation is None
    result = []
    for same in zip(*found, strict=True):
        orders = dict.fromkeys(order for own in same for order in own.orders)
        bound = min(own.bound for own in same) if is_proven else -np.inf
        result.append(Placements(tuple(orders), bound))
    return result


def _one_expert(job: Job, meshes: Meshes) -> Ints | None:
    """Return that experts are not shared out, if there are any."""
    return np.ones(len(meshes), dtype=np.int64) if job.spec.model.moe else None


def price_placed(
    fabric: Fabric, meshes: Meshes, orders: Sequence[Order], ep: Ints | None
) -> Paths:
    """Return what groups pay on meshes, each with its ranks in its own order."""
    if not any(orders):
        return price_groups(fabric, meshes, ep)
    paths = free_paths(len(meshes), len(GROUPS))
    rows_of: dict[Order, list[int]] = {}
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
        paths = floor_of_groups(fabric, meshes)
    else:
        paths = price_groups(fabric, meshes)
    return meshes[holding(rules, job.spec, mesh_rows(meshes, paths))]


def _first_of_equal_price(
    meshes: Meshes,
    orders: Sequence[Order],
    every: tuple[Paths, ...],
    has_experts: bool,
) -> Ints:
    """Return the first mesh of each price, in order.

    Where experts lie depends on what tp, cp and data parallelism leave them, and on
    the order of GPUs.
    """
    columns: list[Floats | Ints] = []
    for paths in every:
        columns += [paths.s_per_byte, paths.latency_s]
    if has_experts:
        number = {order: i for i, order in enumerate(dict.fromkeys(orders))}
        seats = np.array([number[order] for order in orders], dtype=np.int64)
        columns += [meshes[:, :3].prod(axis=1), meshes[:, 3], seats[:, None]]
    first: dict[bytes, int] = {}
    for index, row in enumerate(np.concatenate(columns, axis=1)):
        first.setdefault(row.tobytes(), index)
    return np.array(list(first.values()), dtype=np.int64)
