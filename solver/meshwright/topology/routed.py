"""Prices meshes on any graph by routing every ring over its links."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from meshwright.topology.paths import Meshes, Paths, free_paths

Hop = tuple[str, str]


class RoutedFabric:
    """A cluster given as a graph; ranks go to GPUs in the order they are listed.

    Within a level the axes nest in the order of the mesh: the first is innermost.
    Links are counted once per direction.
    """

    def __init__(self, graph: nx.Graph[str], sizes: tuple[int, ...]) -> None:
        """Keep the graph; routes are found when they are first asked for."""
        self.graph = graph
        ranks = nx.get_node_attributes(graph, "rank")
        hosts = nx.get_node_attributes(graph, "host")
        self.gpus = sorted(ranks, key=lambda gpu: (hosts[gpu], ranks[gpu]))
        self.sizes = sizes
        self._hops = [hop for edge in graph.edges for hop in (edge, edge[::-1])]
        self._hop_index = {hop: i for i, hop in enumerate(self._hops)}
        self.link_names = tuple(f"{a} -> {b}" for a, b in self._hops)
        self.link_gb_s = tuple(graph.edges[hop]["gb_s"] for hop in self._hops)
        self._routes: dict[Hop, _Route] = {}

    def loads(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return seconds per byte on every link, from the rings that cross it."""
        shares = np.zeros((*meshes.shape[:2], len(self._hops)))
        for row, axis in _spanned(meshes):
            for a, b in ring_neighbours(mesh_groups(meshes[row], axis).tolist()):
                shares[row, axis] += self._route(a, b).shares
        return self._seconds(shares)

    def exchange_loads(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return seconds per byte on every link, each member sending to each other."""
        shares = np.zeros((*meshes.shape[:2], len(self._hops)))
        for row, axis in _spanned(meshes):
            groups = mesh_groups(meshes[row], axis)
            for group in groups.tolist():
                for a, b in itertools.permutations(group, 2):
                    shares[row, axis] += self._route(a, b).shares / (len(group) - 1)
        return self._seconds(shares)

    def least(self, degrees: NDArray[np.int64]) -> Paths:
        """Return nothing: without a tree, where groups lie best is not known."""
        return free_paths(len(degrees), 2)

    def _seconds(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        return shares / (np.array(self.link_gb_s) * 1e9)

    def latency_s(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return the longest route between ring neighbours."""
        result = np.zeros(meshes.shape[:2])
        for row, axis in _spanned(meshes):
            pairs = ring_neighbours(mesh_groups(meshes[row], axis).tolist())
            result[row, axis] = max(self._route(a, b).latency_us for a, b in pairs)
        return result * 1e-6

    def _route(self, start: int, end: int) -> _Route:
        """Return the route between two ranks, over all shortest ways at once.

        The shortest way takes wide links first, then few of them. Where several are
        equally short, every switch spreads what it passes on evenly over them, as
        equal-cost multipath does: the order in which links are written is no matter.
        """
        a, b = self.gpus[start], self.gpus[end]
        if (a, b) in self._routes:
            return self._routes[a, b]
        before, distance = nx.dijkstra_predecessor_and_distance(
            self.graph, a, weight=_hop_cost
        )
        shares, longest = np.zeros(len(self._hops)), {b: 0.0}
        passed = {b: 1.0}
        for node in sorted(distance, key=lambda n: -distance[n]):
            for previous in before[node] if node in passed else ():
                part = passed[node] / len(before[node])
                shares[self._hop_index[previous, node]] += part
                passed[previous] = passed.get(previous, 0.0) + part
                hop_us = self.graph.edges[previous, node]["latency_us"]
                further_us = longest[node] + hop_us
                longest[previous] = max(longest.get(previous, 0.0), further_us)
        self._routes[a, b] = _Route(shares, longest[a])
        return self._routes[a, b]


@dataclass(frozen=True)
class _Route:
    """How a message between two GPUs spreads over the links."""

    shares: NDArray[np.float64]
    """Of every link: the part of the message that it carries."""
    latency_us: float
    """Of the longest of the equally short ways."""


def mesh_groups(mesh: NDArray[np.int64], axis: int) -> NDArray[np.int64]:
    """Return the ranks of each group of an axis, shape (groups, members).

    `mesh` is (axes, levels). Rank order: the innermost level varies fastest and, in
    a level, the first axis.
    """
    axes, levels = mesh.shape
    shape = [int(mesh[a, level]) for level in range(levels) for a in range(axes)]
    ranks = np.arange(math.prod(shape)).reshape(shape[::-1])
    own = [ranks.ndim - 1 - (level * axes + axis) for level in range(levels)]
    rest = [dim for dim in range(ranks.ndim) if dim not in own]
    members = int(np.prod(mesh[axis]))
    return ranks.transpose(*rest, *reversed(own)).reshape(-1, members)


def ring_neighbours(groups: Iterable[Sequence[int]]) -> Iterable[tuple[int, int]]:
    """Return who passes to whom in the rings of all groups."""
    for group in groups:
        yield from zip(group, [*group[1:], group[0]], strict=True)


def _spanned(meshes: Meshes) -> Iterable[tuple[int, int]]:
    """Return the meshes and axes that have more than one member."""
    degrees = meshes.prod(axis=2)
    return zip(*(index.tolist() for index in np.nonzero(degrees > 1)), strict=True)


def _hop_cost(_a: str, _b: str, link: dict[str, float]) -> float:
    return 1 / link["gb_s"]
