"""How messages go through a graph: which links they load, and how long they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import networkx as nx

Hop = tuple[str, str]

DETOUR = 1e3
"""Added to the length of a way for every GPU or NIC in its middle, s per GB.

GPUs pass nothing on for others, unless there is no other way.
"""


@dataclass(frozen=True)
class Route:
    """How a message spreads over the links of a graph."""

    shares: NDArray[np.float64]
    """Of every link: the part of the message that it carries."""
    latency_us: float
    """Of the longest of the equally short ways."""


class Routes:
    """The shortest ways through a graph, found when they are first asked for.

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
        self.gb_s = np.array([graph.edges[hop]["gb_s"] for hop in self.hops])
        self._index = {hop: i for i, hop in enumerate(self.hops)}
        self._known: dict[Hop, Route] = {}
        self._ways: dict[str, tuple[dict[str, list[str]], dict[str, float]]] = {}

    def between(self, start: int, end: int) -> Route:
        """Return the route from one GPU to another, by their places in `gpus`."""
        return self.route(self.gpus[start], self.gpus[end])

    def route(self, start: str, end: str) -> Route:
        """Return the route between two vertices, over all shortest ways at once.

        The shortest way takes wide links first, then few of them. Where several are
        equally short, every switch spreads what it passes on evenly over them, as
        equal-cost multipath does: the order in which links are written is no matter.
        """
        if (start, end) not in self._known:
            self._known[start, end] = self._find(start, end)
        return self._known[start, end]

    def seconds(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return seconds per byte on links that carry so many times each byte."""
        return np.asarray(shares / (self.gb_s * 1e9))

    def _from(self, start: str) -> tuple[dict[str, list[str]], dict[str, float]]:
        """Return what comes before each vertex on shortest ways, and their lengths."""
        if start not in self._ways:
            self._ways[start] = self._shortest(start)
        return self._ways[start]

    def _shortest(self, start: str) -> tuple[dict[str, list[str]], dict[str, float]]:
        def length(here: str, _there: str, link: dict[str, float]) -> float:
            passes = here != start and self.graph.nodes[here]["kind"] != "switch"
            return 1 / link["gb_s"] + DETOUR * passes

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
