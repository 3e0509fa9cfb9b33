"""The diagram of a cluster: points in rows or on rings, and the links between them.

Small clusters are drawn whole. A larger tree is drawn as one branch, whose points say
how many equals they stand for; a larger graph is drawn as its first host.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import networkx as nx

from meshwright.spec.cluster import Cluster
from meshwright.topology.diagram_layout import (
    first_host,
    has_far_links,
    reachable,
    rings,
    rows,
)
from meshwright.topology.graph import machine_graph
from meshwright.topology.host_summary import Uplinks, summarise_hosts, uplinks
from meshwright.topology.routes import Routes

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
