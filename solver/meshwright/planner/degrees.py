"""Degrees of axes and the meshes that have them, over all levels of the topology."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshwright.cost.job import Job
from meshwright.deadline import NEVER, Deadline
from meshwright.planner.placer import Cutoff, ExpertDegree, Placements, Placer
from meshwright.plans.columns import Bools, Floats, Ints, take
from meshwright.plans.rule import holding
from meshwright.plans.skeletons import Skeletons, plain_columns
from meshwright.rules.legality import (
    degree_rules,
    framework_degree_rules,
    rare_mesh_rules,
)
from meshwright.spec.base import divisors
from meshwright.spec.plan_fields import AXES
from meshwright.topology.fabric import (
    Fabric,
    HostOrders,
    Meshes,
    PathCosts,
    Place,
    free_paths,
    is_inside_nodes,
)
from meshwright.topology.groups import (
    GROUPS,
    TP,
    least_group_prices,
    loads_of_meshes,
    price_groups,
    price_groups_by_gpu_kind,
)
from meshwright.topology.routed_fabric import RoutedFabric

MOST_AT_ONCE = 1_000_000
"""Degrees grown at once by one more level, most of which may be equal."""

MOST_LISTED = 10_000
"""Keys per fabric whose meshes are cached; a thousand take 4 MiB on three levels."""

MOST_FABRICS = 4

AT_ONCE = 64
"""Keys enumerated at once: more save little time, and take memory."""

Key = tuple[tuple[int, ...], ExpertDegree]
"""Degrees of the axes, and the expert-parallel degree if the model has experts."""


def legal_degrees(job: Job, deadline: Deadline = NEVER) -> tuple[Ints, Ints]:
    """Return the degrees that the rules allow, and how many meshes have them.

    Raises:
        OutOfTime: there are too many to list them in time.
    """
    spec = job.spec
    inherited = [rule for rule in framework_degree_rules(spec) if rule.is_inherited]
    degrees, copies = enumerate_degrees(
        job.fabric.sizes,
        spec.tp_levels,
        lambda grown: holding(inherited, spec, degree_rows(grown)),
        deadline,
    )
    legal = holding(degree_rules(spec), spec, degree_rows(degrees))
    return degrees[legal], copies[legal]


def enumerate_degrees(
    sizes: Sequence[int],
    inside: int | None = None,
    keep: Callable[[Ints], Bools] | None = None,
    deadline: Deadline = NEVER,
) -> tuple[Ints, Ints]:
    """Return all degrees, (degrees, axes), and the number of meshes of each.

    Levels are added one after another; meshes with equal degrees so far are counted,
    not listed. After each level `keep` says which degrees to go on with. TP groups lie
    on `inside` levels as far as they can; None counts every mesh.

    Raises:
        OutOfTime: there are too many to list them in time.
    """
    known = divisors(int(np.prod(sizes)))
    degrees = np.ones((1, len(AXES)), dtype=np.int64)
    copies = np.ones(1, dtype=np.int64)
    node = math.prod(sizes[:inside])
    for level, size in enumerate(sizes):
        options = factorisations(size)
        starts = range(0, len(degrees), max(MOST_AT_ONCE // len(options), 1))
        every: Ints = np.ones((0, len(AXES)), dtype=np.int64)
        counts: Floats = np.zeros(0)
        for start in starts:
            if start:
                deadline.check()
            part = slice(start, start + starts.step)
            grown = (degrees[part, None] * options[None]).reshape(-1, len(AXES))
            every = np.concatenate([every, grown])
            meshes = np.repeat(copies[part], len(options))
            if inside is not None and level >= inside:
                # A group that grows by what its node might hold has none of its meshes.
                before = np.repeat(degrees[part, TP], len(options))
                meshes *= np.gcd(before, node) == np.gcd(grown[:, TP], node)
            counts = np.append(counts, meshes)
            index = np.searchsorted(known, every).T
            code = np.ravel_multi_index(tuple(index), (len(known),) * len(AXES))
            _, first, number = np.unique(code, return_index=True, return_inverse=True)
            every = every[first]
            counts = np.asarray(np.bincount(number, weights=counts), dtype=np.float64)
        degrees, copies = every, counts.astype(np.int64)
        if keep is not None:
            mask = keep(degrees)
            degrees, copies = degrees[mask], copies[mask]
    return degrees, copies


@cache
def factorisations(size: int) -> Ints:
    """Return the ordered factorisations of a level over the axes, (options, axes).

    Inner axes get the largest factors first, so that the first factorisations are the
    ones that people write.
    """
    return np.array(list(_factorisations(size, len(AXES))), dtype=np.int64)


def _factorisations(size: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(size,)]
    rests = (
        ((divisor,), _factorisations(size // divisor, parts - 1))
        for divisor in reversed(divisors(size))
    )
    pairs = itertools.chain.from_iterable(
        itertools.product([first], rest) for first, rest in rests
    )
    return [first + rest for first, rest in pairs]


def degree_rows(degrees: Ints) -> Skeletons:
    """Return plain skeletons with these degrees, for rules that ignore links."""
    return mesh_rows(degrees[:, :, None], free_paths(len(degrees), len(GROUPS)))


def mesh_rows(meshes: Meshes, paths: PathCosts) -> Skeletons:
    """Return plain skeletons with the degrees of meshes, for rules on meshes."""
    degrees = dict(zip(AXES, meshes.prod(axis=2).T, strict=True))
    columns = plain_columns(len(meshes)) | degrees
    return Skeletons(**columns, paths=paths, mesh=np.arange(len(meshes)))


def enumerate_meshes(
    sizes: Sequence[int], degrees: Ints, inside: int | None = None
) -> Meshes:
    """Return every mesh of a cluster with given degrees, (meshes, axes, levels).

    TP groups lie on `inside` levels as far as they can; None returns every mesh.
    """
    return _every_mesh(sizes, degrees[None], inside)[0]


def _every_mesh(
    sizes: Sequence[int], degrees: Ints, inside: int | None
) -> tuple[Meshes, Ints]:
    """Return the meshes of any of the degrees, and the index of its degrees."""
    number = np.arange(len(degrees))
    left, meshes = degrees, np.ones((*degrees.shape, 0), dtype=np.int64)
    for level, size in enumerate(sizes[:-1]):
        options = factorisations(size)
        row, option = np.nonzero((left[:, None] % options[None] == 0).all(axis=2))
        left, number = left[row] // options[option], number[row]
        meshes = np.concatenate([meshes[row], options[option][:, :, None]], axis=2)
        if level + 1 == inside:
            groups = np.concatenate([meshes[:, TP], left[:, [TP]]], axis=1)
            kept = is_inside_nodes(groups, sizes, inside)
            left, number, meshes = left[kept], number[kept], meshes[kept]
    # The last level takes the remaining factors, if their product is its size.
    whole = left.prod(axis=1) == sizes[-1]
    every = np.concatenate([meshes[whole], left[whole][:, :, None]], axis=2)
    return every, number[whole]


def listed(
    fabric: Fabric, inside: int, keys: Sequence[Key]
) -> list[tuple[Meshes, PathCosts]]:
    """Return one mesh of each price for each key, where GPU orders do not matter.

    TP groups lie on `inside` levels as far as they can. Specs on one fabric share the
    cache, and so do repeated solves of one spec.
    """
    known = _known(fabric, inside)
    # Another thread may clear the cache in the meantime.
    found = {key: meshes for key in keys if (meshes := known.get(key)) is not None}
    new = [key for key in dict.fromkeys(keys) if key not in found]
    for start in range(0, len(new), AT_ONCE):
        part = new[start : start + AT_ONCE]
        found.update(zip(part, _listed(fabric, inside, part), strict=True))
    if len(known) + len(new) > MOST_LISTED:
        known.clear()
    known.update((key, found[key]) for key in new)
    return [found[key] for key in keys]


@lru_cache(maxsize=MOST_FABRICS)
def _known(fabric: Fabric, inside: int) -> dict[Key, tuple[Meshes, PathCosts]]:
    """Return the cache of one fabric and the levels of TP groups."""
    return {}


def _listed(
    fabric: Fabric, inside: int, keys: list[Key]
) -> list[tuple[Meshes, PathCosts]]:
    """Return one mesh of each price for each key; all keys have experts, or none."""
    degrees = np.array([degrees for degrees, _ in keys])
    meshes, number = _every_mesh(fabric.sizes, degrees, inside)
    shares = np.array([share or 1 for _, share in keys])
    paths = price_groups(fabric, meshes, None if keys[0][1] is None else shares[number])
    first = first_of_equal([number[:, None], paths.s_per_byte, paths.latency_s])
    edges = np.searchsorted(number[first], np.arange(len(keys) + 1))
    parts = (first[start:end] for start, end in pairwise(edges.tolist()))
    return [(meshes[part], paths.take(part)) for part in parts]


def first_of_equal(columns: Iterable[Ints | np.ndarray]) -> Ints:
    """Return the first of each set of equal rows, in order; columns are (rows, any)."""
    first: dict[bytes, int] = {}
    for index, row in enumerate(np.concatenate(list(columns), axis=1)):
        first.setdefault(row.tobytes(), index)
    return np.array(list(first.values()), dtype=np.int64)


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
    """Path costs for each kind of GPU, between GPUs of that kind."""
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
        self._experts: list[int] = []
        """The expert-parallel degree of each entry above, 1 without experts."""
        self._loads: dict[int, Floats] = {}
        """What `loads` returns for the meshes of an entry, as far as known."""
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
            inside = self.job.spec.tp_levels
            every = listed(self.job.fabric, inside, [key for _, key in new])
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
        self._experts.append(key[1] or 1)

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
        rules = rare_mesh_rules(job.spec, meshes)
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

    def loads(self, numbers: Ints) -> Floats:
        """Return seconds per byte of groups on links, for meshes by their numbers.

        The shape is (numbers, groups, links).
        """
        starts = np.array([priced.start for priced in self._in_order], dtype=np.int64)
        entries = np.searchsorted(starts, numbers, side="right") - 1
        result = np.empty((len(numbers), len(GROUPS), len(self.job.fabric.link_names)))
        for entry in np.unique(entries).tolist():
            here = np.flatnonzero(entries == entry)
            result[here] = self._loads_of(entry)[numbers[here] - starts[entry]]
        return result

    def _loads_of(self, entry: int) -> Floats:
        """Return the loads of all meshes of an entry of the table."""
        if entry not in self._loads:
            priced, fabric = self._in_order[entry], self.job.fabric
            loads = np.zeros((len(priced.meshes), len(GROUPS), len(fabric.link_names)))
            for order, rows in _by_order(priced.orders).items():
                placed, ep = fabric.placed(order), self._experts[entry]
                loads[rows] = loads_of_meshes(placed, priced.meshes[rows], ep)
            self._loads[entry] = loads
        return self._loads[entry]


def has_mesh_rules(job: Job) -> bool:
    """Return whether meshes must keep more than `enumerate_meshes` does by itself."""
    return bool(rare_mesh_rules(job.spec, np.empty((0, 0, 0), dtype=np.int64)))


def price_placed(
    fabric: Fabric, meshes: Meshes, orders: Sequence[HostOrders], ep: Ints | None
) -> PathCosts:
    """Return the path costs of meshes, each with its GPU order."""
    if not any(orders):
        return price_groups(fabric, meshes, ep)
    paths = free_paths(len(meshes), len(GROUPS))
    for order, rows in _by_order(orders).items():
        experts = None if ep is None else ep[rows]
        ordered = price_groups(fabric.placed(order), meshes[rows], experts)
        paths.s_per_byte[rows] = ordered.s_per_byte
        paths.latency_s[rows] = ordered.latency_s
    return paths


def _by_order(orders: Sequence[HostOrders]) -> dict[HostOrders, list[int]]:
    """Return the meshes that have each GPU order, by index."""
    rows_of: dict[HostOrders, list[int]] = {}
    for row, order in enumerate(orders):
        rows_of.setdefault(order, []).append(row)
    return rows_of


def legal_meshes(job: Job, degrees: Ints) -> Meshes:
    """Return the meshes of given degrees that the rules allow in some GPU order."""
    spec, fabric = job.spec, job.fabric
    meshes = enumerate_meshes(fabric.sizes, degrees, spec.tp_levels)
    rules = rare_mesh_rules(spec, meshes)
    if not rules:
        return meshes
    if isinstance(fabric, RoutedFabric):
        paths = least_group_prices(fabric, meshes)
    else:
        paths = price_groups(fabric, meshes)
    return meshes[holding(rules, spec, mesh_rows(meshes, paths))]
