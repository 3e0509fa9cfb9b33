"""Chooses how a cluster is priced: by closed form on its levels, or link by link."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from meshwright.spec.cluster import Cluster
from meshwright.spec.hosts import Alike, Hosts
from meshwright.spec.links import Level
from meshwright.topology.graph import machine_graph
from meshwright.topology.host_kind import HostKind
from meshwright.topology.levels import LevelFabric
from meshwright.topology.paths import Fabric
from meshwright.topology.routed import RoutedFabric
from meshwright.topology.routes import Routes

MOST_KNOWN = 16
"""Clusters whose fabrics are kept."""


@lru_cache(maxsize=MOST_KNOWN)
def build_fabric(cluster: Cluster) -> Fabric:
    """Return the fabric of a cluster: by levels where it has them, else routed.

    Specs on one cluster share it, with all that it has worked out.
    """
    if cluster.is_tree:
        return LevelFabric(cluster.levels)
    hosts = cluster.hosts
    kinds = [_kind(kind, hosts) for kind in hosts.kinds]
    return RoutedFabric(kinds, cluster.fan_outs, tuple(_by_gpu(hosts)))


def _kind(kind: Alike, hosts: Hosts) -> HostKind:
    routes = Routes(machine_graph(kind.machine))
    if not hosts.outer:
        return HostKind(routes)
    return HostKind(routes, f"node{kind.hosts[0]}", kind.machine.way_out)


def _by_gpu(hosts: Hosts) -> Iterator[Level]:
    """Yield the levels above hosts with the uplinks of NICs shared out to GPUs."""
    for level in hosts.outer:
        gb_s = level.gb_s_per_gpu(hosts.gpus, hosts.nics)
        is_by_nic = level.uplink == "per_nic"
        changed = {"gb_s": gb_s, "uplink": "per_gpu"}
        yield level.model_copy(update=changed) if is_by_nic else level
