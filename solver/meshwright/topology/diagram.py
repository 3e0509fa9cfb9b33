"""The diagram of a cluster: points in rows or on rings, and the links between them.

Small clusters are drawn whole. A larger tree is drawn as one branch, whose points say
how many equals they stand for; a larger graph is drawn as its first host.

A summary tells hosts in words, with the bandwidth between pairs of their GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import networkx as nx

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


MOST_DRAWN = 16
"""GPUs up to which a tree is drawn whole, and a switch with all its children."""

MOST_NODES = 48
"""Vertices up to which a graph is drawn whole."""


@dataclass(frozen=True)
class Point:
    """A vertex; x and y are from 0 to 1."""

    name: str
    kind: str
    """gpu, nic, switch, or rest: a mark for the equals that are not drawn."""
    count: int = 1
    """How many vertices of the cluster it stands for."""
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True)
class Line:
    """A link, or several parallel ones."""

    ends: tuple[str, str]
    gb_s: float
    latency_us: float
    rails: int = 1
    """Number of parallel links."""


@dataclass(frozen=True)
class Diagram:
    """Points and lines, and the part of the cluster that they show."""

    points: tuple[Point, ...]
    lines: tuple[Line, ...]
    part: str


def draw_cluster(cluster: Cluster) -> Diagram:
    """Return the diagram of a cluster."""
    return _tree(cluster) if cluster.is_tree else _host(cluster)


def _tree(cluster: Cluster) -> Diagram:
    is_whole, total = cluster.gpus <= MOST_DRAWN, cluster.gpus
    drawn, prefix, kind = [], "gpu", "gpu"
    for level in cluster.levels:
        drawn.append(_row(prefix, kind, level.size, total, is_whole))
        total, prefix, kind = total // level.size, level.name, "switch"
    drawn.append([Point(f"{prefix}0", kind)])
    lines, steps = [], zip(uplinks(cluster.levels), drawn, drawn[1:], strict=False)
    for (level, _, rails), children, above in steps:
        for index, child in enumerate(children):
            ends = child.name, above[index // level.size if is_whole else 0].name
            parallel = rails * (child.count if child.kind == "rest" else 1)
            lines.append(Line(ends, level.gb_s, level.latency_us, parallel))
    part = "" if is_whole else "one branch of each level"
    return Diagram(_spread(drawn), tuple(lines), part)


def _row(prefix: str, kind: str, size: int, total: int, is_whole: bool) -> list[Point]:
    """Return the points of a level: all, one switch's GPUs, or one and the rest."""
    if is_whole:
        return [Point(f"{prefix}{index}", kind) for index in range(total)]
    if kind == "gpu" and size <= MOST_DRAWN:
        return [Point(f"gpu{index}", kind, total) for index in range(size)]
    first = Point(f"{prefix}0", kind, total)
    return [first, Point(f"{prefix}1 ...", "rest", size - 1)][: min(size, 2)]


def _spread(drawn: Iterable[list[Point]]) -> tuple[Point, ...]:
    """Return the points of rows, from the lowest up, with their places."""
    filled = [row for row in drawn if row]
    return tuple(
        replace(point, x=x, y=(height + 0.3) / (len(filled) - 0.4))
        for height, row in enumerate(filled)
        for point, x in zip(row, _across(row), strict=True)
    )


def _across(row: list[Point]) -> list[float]:
    """Return the x of the points of a row; one with its rest stays in the middle."""
    if row[-1].kind == "rest":
        return [0.5, 0.9][-len(row) :]
    return [(index + 0.5) / len(row) for index in range(len(row))]


def _host(cluster: Cluster) -> Diagram:
    """Return the first host, with the levels above it unless it is drawn as rings."""
    first, outer = summarise_hosts(cluster)[0], cluster.hosts.outer
    whole = machine_graph(first.machine)
    way_out = [first.machine.way_out] if outer else []
    graph, gpus = _inside(whole, way_out)
    hosts = math.prod(level.size for level in outer)
    part = f"{first.name}, one of {hosts:,} hosts" if outer else ""
    part = part or "the first host" * (len(whole) > MOST_NODES)
    kinds = nx.get_node_attributes(graph, "kind")
    if has_far_links(graph, gpus):
        places = rings(graph, gpus)
        points = tuple(Point(node, kinds[node], 1, x, y) for node, x, y in places)
        without = "".join(f"; without {name}" for name in way_out)
        return Diagram(points, tuple(_links(graph)), part + without)
    drawn = [[Point(node, kinds[node]) for node in row] for row in rows(graph, gpus)]
    lines = [*_links(whole.subgraph([*graph, *way_out]))]
    lines += _add_levels(drawn, uplinks(outer, first.gpus, first.nics), way_out)
    return Diagram(_spread(drawn), tuple(lines), part)


def _inside(
    whole: nx.Graph[str], way_out: list[str]
) -> tuple[nx.Graph[str], list[str]]:
    """Return the part of a host to draw, and its GPUs in order."""
    graph = first_host(whole) if len(whole) > MOST_NODES else nx.Graph(whole)
    graph.remove_nodes_from(way_out)
    gpus = Routes(graph).gpus
    return reachable(graph, gpus), gpus


def _links(graph: nx.Graph[str]) -> Iterator[Line]:
    for a, b, link in graph.edges(data=True):
        yield Line((a, b), link["gb_s"], link["latency_us"])


def _add_levels(
    drawn: list[list[Point]], outer: Iterable[Uplinks], way_out: list[str]
) -> Iterator[Line]:
    """Add one branch of the levels above a host to its rows; yield its links."""
    below: list[Point] = []
    for level, _, rails in outer:
        above = Point(f"{level.name}0" if below else way_out[0], "switch")
        rest = Point(f"below {above.name} ...", "rest", level.size - 1)
        row = [*below, *([rest] if rest.count else [])]
        for point in row:
            ends, parallel = (point.name, above.name), rails * point.count
            yield Line(ends, level.gb_s, level.latency_us, parallel)
        drawn.append(row)
        below = [above]
    drawn.append(below)


def first_host(graph: nx.Graph[str]) -> nx.Graph[str]:
    """Return the first host's GPUs, and the vertices nearest to them."""
    hosts = nx.get_node_attributes(graph, "host")
    first = min(hosts.values())
    distance: dict[bool, dict[str, float]] = {}
    for is_first in (True, False):
        starts = {gpu for gpu, host in hosts.items() if (host == first) is is_first}
        distance[is_first] = nx.multi_source_dijkstra_path_length(
            graph, starts or set(hosts), weight=_one
        )
    near = [node for node in graph if distance[True][node] <= distance[False][node]]
    kept = [node for node in near if hosts.get(node, first) == first]
    return nx.Graph(graph.subgraph(kept))


def _one(_a: str, _b: str, _link: dict[str, float]) -> int:
    return 1


def _hops(graph: nx.Graph[str], gpus: list[str]) -> dict[str, int]:
    """Return the hops from each vertex to its nearest GPU, in ascending order."""
    hops = nx.multi_source_dijkstra_path_length(graph, set(gpus), weight=_one)
    return {node: int(hops[node]) for node in sorted(hops, key=lambda n: (hops[n], n))}


def reachable(graph: nx.Graph[str], gpus: list[str]) -> nx.Graph[str]:
    """Return the part of a graph that its GPUs reach."""
    return nx.Graph(graph.subgraph(_hops(graph, gpus)))


def _positions(graph: nx.Graph[str], gpus: list[str]) -> dict[str, float]:
    """Return the mean position, from 0 to 1, of the GPUs that each vertex serves."""
    hops = _hops(graph, gpus)
    position = {gpu: (index + 0.5) / len(gpus) for index, gpu in enumerate(gpus)}
    for node in (node for node in hops if hops[node]):
        nearer = [position[other] for other in graph[node] if hops[other] < hops[node]]
        position[node] = math.fsum(nearer) / len(nearer)
    return position


def rows(graph: nx.Graph[str], gpus: list[str]) -> Iterator[list[str]]:
    """Yield the rows from below: switches among GPUs, GPUs, then others by hops.

    NICs have a separate row, half a hop nearer to the GPUs.
    """
    position, kinds = _positions(graph, gpus), nx.get_node_attributes(graph, "kind")
    found: dict[float, list[str]] = {}
    for node, hops in _hops(graph, gpus).items():
        around_gpus = all(kinds[other] == "gpu" for other in graph[node])
        is_inner = kinds[node] == "switch" and around_gpus
        height = -1.0 if is_inner else hops - 0.5 * (kinds[node] == "nic")
        found.setdefault(height, []).append(node)
    for height in sorted(found):
        yield sorted(found[height], key=lambda node: position[node])


def rings(graph: nx.Graph[str], gpus: list[str]) -> Iterator[tuple[str, float, float]]:
    """Yield name, x and y, from 0 to 1: GPUs on the inner ring, others further out.

    On a ring no link between two GPUs passes through a third.
    """
    position, hops = _positions(graph, gpus), _hops(graph, gpus)
    found: dict[int, list[str]] = {}
    for node in sorted(hops, key=lambda node: position[node]):
        found.setdefault(hops[node], []).append(node)
    for distance, nodes in found.items():
        radius = 0.5 * (distance + 1.5) / (max(found) + 1.5)
        for node, turn in zip(nodes, _turns([position[n] for n in nodes]), strict=True):
            angle = 2 * math.pi * turn
            x, y = radius * math.sin(angle), radius * math.cos(angle)
            yield node, 0.5 + x, 0.5 + y


def _turns(positions: list[float]) -> list[float]:
    """Return places on a ring, in turns: near the given positions, but well apart."""
    gap, turns = 0.5 / len(positions), positions[:1]
    for position in positions[1:]:
        turns.append(max(position, turns[-1] + gap))
    if turns[-1] - turns[0] > 1 - gap:
        return [(index + 0.5) / len(turns) for index in range(len(turns))]
    return turns


def has_far_links(graph: nx.Graph[str], gpus: list[str]) -> bool:
    """Return whether a link joins GPUs that are not neighbours in their row."""
    at = {gpu: index for index, gpu in enumerate(gpus)}
    return any(a in at and b in at and abs(at[a] - at[b]) > 1 for a, b in graph.edges)
