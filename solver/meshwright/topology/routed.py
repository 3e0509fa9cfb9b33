"""Prices meshes on any graph by routing every ring over its links."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from meshwright.topology.paths import Meshes

Hop = tuple[str, str]


class RoutedFabric:
    """A cluster given as a graph; ranks go to GPUs in the order they are listed.

    Two levels where every host has as many GPUs, else one. Within a level the axes
    nest in the order of the mesh: the first is innermost. Links are counted once per
    direction.
    """

    def __init__(self, graph: nx.Graph[str]) -> None:
        """Keep the graph; routes are found when they are first asked for."""
        self.graph = graph
        ranks = nx.get_node_attributes(graph, "rank")
        hosts = nx.get_node_attributes(graph, "host")
        self.gpus = sorted(ranks, key=lambda gpu: (hosts[gpu], ranks[gpu]))
        self.sizes = _sizes([hosts[gpu] for gpu in self.gpus])
        self._hops = [hop for edge in graph.edges for hop in (edge, edge[::-1])]
        self._hop_index = {hop: i for i, hop in enumerate(self._hops)}
        self.link_names = tuple(f"{a} -> {b}" for a, b in self._hops)
        self.link_gb_s = tuple(graph.edges[hop]["gb_s"] for hop in self._hops)
        self._routes: dict[Hop, list[int]] = {}

    def loads(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return seconds per byte on every link, from counts of the rings over it."""
        counts = np.zeros((*meshes.shape[:2], len(self._hops)))
        for row, axis in _spanned(meshes):
            for a, b in ring_neighbours(mesh_groups(meshes[row], axis).tolist()):
                np.add.at(counts[row, axis], self._route(a, b), 1)
        return counts / (np.array(self.link_gb_s) * 1e9)

    def latency_s(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return the longest route between ring neighbours."""
        latency_us = np.array(
            [self.graph.edges[hop]["latency_us"] for hop in self._hops]
        )
        result = np.zeros(meshes.shape[:2])
        for row, axis in _spanned(meshes):
            pairs = ring_neighbours(mesh_groups(meshes[row], axis).tolist())
            longest_us = max(latency_us[self._route(a, b)].sum() for a, b in pairs)
            result[row, axis] = longest_us * 1e-6
        return result

    def _route(self, start: int, end: int) -> list[int]:
        """Return the links between two ranks: wide ones first, then few of them."""
        ends = self.gpus[start], self.gpus[end]
        if ends not in self._routes:
            nodes = nx.shortest_path(self.graph, *ends, weight=_hop_cost)
            hops = itertools.pairwise(nodes)
            self._routes[ends] = [self._hop_index[hop] for hop in hops]
        return self._routes[ends]


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


def _sizes(hosts: list[int]) -> tuple[int, ...]:
    counts = {hosts.count(host) for host in hosts}
    if len(counts) == 1 and len(set(hosts)) > 1:
        return (counts.pop(), len(set(hosts)))
    return (len(hosts),)
