"""The graph of a machine in NetworkX, routes through it, and its symmetries.

Vertices carry `kind` (gpu, nic or switch) and, for GPUs, `rank` and `host`. Edges carry
`gb_s` (bandwidth per direction, 1e9 bytes/s), `effective_gb_s` (the part of it that
collectives reach, see `spec.topology`) and `latency_us` (one traversal).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from meshwright.spec.hosts import HostGraph
from meshwright.spec.topology import effective_gb_s

if TYPE_CHECKING:
    import networkx as nx


def machine_graph(machine: HostGraph) -> nx.Graph[str]:
    """Return the graph of one machine; ranks follow the order of its GPUs."""
    import networkx as nx

    graph: nx.Graph[str] = nx.Graph()
    rank = 0
    for node in machine.nodes:
        if node.kind == "gpu":
            graph.add_node(node.name, kind="gpu", rank=rank, host=node.host)
            rank += 1
        else:
            graph.add_node(node.name, kind=node.kind)
    for link in machine.links:
        graph.add_edge(
            *link.between,
            gb_s=link.gb_s,
            effective_gb_s=effective_gb_s(link.gb_s, link.bus_share),
            latency_us=link.latency_us,
        )
    return graph


Hop = tuple[str, str]

DETOUR = 1e3
"""Length added to a path for every GPU or NIC in its middle, s per GB.

GPUs and NICs forward nothing for others unless no other path exists.
"""


@dataclass(frozen=True)
class Route:
    """How a message spreads over the links of a graph."""

    shares: NDArray[np.float64]
    """The part of the message that each link carries."""
    latency_us: float
    """Latency of the slowest of the equally short paths."""


class Routes:
    """The shortest paths through a graph, found when they are first asked for.

    Links are counted once per direction.
    """

    def __init__(self, graph: nx.Graph[str]) -> None:
        """Keep the graph, its GPUs in the order of hosts and ranks."""
        import networkx as nx

        self.graph = graph
        ranks = nx.get_node_attributes(graph, "rank")
        hosts = nx.get_node_attributes(graph, "host")
        self.gpus = sorted(ranks, key=lambda gpu: (hosts[gpu], ranks[gpu]))
        self.hops: list[Hop] = [
            hop for edge in graph.edges for hop in (edge, edge[::-1])
        ]
        edges = [graph.edges[hop] for hop in self.hops]
        self.gb_s = np.array([edge["gb_s"] for edge in edges])
        self._effective_gb_s = np.array([edge["effective_gb_s"] for edge in edges])
        self._index = {hop: i for i, hop in enumerate(self.hops)}
        self._known: dict[Hop, Route] = {}
        self._paths: dict[str, tuple[dict[str, list[str]], dict[str, float]]] = {}

    def between(self, start: int, end: int) -> Route:
        """Return the route from one GPU to another, by their places in `gpus`."""
        return self.route(self.gpus[start], self.gpus[end])

    def route(self, start: str, end: str) -> Route:
        """Return the route between two vertices, over all shortest paths at once.

        A link's length is 1 / bandwidth. Where several paths are equally short every
        switch spreads its traffic evenly over them, as equal-cost multipath does, so
        that the order in which a file lists the links does not matter.
        """
        if (start, end) not in self._known:
            self._known[start, end] = self._find(start, end)
        return self._known[start, end]

    def seconds(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return seconds per byte on links that carry these shares of a message."""
        return np.asarray(shares / (self._effective_gb_s * 1e9))

    def _from(self, start: str) -> tuple[dict[str, list[str]], dict[str, float]]:
        """Return the predecessors and distance of each vertex on paths from `start`."""
        if start not in self._paths:
            self._paths[start] = self._shortest(start)
        return self._paths[start]

    def _shortest(self, start: str) -> tuple[dict[str, list[str]], dict[str, float]]:
        def length(here: str, _there: str, link: dict[str, float]) -> float:
            passes = here != start and self.graph.nodes[here]["kind"] != "switch"
            return 1 / link["effective_gb_s"] + DETOUR * passes

        import networkx as nx

        before, distance = nx.dijkstra_predecessor_and_distance(
            self.graph, start, weight=length
        )
        return before, distance

    def _find(self, start: str, end: str) -> Route:
        before, distance = self._from(start)
        shares, longest = np.zeros(len(self.hops)), {end: 0.0}
        passed = {end: 1.0}
        for node in sorted(distance, key=lambda n: -distance[n]):
            for previous in before[node] if node in passed else ():
                part = passed[node] / len(before[node])
                shares[self._index[previous, node]] += part
                passed[previous] = passed.get(previous, 0.0) + part
                hop_us = self.graph.edges[previous, node]["latency_us"]
                further_us = longest[node] + hop_us
                longest[previous] = max(longest.get(previous, 0.0), further_us)
        return Route(shares, longest[start])


Swap = dict[str, str]
"""A symmetry: the vertex that each vertex is mapped to."""

Colours = dict[str, int]
"""The colour of each vertex; vertices of different colours are not alike."""


def rank_order_pairs(
    graph: nx.Graph[str], gpus: list[str], way_out: str
) -> list[tuple[int, int]]:
    """Return pairs of GPUs of which the first may be taken to have the lower rank.

    A GPU is paired with every later one that a symmetry of the graph maps it to while
    all earlier GPUs stay in place. Of the orders that symmetries map to each other
    these pairs keep just the first (Puget 2005, Breaking symmetries in all different
    problems). Symmetries found for later GPUs fix the earlier ones too, and most
    others are products of them (Sims 1970, Computational methods for permutation
    groups).
    """
    kinds = {node: (data["kind"], node == way_out) for node, data in graph.nodes.data()}
    symmetries: list[Swap] = []
    pairs = []
    for index in reversed(range(len(gpus))):
        gpu, fixed = gpus[index], {name: i for i, name in enumerate(gpus[:index])}
        alike = {node: (kind, fixed.get(node, -1)) for node, kind in kinds.items()}
        reached = _orbit(gpu, symmetries)
        for other in range(index + 1, len(gpus)):
            if gpus[other] not in reached:
                found = _swap(graph, alike, gpu, gpus[other])
                symmetries += [found] if found else []
                reached = _orbit(gpu, symmetries)
            if gpus[other] in reached:
                pairs.append((index, other))
    return sorted(pairs)


def _orbit(start: str, symmetries: Sequence[Swap]) -> set[str]:
    """Return the vertices that products of symmetries map a vertex to."""
    reached, waiting = {start}, [start]
    while waiting:
        here = waiting.pop()
        found = {symmetry[here] for symmetry in symmetries} - reached
        reached |= found
        waiting += found
    return reached


def _swap(
    graph: nx.Graph[str], alike: dict[str, Any], first: str, second: str
) -> Swap | None:
    """Return a symmetry that maps one vertex to another and preserves `alike`."""
    here = {node: (label, node == first) for node, label in alike.items()}
    there = {node: (label, node == second) for node, label in alike.items()}
    number = _numbers([*here.values(), *there.values()])
    return _matched(
        graph,
        {node: number[label] for node, label in here.items()},
        {node: number[label] for node, label in there.items()},
    )


def _matched(graph: nx.Graph[str], here: Colours, there: Colours) -> Swap | None:
    """Return a symmetry that maps each vertex to one of its colour, if one exists.

    Colours are refined by those of the neighbours until they are stable (McKay and
    Piperno 2014, Practical graph isomorphism II); then one vertex is mapped to each
    candidate in turn.
    """
    here, there = _refined(graph, here, there)
    sizes = Counter(here.values())
    if sizes != Counter(there.values()):
        return None
    several = [colour for colour, size in sizes.items() if size > 1]
    if not several:
        by_colour = {colour: node for node, colour in there.items()}
        return {node: by_colour[colour] for node, colour in here.items()}
    rarest = min(several, key=lambda colour: (sizes[colour], colour))
    mapped = next(node for node, colour in here.items() if colour == rarest)
    for image in (node for node, colour in there.items() if colour == rarest):
        found = _matched(graph, here | {mapped: -1}, there | {image: -1})
        if found:
            return found
    return None


def _refined(
    graph: nx.Graph[str], here: Colours, there: Colours
) -> tuple[Colours, Colours]:
    """Return stable colours: one colour has equally coloured neighbours."""
    while True:
        known = len({*here.values(), *there.values()})
        seen, found = _surroundings(graph, here), _surroundings(graph, there)
        number = _numbers([*seen.values(), *found.values()])
        here = {node: number[near] for node, near in seen.items()}
        there = {node: number[near] for node, near in found.items()}
        if len(number) == known:
            return here, there


def _surroundings(graph: nx.Graph[str], colours: Colours) -> dict[str, Any]:
    """Return the colour of each vertex with its links and its neighbours' colours."""
    return {
        node: (
            colours[node],
            tuple(
                sorted(
                    (link["effective_gb_s"], link["latency_us"], colours[other])
                    for other, link in graph.adj[node].items()
                )
            ),
        )
        for node in colours
    }


def _numbers(values: Iterable[Any]) -> dict[Any, int]:
    """Return the distinct values, numbered in sorted order."""
    return {value: number for number, value in enumerate(sorted(set(values)))}
