"""Chooses how a cluster is priced: by closed form on its levels, or link by link."""

from __future__ import annotations

from meshwright.spec.cluster import Cluster
from meshwright.topology.graph import build_graph
from meshwright.topology.levels import LevelFabric
from meshwright.topology.paths import Fabric
from meshwright.topology.routed import RoutedFabric


def build_fabric(cluster: Cluster) -> Fabric:
    """Return the fabric of a cluster: by levels where it has them, else routed."""
    if cluster.topology.nodes:
        return RoutedFabric(build_graph(cluster), cluster.fan_outs)
    return LevelFabric(cluster.levels)
