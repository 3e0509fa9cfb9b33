"""The bandwidth between each two GPUs, by the widest path through no other GPU."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

from meshwright.spec.cluster import Cluster
from meshwright.topology.graph import build_graph

MOST_GPUS = 16
"""A matrix of more does not fit on a page."""


@dataclass(frozen=True)
class Pairs:
    """GPUs, and GB/s between each two; None on the diagonal and without a path."""

    gpus: tuple[str, ...]
    gb_s: tuple[tuple[float | None, ...], ...]

    @property
    def range_gb_s(self) -> tuple[float, float]:
        """Return the least and the greatest bandwidth."""
        known = [value for row in self.gb_s for value in row if value is not None]
        return min(known), max(known)


def pair_bandwidths(cluster: Cluster) -> Pairs:
    """Return the pairs of a whole cluster of up to 16 GPUs, else of its first host."""
    if cluster.topology.nodes:
        return _of_graph(cluster)
    count = cluster.gpus if cluster.gpus <= MOST_GPUS else cluster.gpus_per_host
    gpus = tuple(f"gpu{rank}" for rank in range(count))
    return Pairs(
        gpus,
        _matrix(
            [[_of_levels(cluster, a, b) for b in range(count)] for a in range(count)]
        ),
    )


def _of_levels(cluster: Cluster, a: int, b: int) -> float:
    """Return the least uplink up to the lowest switch above both ranks.

    A pair uses one uplink of each level, however many lie side by side.
    """
    least = float("inf")
    for level in cluster.levels:
        a, b, least = a // level.size, b // level.size, min(least, level.gb_s)
        if a == b:
            break
    return least


def _of_graph(cluster: Cluster) -> Pairs:
    graph = build_graph(cluster)
    hosts = nx.get_node_attributes(graph, "host")
    gpus = sorted(hosts, key=lambda gpu: (hosts[gpu], graph.nodes[gpu]["rank"]))
    passive = [node for node in graph if node not in hosts]
    if len(gpus) > MOST_GPUS:
        gpus = [gpu for gpu in gpus if hosts[gpu] == hosts[gpus[0]]]
    return Pairs(tuple(gpus), _matrix([_widths(graph, passive, a, gpus) for a in gpus]))


def _widths(
    graph: nx.Graph[str], passive: list[str], start: str, ends: list[str]
) -> list[float]:
    """Return the widths from one GPU to others; the other GPUs pass nothing on.

    Widest paths lie on the tree that spans a graph by its widest links.
    """
    tree = nx.maximum_spanning_tree(graph.subgraph([*passive, start]), weight="gb_s")
    widths = {start: float("inf")}
    for before, node in nx.bfs_edges(tree, start):
        widths[node] = min(widths[before], tree.edges[before, node]["gb_s"])
    return [
        max(
            min(widths.get(last, 0.0), link["gb_s"])
            for last, link in graph.adj[end].items()
        )
        for end in ends
    ]


def _matrix(gb_s: list[list[float]]) -> tuple[tuple[float | None, ...], ...]:
    return tuple(
        tuple(None if a == b else value or None for b, value in enumerate(row))
        for a, row in enumerate(gb_s)
    )
