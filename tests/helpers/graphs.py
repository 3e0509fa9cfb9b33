"""Clusters as one graph, to hold closed forms and routes against each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshwright.spec.hosts import graph_of_levels
from meshwright.spec.topology import Level
from meshwright.topology.graph import Routes, machine_graph
from meshwright.topology.routed_fabric import HostKind, RoutedFabric

if TYPE_CHECKING:
    import networkx as nx


def tree_graph(levels: Sequence[Level]) -> nx.Graph[str]:
    """Return levels as one graph; rails to one switch are one trunk edge.

    A trunk of per-GPU uplinks has their summed bandwidth: concurrent groups load
    them evenly, which is what the plans of a lattice do.
    """
    graph = machine_graph(graph_of_levels(levels, None))
    for rank in range(math.prod(level.size for level in levels)):
        graph.nodes[f"gpu{rank}"]["host"] = rank // levels[0].size
    return graph


def fabric_of_graph(graph: nx.Graph[str], sizes: tuple[int, ...]) -> RoutedFabric:
    """Return the fabric of one graph with nothing above it."""
    return RoutedFabric([HostKind(Routes(graph))], sizes)
