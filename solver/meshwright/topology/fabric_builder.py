"""Builds the fabric of a cluster: a closed form for levels, or routes on graphs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from meshwright.spec.cluster import Cluster
from meshwright.spec.hosts import HostGroup, Hosts, split_levels
from meshwright.spec.topology import Level
from meshwright.topology.fabric import EXPERTS_EXCHANGE, Exchanges, Fabric
from meshwright.topology.graph import Routes, machine_graph
from meshwright.topology.level_fabric import LevelFabric
from meshwright.topology.routed_fabric import HostKind, RoutedFabric

CACHE_SIZE = 16
"""Clusters whose fabrics are kept."""


@lru_cache(maxsize=CACHE_SIZE)
def build_fabric(cluster: Cluster, exchanging: Exchanges = EXPERTS_EXCHANGE) -> Fabric:
    """Return the fabric of a cluster: by levels if it is a tree, else routed.

    Specs on the same cluster share the fabric and the routes it has found. `exchanging`
    has the groups that send all to all. A node is the host, or the innermost level
    where hosts are parts of one, as in racks that NVLink joins.
    """
    if cluster.is_tree:
        split = split_levels(cluster.levels, cluster.gpus_per_host)
        return LevelFabric(cluster.levels, exchanging, len(split[0]) if split else 1)
    hosts = cluster.hosts
    kinds = [_host_kind(alike, hosts) for alike in hosts.groups]
    outer = tuple(_per_gpu_levels(hosts))
    return RoutedFabric(kinds, cluster.fan_outs, outer, exchanging)


def _host_kind(alike: HostGroup, hosts: Hosts) -> HostKind:
    routes = Routes(machine_graph(alike.machine))
    if not hosts.outer:
        return HostKind(routes)
    return HostKind(routes, f"node{alike.hosts[0]}", alike.machine.way_out)


def _per_gpu_levels(hosts: Hosts) -> Iterator[Level]:
    """Yield the levels above hosts, with uplinks per NIC converted to per GPU."""
    for level in hosts.outer:
        gb_s = level.gb_s_per_gpu(hosts.gpus, hosts.nics)
        is_by_nic = level.uplink == "per_nic"
        changed = {"gb_s": gb_s, "uplink": "per_gpu"}
        yield level.model_copy(update=changed) if is_by_nic else level
