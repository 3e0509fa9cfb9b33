"""Compiles a cluster to NetworkX graphs of GPUs, NICs, switches and links.

Vertices carry `kind` (gpu, nic or switch) and, for GPUs, `rank` and `host`. Edges carry
`gb_s` (bandwidth per direction, 1e9 bytes/s), `effective_gb_s` (what counts of it in
collectives, see `spec.links`) and `latency_us` (one traversal).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.spec.host_graph import HostGraph
from meshwright.spec.links import effective_gb_s

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
