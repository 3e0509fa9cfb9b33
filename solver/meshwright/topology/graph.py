"""Compiles a cluster to one NetworkX graph of GPUs, switches and links.

Vertices carry `kind` (gpu, nic or switch) and, for GPUs, `rank` and `host`. Edges carry
`gb_s` (bandwidth per direction, 1e9 bytes/s) and `latency_us` (one traversal).
"""

from __future__ import annotations

import math

import networkx as nx

from meshwright.spec.cluster import Cluster, Topology


def build_graph(cluster: Cluster) -> nx.Graph[str]:
    """Return the graph of a cluster, from its levels or its nodes and links."""
    if cluster.topology.nodes:
        return _from_nodes(cluster.topology)
    return _from_levels(cluster)


def _from_levels(cluster: Cluster) -> nx.Graph[str]:
    """Join GPUs by a tree of switches; rails to one switch are one trunk edge.

    A trunk of per-GPU uplinks has their summed bandwidth: concurrent groups load
    them evenly, which is what the plans of a lattice do.
    """
    graph: nx.Graph[str] = nx.Graph()
    sizes = [level.size for level in cluster.levels]
    children = [f"gpu{rank}" for rank in range(math.prod(sizes))]
    for rank, gpu in enumerate(children):
        graph.add_node(gpu, kind="gpu", rank=rank, host=rank // sizes[0])
    gpus_below = 1
    for level in cluster.levels:
        rails = gpus_below if level.uplink == "per_gpu" else 1
        switches = [f"{level.name}{i}" for i in range(len(children) // level.size)]
        for index, child in enumerate(children):
            switch = switches[index // level.size]
            graph.add_node(switch, kind="switch")
            gb_s = level.gb_s * rails
            graph.add_edge(child, switch, gb_s=gb_s, latency_us=level.latency_us)
        children = switches
        gpus_below *= level.size
    return graph


def _from_nodes(topology: Topology) -> nx.Graph[str]:
    graph: nx.Graph[str] = nx.Graph()
    rank = 0
    for node in topology.nodes:
        if node.kind == "gpu":
            graph.add_node(node.name, kind="gpu", rank=rank, host=node.host)
            rank += 1
        else:
            graph.add_node(node.name, kind=node.kind)
    for link in topology.links:
        graph.add_edge(*link.between, gb_s=link.gb_s, latency_us=link.latency_us)
    return graph
