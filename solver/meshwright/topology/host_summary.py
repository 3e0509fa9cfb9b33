"""Summaries of a cluster's hosts, and the bandwidth between pairs of its GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.spec.cluster import Cluster
from meshwright.spec.hosts import (
    HostGraph,
    HostGroup,
    graph_of_levels,
    split_levels,
    with_switch_above,
)
from meshwright.spec.topology import MAX_NODES, Level, Link, some
from meshwright.topology.graph import Routes, machine_graph


class HostSummary(NamedTuple):
    """Hosts that are alike: their number, their parts, their faults."""

    name: str
    """Name of the first of the hosts."""
    where: str
    """Names of all the hosts, neighbours as ranges."""
    size: int
    """Number of the hosts."""
    gpus: int
    """GPUs of one host."""
    nics: int
    """NICs of one host."""
    machine: HostGraph
    """One host as a graph; empty where it has more GPUs than graphs may have."""
    lacks: tuple[str, ...]
    """Sentences on what is down or slow, compared with the topology."""


def summarise_hosts(cluster: Cluster) -> tuple[HostSummary, ...]:
    """Return a summary for each kind of host that plans may use; a tree has one.

    Where a host is only part of a tree's level, the machine is the innermost level.
    """
    if cluster.is_tree:
        return (_tree_summary(cluster),)
    return tuple(_graph_summary(cluster, alike) for alike in cluster.hosts.groups)


def _tree_summary(cluster: Cluster) -> HostSummary:
    levels, gpus = cluster.levels, cluster.gpus_per_host
    split = split_levels(levels, gpus)
    inside, outer = split or (levels[:1], levels[1:])
    nics, above, machine = 0, None, HostGraph((), ())
    if outer:
        above = outer[0]
        nics = gpus if above.uplink == "per_gpu" else int(split is not None)
    if math.prod(level.size for level in inside) <= MAX_NODES:
        machine = with_switch_above(graph_of_levels(inside, above), above)
    size = cluster.gpus // gpus
    return HostSummary("node0", spans(range(size)), size, gpus, nics, machine, ())


def _graph_summary(cluster: Cluster, alike: HostGroup) -> HostSummary:
    hosts, machine = alike.hosts, alike.machine
    return HostSummary(
        f"node{hosts[0]}",
        spans(hosts),
        len(hosts),
        machine.gpus,
        machine.nics,
        machine,
        tuple(_lacks(cluster, alike)),
    )


def levels_above(cluster: Cluster) -> tuple[Uplinks, ...]:
    """Return the levels above the hosts' graphs; all levels where it is a tree."""
    if cluster.is_tree:
        return tuple(uplinks(cluster.levels))
    first = cluster.hosts.groups[0].machine
    return tuple(uplinks(cluster.hosts.outer, first.gpus, first.nics))


class Uplinks(NamedTuple):
    """A level, with the GPUs below each child of its switches and its uplinks."""

    level: Level
    gpus: int
    rails: int


def uplinks(levels: Iterable[Level], gpus: int = 1, nics: int = 1) -> Iterator[Uplinks]:
    """Yield levels, innermost first, above hosts with so many GPUs and NICs."""
    for level in levels:
        yield Uplinks(level, gpus, level.uplinks(gpus, nics))
        gpus, nics = gpus * level.size, nics * level.size


def _lacks(cluster: Cluster, alike: HostGroup) -> Iterator[str]:
    """Yield sentences on what hosts lack, in the order of the topology."""
    rated, _ = cluster.rated_host
    names = {node.name for node in alike.machine.nodes}
    gone = [node.name for node in rated.nodes if node.name not in names]
    host = alike.hosts[0]
    down = {change.node for change in cluster.overrides if change.holds_for(host)}
    for name in gone:
        yield f"{name} is {'down' if name in down else 'not used'}"
    rates = {link.between: link.gb_s for link in alike.machine.links}
    for link in rated.links:
        if not set(link.between) & set(gone):
            yield from _slower(link, rates.get(link.between, 0.0))


def _slower(link: Link, gb_s: float) -> Iterator[str]:
    if gb_s != link.gb_s:
        state = f"has {gb_s:g} of {link.gb_s:g} GB/s" if gb_s else "is down"
        yield f"{' - '.join(link.between)} {state}"


def left_out(cluster: Cluster) -> tuple[int, ...]:
    """Return the numbers of the hosts that no plan may use."""
    return () if cluster.is_tree else cluster.hosts.left_out


def why_left_out(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield the names of hosts that are left out, and the reason."""
    out = left_out(cluster)
    whole = {change.host for change in cluster.overrides if change.is_whole_host}
    down = [host for host in out if host in whole]
    poorer = [host for host in out if host not in whole]
    if down:
        yield spans(down), "down"
    if poorer:
        yield spans(poorer), "fewer GPUs than the others"


def spans(hosts: Iterable[int]) -> str:
    """Return the names of hosts, neighbours as ranges: node0 to node5, node7."""
    found: list[list[int]] = []
    for host in hosts:
        if found and host == found[-1][1] + 1:
            found[-1][1] = host
        else:
            found.append([host, host])
    return some([_span(first, last) for first, last in found])


def _span(first: int, last: int) -> str:
    if first == last:
        return f"node{first}"
    return f"node{first}{',' if last == first + 1 else ' to'} node{last}"


MOST_GPUS = 16
"""GPUs up to which the matrix is printed, and covers all of a tree."""

MOST_PAIRED = 128
"""GPUs of a host up to which pairs are compared."""


@dataclass(frozen=True)
class PairBandwidths:
    """GPUs, and the GB/s between every two; None on the diagonal."""

    gpus: tuple[str, ...]
    gb_s: tuple[tuple[float | None, ...], ...]

    @property
    def range_gb_s(self) -> tuple[float, float]:
        """Return the least and the greatest bandwidth."""
        known = [value for row in self.gb_s for value in row if value is not None]
        return min(known), max(known)


def pair_bandwidths(cluster: Cluster) -> PairBandwidths:
    """Return the pairs of the first host, or of a whole tree of up to 16 GPUs."""
    return _of_levels(cluster) if cluster.is_tree else _of_routes(cluster)


def _of_levels(cluster: Cluster) -> PairBandwidths:
    is_small = cluster.gpus <= MOST_GPUS
    count = min(cluster.gpus if is_small else cluster.gpus_per_host, MOST_PAIRED)
    rows = (
        tuple(None if a == b else _uplink_gb_s(cluster, a, b) for b in range(count))
        for a in range(count)
    )
    return PairBandwidths(tuple(f"gpu{rank}" for rank in range(count)), tuple(rows))


def _uplink_gb_s(cluster: Cluster, a: int, b: int) -> float:
    """Return the narrowest uplink up to the lowest switch above both ranks.

    A pair uses one uplink of each level, however many are parallel. A topology of
    nodes and links has no such levels: infinite.
    """
    least = float("inf")
    for level in () if cluster.topology.nodes else cluster.levels:
        a, b, least = a // level.size, b // level.size, min(least, level.gb_s)
        if a == b:
            break
    return least


def _of_routes(cluster: Cluster) -> PairBandwidths:
    routes = Routes(machine_graph(cluster.hosts.groups[0].machine))
    gpus, nodes = routes.gpus, routes.graph.nodes
    if len(gpus) > MOST_GPUS:
        gpus = [gpu for gpu in gpus if nodes[gpu]["host"] == nodes[gpus[0]]["host"]]
    gpus = gpus[:MOST_PAIRED]
    rated = [node.name for node in cluster.rated_host[0].nodes if node.kind == "gpu"]
    ranks = {gpu: rated.index(gpu) for gpu in gpus}

    def gb_s(a: str, b: str) -> float:
        rail_gb_s = _uplink_gb_s(cluster, ranks[a], ranks[b])
        return min(_route_gb_s(routes, a, b), rail_gb_s)

    rows = (tuple(None if a == b else gb_s(a, b) for b in gpus) for a in gpus)
    return PairBandwidths(tuple(gpus), tuple(rows))


def _route_gb_s(routes: Routes, start: str, end: str) -> float:
    """Return the rate of a message at which the first link of its route is full."""
    shares = routes.route(start, end).shares
    used = shares > 0
    return float((routes.gb_s[used] / shares[used]).min())
