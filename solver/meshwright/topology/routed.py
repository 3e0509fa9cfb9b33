"""Prices meshes on any graph by routing every ring over its links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meshwright.spec.links import Level
from meshwright.topology.host_kind import HostKind
from meshwright.topology.levels import LevelFabric
from meshwright.topology.paths import Meshes, Order, Paths
from meshwright.topology.rings import hops_of
from meshwright.topology.routes import Routes

if TYPE_CHECKING:
    import networkx as nx

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


HostMesh = tuple[bytes, int, bool]
"""A mesh inside hosts, the axis of a group, and whether all send to each other."""


class RoutedFabric:
    """Hosts given as graphs, and levels above them; links count once per direction.

    `sizes` has the levels of the host graphs first, then those above. Within a level
    the axes nest in the order of the mesh: the first is innermost. A ring that leaves
    its hosts is turned through its members there, one channel each, so that all NICs
    carry their share, and each hop inside is left out in one channel.
    """

    def __init__(
        self,
        kinds: Sequence[HostKind],
        sizes: tuple[int, ...],
        outer: Sequence[Level] = (),
    ) -> None:
        """Keep the hosts; routes are found when they are first asked for."""
        self.kinds, self.sizes, self.outer = tuple(kinds), sizes, tuple(outer)
        self._inside = len(sizes) - len(self.outer)
        self.gpus_per_host = math.prod(sizes[: self._inside])
        host = Level(name="host", size=self.gpus_per_host, gb_s=1, latency_us=0)
        self._tree = LevelFabric([host, *self.outer])
        within = [name for kind in self.kinds for name in kind.link_names]
        rates = [float(rate) for kind in self.kinds for rate in kind.routes.gb_s]
        # The links of GPUs and of NICs, the tree's first two, are in the graphs.
        self.link_names = (*within, *self._tree.link_names[2:])
        self.link_gb_s = (*rates, *self._tree.link_gb_s[2:])
        self._known: dict[HostMesh, Floats] = {}
        self._longest_us: dict[HostMesh, float] = {}
        self._placed: dict[Order, RoutedFabric] = {}

    @classmethod
    def of_graph(cls, graph: nx.Graph[str], sizes: tuple[int, ...]) -> RoutedFabric:
        """Return the fabric of one graph with nothing above it."""
        return cls([HostKind(Routes(graph))], sizes)

    def placed(self, order: Order) -> RoutedFabric:
        """Return the fabric with ranks on the GPUs of an order, one for each kind."""
        if not order:
            return self
        if order not in self._placed:
            pairs = zip(self.kinds, order, strict=True)
            kinds = [replace(kind, order=own) for kind, own in pairs]
            self._placed[order] = RoutedFabric(kinds, self.sizes, self.outer)
        return self._placed[order]

    def loads(self, meshes: Meshes) -> Floats:
        """Return seconds per byte on every link, from the rings that cross it."""
        return self._sum(meshes, is_exchange=False)

    def passed(self, meshes: Meshes, is_exchange: bool) -> tuple[Floats, Floats]:
        """Return the bytes on each hop inside hosts, and out of each GPU's host.

        Per byte of the ring, or of what a member has for all others together.
        """
        return _passed(self.members(meshes), meshes.prod(axis=2), is_exchange)

    def exchange_loads(self, meshes: Meshes) -> Floats:
        """Return seconds per byte on every link, each member sending to each other."""
        return self._sum(meshes, is_exchange=True)

    def inside(self, mesh: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the levels of one mesh that are inside hosts, (axes, levels)."""
        return mesh[:, : self._inside]

    def members(self, meshes: Meshes) -> NDArray[np.int64]:
        """Return how many members of each group are on one host."""
        result: NDArray[np.int64] = meshes[:, :, : self._inside].prod(axis=2)
        return result

    def _on_tree(self, meshes: Meshes) -> Meshes:
        """Return meshes whose innermost level is the host."""
        inside = self.members(meshes)[:, :, None]
        return np.concatenate([inside, meshes[:, :, self._inside :]], axis=2)

    def _sum(self, meshes: Meshes, is_exchange: bool) -> Floats:
        """Return loads of bytes passed inside hosts and sent out of them."""
        on_tree, (inside, out) = (
            self._on_tree(meshes),
            self.passed(meshes, is_exchange),
        )
        above = self._above(on_tree, is_exchange)
        exits = np.concatenate([kind.exits for kind in self.kinds])
        within = out[:, :, None] * exits
        for row, axis in zip(*np.nonzero(on_tree[:, :, 0] > 1), strict=True):
            host = self.inside(meshes[row])
            own = self._sends(host, int(axis), is_exchange)
            within[row, axis] += inside[row, axis] * own
        return np.concatenate([within, above], axis=2)

    def _above(self, on_tree: Meshes, is_exchange: bool) -> Floats:
        """Return the loads on the links above NICs."""
        tree = self._tree.exchange_loads if is_exchange else self._tree.loads
        return tree(on_tree)[:, :, 2:]

    def _sends(self, host: NDArray[np.int64], axis: int, is_exchange: bool) -> Floats:
        """Return the loads inside each kind of host if each pair passes one byte."""
        key = (host.tobytes(), axis, is_exchange)
        if key not in self._known:
            pairs = hops_of(host, axis, is_exchange)
            own = [kind.sends(pairs) for kind in self.kinds]
            self._known[key] = np.concatenate(own)
        return self._known[key]

    def floor(self, meshes: Meshes, is_exchange: bool) -> Paths:
        """Return what groups pay at least on meshes, in whichever order of GPUs."""
        on_tree, (inside, out) = (
            self._on_tree(meshes),
            self.passed(meshes, is_exchange),
        )
        above = self._above(on_tree, is_exchange).max(axis=2, initial=0)
        own = self._at_host(on_tree[:, :, 0], inside, out, is_exchange)
        s_per_byte = np.maximum(own, above)
        nearest = 1e-6 * max(kind.nearest_us for kind in self.kinds)
        latency_s = np.where(on_tree[:, :, 0] > 1, nearest, 0.0)
        return Paths(s_per_byte, np.maximum(latency_s, self._outside_s(on_tree)))

    def _at_host(
        self, members: Ints, inside: Floats, out: Floats, is_exchange: bool
    ) -> Floats:
        """Return the least seconds per byte on the links of GPUs and of NICs."""
        hops = members - 1 if is_exchange else members > 1
        return np.maximum(out * self._exit_s, hops * inside * self._gpu_s)

    @cached_property
    def _gpu_s(self) -> float:
        """Return seconds for a byte out of a GPU, spread over all its links."""
        return max(kind.widest_s for kind in self.kinds)

    @cached_property
    def _exit_s(self) -> float:
        return max(float(kind.exits.max(initial=0)) for kind in self.kinds)

    def least(self, degrees: NDArray[np.int64]) -> Paths:
        """Return what groups of these sizes pay at least, wherever they lie.

        No order of GPUs puts less on the fullest link of a GPU than what goes out of
        the GPU, spread over all its links. Latencies are left aside.
        """
        s_per_byte = np.zeros((len(degrees), 2))
        for row, degree in enumerate(degrees.tolist()):
            members = np.array(self._members_of(degree))
            for column, is_exchange in enumerate((True, False)):
                passed = _passed(members, np.full_like(members, degree), is_exchange)
                own = self._at_host(members, *passed, is_exchange)
                s_per_byte[row, column] = own.min()
        return Paths(s_per_byte, np.zeros_like(s_per_byte))

    def _members_of(self, degree: int) -> list[int]:
        """Return how many members of a group of this size can be on one host."""
        outside = math.prod(self.sizes[self._inside :])
        return [
            members
            for members in range(1, degree + 1)
            if degree % members == 0
            and self.gpus_per_host % members == 0
            and outside % (degree // members) == 0
        ]

    def latency_s(self, meshes: Meshes) -> Floats:
        """Return the longest route between ring neighbours."""
        return self._longest_s(meshes, is_exchange=False)

    def exchange_latency_s(self, meshes: Meshes) -> Floats:
        """Return the longest route between any two members."""
        return self._longest_s(meshes, is_exchange=True)

    def _longest_s(self, meshes: Meshes, is_exchange: bool) -> Floats:
        on_tree = self._on_tree(meshes)
        result = self._outside_s(on_tree)
        for row, axis in zip(*np.nonzero(on_tree[:, :, 0] > 1), strict=True):
            host = self.inside(meshes[row])
            inside_s = self._within_us(host, int(axis), is_exchange) * 1e-6
            result[row, axis] = max(result[row, axis], inside_s)
        return result

    def _within_us(
        self, host: NDArray[np.int64], axis: int, is_exchange: bool
    ) -> float:
        """Return the latency of the longest way of a group inside a host, us."""
        key = (host.tobytes(), axis, is_exchange)
        if key not in self._longest_us:
            pairs = hops_of(host, axis, is_exchange)
            longest_us = max(kind.longest_us(pairs) for kind in self.kinds)
            self._longest_us[key] = longest_us
        return self._longest_us[key]

    def _outside_s(self, on_tree: Meshes) -> Floats:
        """Return the longest way between hosts; 0 for groups that leave none."""
        # The tree has the way from the first switch outside on, and a NIC's uplink.
        first_us = self.outer[0].latency_us if self.outer else 0.0
        exit_us = max(kind.exit_us for kind in self.kinds) - first_us
        leaves = on_tree[:, :, 1:].prod(axis=2) > 1
        ways_s = self._tree.latency_s(on_tree) + 2e-6 * exit_us
        return np.where(leaves, ways_s, 0.0)


def _passed(members: Ints, whole: Ints, is_exchange: bool) -> tuple[Floats, Floats]:
    """Return what `RoutedFabric.passed` does, of groups with some members on a host."""
    if is_exchange:
        parts = np.maximum(whole - 1, 1)
        return 1 / parts, (whole - members) / parts
    out = np.where(whole > members, 1 / members, 0.0)
    return 1 - out, out
