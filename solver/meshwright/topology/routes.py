"""Routes of messages through a graph: the links they load, and their latency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import networkx as nx

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
