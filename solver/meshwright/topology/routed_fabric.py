"""Costs of groups on any graph, by routing every ring over its links.

`build_fabric` makes the fabric of a cluster: by levels if it is a tree, else routed.
`HostKind` has the link loads and latencies of hosts that share one graph.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwright.spec.cluster import Cluster
from meshwright.spec.hosts import HostGroup, Hosts
from meshwright.spec.topology import Level
from meshwright.topology.fabric import (
    EVEN,
    EXPERTS_EXCHANGE,
    Exchange,
    Exchanges,
    Fabric,
    Floats,
    HostOrders,
    Ints,
    LevelFabric,
    Meshes,
    PathCosts,
    mean_hop_s,
)
from meshwright.topology.graph import Routes, machine_graph

HostGroups = tuple[bytes, int, bool]
"""A mesh inside hosts, the axis of a group, and whether it is an all-to-all."""


class RoutedFabric:
    """Hosts given as graphs, and levels above them; links count once per direction.

    `sizes` has the levels of the host graphs first, then those above. Within a level
    the axes nest in the order of the mesh: the first is innermost. A ring that leaves
    its hosts has one channel per member there, each starting at another member, so
    that all NICs carry equal shares and each channel skips another hop inside.
    """

    def __init__(
        self,
        kinds: Sequence[HostKind],
        sizes: tuple[int, ...],
        outer: Sequence[Level] = (),
        exchanging: Exchanges = EXPERTS_EXCHANGE,
    ) -> None:
        """Keep the hosts; routes are found when they are first asked for."""
        self.exchanging = dict(exchanging)
        self.kinds, self.sizes, self.outer = tuple(kinds), sizes, tuple(outer)
        self._levels_inside = len(sizes) - len(self.outer)
        self.gpus_per_host = math.prod(sizes[: self._levels_inside])
        self.seats = (self.gpus_per_host,) * len(self.kinds)
        host = Level(name="host", size=self.gpus_per_host, gb_s=1, latency_us=0)
        self._tree = LevelFabric([host, *self.outer])
        names = [name for kind in self.kinds for name in kind.link_names]
        rates = [float(rate) for kind in self.kinds for rate in kind.routes.gb_s]
        # The links of GPUs and of NICs, the tree's first two, are in the graphs.
        self.link_names = (*names, *self._tree.link_names[2:])
        self.link_gb_s = (*rates, *self._tree.link_gb_s[2:])
        self._host_loads: dict[HostGroups, Floats] = {}
        self._host_latency_us: dict[HostGroups, float] = {}
        self._placed: dict[HostOrders, RoutedFabric] = {}

    def placed(self, order: HostOrders) -> RoutedFabric:
        """Return the fabric with ranks in other orders, one for each kind of host."""
        if not order:
            return self
        if order not in self._placed:
            pairs = zip(self.kinds, order, strict=True)
            kinds = [replace(kind, order=gpus) for kind, gpus in pairs]
            self._placed[order] = RoutedFabric(
                kinds, self.sizes, self.outer, tuple(self.exchanging.items())
            )
        return self._placed[order]

    def loads(self, meshes: Meshes) -> Floats:
        """Return seconds per byte on every link, from the rings that cross it."""
        axes = range(meshes.shape[1])
        return np.stack([self._loads(meshes, axis, None) for axis in axes], axis=1)

    def exchange_loads(
        self, meshes: Meshes, axis: int, exchange: Exchange = EVEN
    ) -> Floats:
        """Return seconds per byte on every link, for an all-to-all of one axis."""
        return self._loads(meshes, axis, exchange)

    def byte_shares(
        self, meshes: Meshes, axis: int, exchange: Exchange | None
    ) -> tuple[Floats, Floats]:
        """Return the bytes on each hop inside hosts, and out of each GPU's host.

        Both are per byte of the ring, or per byte that a member sends in all.
        """
        group = meshes[:, axis]
        return _byte_shares(self.members(meshes)[:, axis], group.prod(axis=1), exchange)

    def inside(self, mesh: Ints) -> Ints:
        """Return the levels of one mesh that are inside hosts, (axes, levels)."""
        return mesh[:, : self._levels_inside]

    def members(self, meshes: Meshes) -> Ints:
        """Return the number of members of each group on one host."""
        result: Ints = meshes[:, :, : self._levels_inside].prod(axis=2)
        return result

    def _on_tree(self, meshes: Meshes) -> Meshes:
        """Return meshes whose innermost level is the host."""
        inside = self.members(meshes)[:, :, None]
        return np.concatenate([inside, meshes[:, :, self._levels_inside :]], axis=2)

    def _loads(self, meshes: Meshes, axis: int, exchange: Exchange | None) -> Floats:
        """Return the loads of the links inside hosts, then of those above."""
        on_tree = self._on_tree(meshes)
        hop_bytes, out_bytes = self.byte_shares(meshes, axis, exchange)
        above = self._loads_above(on_tree, axis, exchange)
        exits = np.concatenate([kind.exits for kind in self.kinds])
        inside = out_bytes[:, None] * exits
        for row in np.flatnonzero(on_tree[:, axis, 0] > 1):
            mesh = self.inside(meshes[row])
            loads = self._loads_inside(mesh, axis, exchange is not None)
            inside[row] += hop_bytes[row] * loads
        return np.concatenate([inside, above], axis=1)

    def _loads_above(
        self, on_tree: Meshes, axis: int, exchange: Exchange | None
    ) -> Floats:
        """Return the loads of the links above NICs."""
        if exchange is None:
            return self._tree.loads(on_tree)[:, axis, 2:]
        return self._tree.exchange_loads(on_tree, axis, exchange)[:, 2:]

    def _loads_inside(self, mesh: Ints, axis: int, is_exchange: bool) -> Floats:
        """Return the loads inside every kind of host, per byte on each hop."""
        key = (mesh.tobytes(), axis, is_exchange)
        if key not in self._host_loads:
            hops = hops_of(mesh, axis, is_exchange)
            loads = [kind.sends(hops) for kind in self.kinds]
            self._host_loads[key] = np.concatenate(loads)
        return self._host_loads[key]

    def least_on(
        self, meshes: Meshes, axis: int, exchange: Exchange | None
    ) -> tuple[Floats, Floats]:
        """Return a lower bound on the costs of an axis's groups, in any GPU order.

        They are seconds per byte and seconds of latency, (meshes,).
        """
        on_tree = self._on_tree(meshes)
        hop_bytes, out_bytes = self.byte_shares(meshes, axis, exchange)
        above = self._loads_above(on_tree, axis, exchange).max(axis=1, initial=0)
        members = on_tree[:, axis, 0]
        at_host = self._least_at_host(
            members, hop_bytes, out_bytes, exchange is not None
        )
        nearest_s = 1e-6 * max(kind.nearest_us for kind in self.kinds)
        inside_s = np.where(members > 1, nearest_s, 0.0)
        above_s = self._latency_above(on_tree)[:, axis]
        sizes = meshes[:, axis].prod(axis=1)
        latency_s = mean_hop_s(members, sizes, inside_s, above_s)
        return np.maximum(at_host, above), latency_s

    def _least_at_host(
        self, members: Ints, hop_bytes: Floats, out_bytes: Floats, is_exchange: bool
    ) -> Floats:
        """Return the least seconds per byte on the links of GPUs and of NICs."""
        hops = members - 1 if is_exchange else members > 1
        nic_s = out_bytes * self._exit_s_per_byte
        return np.maximum(nic_s, hops * hop_bytes * self._gpu_s_per_byte)

    @cached_property
    def _gpu_s_per_byte(self) -> float:
        """Return seconds per byte out of the slowest GPU, over all its links."""
        return max(kind.gpu_s_per_byte for kind in self.kinds)

    @cached_property
    def _exit_s_per_byte(self) -> float:
        """Return seconds per byte on the fullest link if every GPU sends out."""
        return max(float(kind.exits.max(initial=0)) for kind in self.kinds)

    def least(self, degrees: Ints) -> PathCosts:
        """Return a lower bound on the costs of groups of these sizes, on any mesh.

        The fullest link of a GPU carries at least the GPU's bytes spread over all its
        links, in any order of GPUs. Latencies are bounded by 0.
        """
        s_per_byte = np.zeros((len(degrees), 2))
        for row, degree in enumerate(degrees.tolist()):
            members = np.array(self._members_of(degree))
            sizes = np.full_like(members, degree)
            exchanges = [
                self._least_at_host(
                    members, *_byte_shares(members, sizes, exchange), True
                ).min()
                for exchange in self.exchanging.values()
            ]
            ring = _byte_shares(members, sizes, None)
            ring_s = self._least_at_host(members, *ring, False)
            s_per_byte[row] = min(exchanges), ring_s.min()
        return PathCosts(s_per_byte, np.zeros_like(s_per_byte))

    def _members_of(self, degree: int) -> list[int]:
        """Return how many members of a group of this size can be on one host."""
        outside = math.prod(self.sizes[self._levels_inside :])
        return [
            members
            for members in range(1, degree + 1)
            if degree % members == 0
            and self.gpus_per_host % members == 0
            and outside % (degree // members) == 0
        ]

    def latency_s(self, meshes: Meshes) -> Floats:
        """Return the mean latency of the hops of a ring, s.

        Hops inside a host count as its longest one.
        """
        on_tree = self._on_tree(meshes)
        inside_s = self._latency_inside_s(meshes, is_exchange=False)
        above_s = self._latency_above(on_tree)
        return mean_hop_s(on_tree[:, :, 0], on_tree.prod(axis=2), inside_s, above_s)

    def longest_s(self, meshes: Meshes) -> Floats:
        """Return the latency of the longest route between two members, seconds."""
        inside_s = self._latency_inside_s(meshes, is_exchange=True)
        return np.maximum(inside_s, self._latency_above(self._on_tree(meshes)))

    def _latency_inside_s(self, meshes: Meshes, is_exchange: bool) -> Floats:
        """Return the longest route of groups inside hosts, s; 0 for one member."""
        members = self.members(meshes)
        result = np.zeros(members.shape)
        for row, axis in zip(*np.nonzero(members > 1), strict=True):
            mesh = self.inside(meshes[row])
            inside_us = self._latency_inside_us(mesh, int(axis), is_exchange)
            result[row, axis] = inside_us * 1e-6
        return result

    def _latency_inside_us(self, mesh: Ints, axis: int, is_exchange: bool) -> float:
        """Return the latency of the longest route of a group inside hosts, us."""
        key = (mesh.tobytes(), axis, is_exchange)
        if key not in self._host_latency_us:
            hops = hops_of(mesh, axis, is_exchange)
            longest_us = max(kind.longest_us(hops) for kind in self.kinds)
            self._host_latency_us[key] = longest_us
        return self._host_latency_us[key]

    def _latency_above(self, on_tree: Meshes) -> Floats:
        """Return the longest route between hosts, s; 0 for groups inside one host."""
        # The tree has the way from the first switch outside on, and a NIC's uplink.
        first_us = self.outer[0].latency_us if self.outer else 0.0
        exit_us = max(kind.exit_us for kind in self.kinds) - first_us
        leaves = on_tree[:, :, 1:].prod(axis=2) > 1
        routes_s = self._tree.longest_s(on_tree) + 2e-6 * exit_us
        return np.where(leaves, routes_s, 0.0)


def _byte_shares(
    members: Ints, sizes: Ints, exchange: Exchange | None
) -> tuple[Floats, Floats]:
    """Return `RoutedFabric.byte_shares` of groups with some members on one host."""
    if exchange is None:
        out_bytes = np.where(sizes > members, 1 / members, 0.0)
        return 1 - out_bytes, out_bytes
    below = np.stack([np.ones_like(members), members], axis=-1).astype(float)
    share = exchange.leaving(below, members, sizes)
    inside = share[..., 0] - share[..., 1]
    return inside / np.maximum(members - 1, 1), share[..., 1]


Pair = tuple[int, int]
"""Two ranks of a host: the sender and the receiver."""


@dataclass(frozen=True, eq=False)
class HostKind:
    """Hosts with the same graph, and the order of ranks on their GPUs."""

    routes: Routes
    name: str = ""
    """Name of the first of the hosts; empty where there is only one host."""
    way_out: str = ""
    """The switch above the host that its NICs reach; empty where there is none."""
    order: tuple[int, ...] = ()
    """Index of the GPU of each rank; empty where ranks follow the list of GPUs."""

    def gpu(self, rank: int) -> int:
        """Return the index of the GPU of a rank."""
        return self.order[rank] if self.order else rank

    @property
    def link_names(self) -> list[str]:
        """Return the name of every link, once per direction."""
        prefix = f"{self.name}." if self.name else ""
        return [
            f"{a if a == self.way_out else prefix + a} -> "
            f"{b if b == self.way_out else prefix + b}"
            for a, b in self.routes.hops
        ]

    @cached_property
    def exits(self) -> Floats:
        """Return seconds per byte on every link if each GPU sends out and receives."""
        shares = np.zeros(len(self.routes.hops))
        for gpu in self.routes.gpus if self.way_out else ():
            shares += self.routes.route(gpu, self.way_out).shares
            shares += self.routes.route(self.way_out, gpu).shares
        return self.routes.seconds(shares)

    @cached_property
    def exit_us(self) -> float:
        """Return the latency from the farthest GPU out of the host, us."""
        if not self.way_out:
            return 0.0
        routes = (self.routes.route(gpu, self.way_out) for gpu in self.routes.gpus)
        return max(route.latency_us for route in routes)

    def sends(self, pairs: Iterable[Pair]) -> Floats:
        """Return seconds per byte on every link if all these pairs of ranks send."""
        shares = np.zeros(len(self.routes.hops))
        for a, b in pairs:
            shares += self.routes.between(self.gpu(a), self.gpu(b)).shares
        return self.routes.seconds(shares)

    def longest_us(self, pairs: Iterable[Pair]) -> float:
        """Return the latency of the longest route between these pairs of ranks, us."""
        routes = (self.routes.between(self.gpu(a), self.gpu(b)) for a, b in pairs)
        return max(route.latency_us for route in routes)

    @cached_property
    def tables(self) -> tuple[Floats, Floats]:
        """Return the loads and latencies between all pairs of GPUs.

        Seconds per byte on every link, (gpus, gpus, links), and seconds, (gpus, gpus).
        """
        gpus = range(len(self.routes.gpus))
        loads = np.zeros((len(gpus), len(gpus), len(self.routes.hops)))
        latency_s = np.zeros((len(gpus), len(gpus)))
        for a, b in itertools.permutations(gpus, 2):
            route = self.routes.between(a, b)
            loads[a, b] = self.routes.seconds(route.shares)
            latency_s[a, b] = route.latency_us * 1e-6
        return loads, latency_s

    @cached_property
    def nearest_us(self) -> float:
        """Return the latency from the most remote GPU to its nearest neighbour, us."""
        gpus = range(len(self.routes.gpus))
        near = [
            min(
                (self.routes.between(a, b).latency_us for b in gpus if b != a),
                default=0.0,
            )
            for a in gpus
        ]
        return max(near)

    @property
    def gpu_s_per_byte(self) -> float:
        """Return seconds per byte out of the slowest GPU, spread over all its links."""
        graph = self.routes.graph
        totals = [
            math.fsum(link["effective_gb_s"] for link in graph.adj[gpu].values())
            for gpu in self.routes.gpus
        ]
        return 1e-9 / min(totals) if min(totals) else 0.0


def mesh_groups(mesh: NDArray[np.int64], axis: int) -> NDArray[np.int64]:
    """Return the ranks of every group of an axis, shape (groups, members).

    `mesh` is (axes, levels). Ranks count through the innermost level first and,
    within a level, through the first axis.
    """
    axes, levels = mesh.shape
    shape = [int(mesh[a, level]) for level in range(levels) for a in range(axes)]
    ranks = np.arange(math.prod(shape)).reshape(shape[::-1])
    of_axis = [ranks.ndim - 1 - (level * axes + axis) for level in range(levels)]
    rest = [dim for dim in range(ranks.ndim) if dim not in of_axis]
    members = int(np.prod(mesh[axis]))
    return ranks.transpose(*rest, *reversed(of_axis)).reshape(-1, members)


def hops_of(
    mesh: NDArray[np.int64], axis: int, is_exchange: bool
) -> list[tuple[int, int]]:
    """Return sender and receiver of every hop in the groups of one axis."""
    return (exchanges if is_exchange else rings)(mesh_groups(mesh, axis))


def rings(groups: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the hops of rings: every member sends to the next one, cyclically."""
    return [
        pair
        for group in groups.tolist()
        for pair in zip(group, [*group[1:], group[0]], strict=True)
    ]


def exchanges(groups: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the hops of all-to-all: every member sends to every other one."""
    return [
        pair for group in groups.tolist() for pair in itertools.permutations(group, 2)
    ]


CACHE_SIZE = 16
"""Clusters whose fabrics are kept."""


@lru_cache(maxsize=CACHE_SIZE)
def build_fabric(cluster: Cluster, exchanging: Exchanges = EXPERTS_EXCHANGE) -> Fabric:
    """Return the fabric of a cluster: by levels if it is a tree, else routed.

    Specs on the same cluster share the fabric and the routes it has found. `exchanging`
    has the groups that send all to all.
    """
    if cluster.is_tree:
        return LevelFabric(cluster.levels, exchanging, cluster.node_levels)
    hosts = cluster.hosts
    kinds = [_host_kind(alike, hosts) for alike in hosts.groups]
    outer = tuple(_per_gpu_levels(hosts))
    return RoutedFabric(kinds, cluster.fan_outs, outer, exchanging)


def _host_kind(alike: HostGroup, hosts: Hosts) -> HostKind:
    routes = Routes(machine_graph(alike.machine))
    if not hosts.outer:
        return HostKind(routes)
    return HostKind(routes, f"node{alike.hosts[0]}", alike.machine.way_out)


def _per_gpu_levels(hosts: Hosts) -> Iterator[Level]:
    """Yield the levels above hosts, with uplinks per NIC converted to per GPU."""
    for level in hosts.outer:
        gb_s = level.gb_s_per_gpu(hosts.gpus, hosts.nics)
        is_by_nic = level.uplink == "per_nic"
        changed = {"gb_s": gb_s, "uplink": "per_gpu"}
        yield level.model_copy(update=changed) if is_by_nic else level
