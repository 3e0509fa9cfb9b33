"""What a picture of a cluster shows: points in rows or rings, and links between them.

Small clusters are drawn whole. Of a larger tree one branch is, and points that stand
for their equals say how many there are; of a larger graph the first host is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import networkx as nx

from meshwright.spec.cluster import Cluster
from meshwright.topology.graph import build_graph

MOST_DRAWN = 16
"""GPUs of a tree that is drawn whole, and children that are drawn of a switch."""

MOST_NODES = 48
"""Vertices of a graph that is drawn whole."""


@dataclass(frozen=True)
class Point:
    """A vertex; x and y are from 0 to 1."""

    name: str
    kind: str
    """gpu, nic, switch, or rest: the equals that are not drawn."""
    count: int = 1
    """How many such there are in the cluster."""
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True)
class Line:
    """A link, or links side by side."""

    ends: tuple[str, str]
    gb_s: float
    latency_us: float
    rails: int = 1


@dataclass(frozen=True)
class Sketch:
    """Points and lines, and what part of the cluster they are."""

    points: tuple[Point, ...]
    lines: tuple[Line, ...]
    part: str


def sketch_cluster(cluster: Cluster) -> Sketch:
    """Return what to draw of a cluster."""
    return _graph(cluster) if cluster.topology.nodes else _tree(cluster)


def _tree(cluster: Cluster) -> Sketch:
    is_whole, total = cluster.gpus <= MOST_DRAWN, cluster.gpus
    rows, prefix, kind = [], "gpu", "gpu"
    for level in cluster.levels:
        rows.append(_row(prefix, kind, level.size, total, is_whole))
        total, prefix, kind = total // level.size, level.name, "switch"
    rows.append([Point(f"{prefix}0", kind)])
    lines, gpus_below = [], 1
    for level, children, above in zip(cluster.levels, rows, rows[1:], strict=False):
        rails = gpus_below if level.uplink == "per_gpu" else 1
        for index, child in enumerate(children):
            ends = child.name, above[index // level.size if is_whole else 0].name
            side_by_side = rails * (child.count if child.kind == "rest" else 1)
            lines.append(Line(ends, level.gb_s, level.latency_us, side_by_side))
        gpus_below *= level.size
    part = "" if is_whole else "one branch of each level"
    return Sketch(_spread(rows), tuple(lines), part)


def _row(prefix: str, kind: str, size: int, total: int, is_whole: bool) -> list[Point]:
    """Return the points of a level: all, one switch's GPUs, or one and the rest."""
    if is_whole:
        return [Point(f"{prefix}{index}", kind) for index in range(total)]
    if kind == "gpu" and size <= MOST_DRAWN:
        return [Point(f"gpu{index}", kind, total) for index in range(size)]
    first = Point(f"{prefix}0", kind, total)
    return [first, Point(f"{prefix}1 ...", "rest", size - 1)][: min(size, 2)]


def _spread(rows: Iterable[list[Point]]) -> tuple[Point, ...]:
    """Return the points of rows, from the lowest up, evenly spread."""
    rows = [row for row in rows if row]
    return tuple(
        replace(point, x=x, y=(height + 0.5) / len(rows))
        for height, row in enumerate(rows)
        for point, x in zip(row, _across(row), strict=True)
    )


def _across(row: list[Point]) -> list[float]:
    """Return where the points of a row stand; one and its rest keep the middle."""
    if row[-1].kind == "rest":
        return [0.5, 0.9]
    return [(index + 0.5) / len(row) for index in range(len(row))]


def _graph(cluster: Cluster) -> Sketch:
    graph = build_graph(cluster)
    part = ""
    if len(graph) > MOST_NODES:
        graph, part = _first_host(graph), "the first host"
    kinds = nx.get_node_attributes(graph, "kind")
    lines = tuple(
        Line((a, b), link["gb_s"], link["latency_us"])
        for a, b, link in graph.edges(data=True)
    )
    gpus = sorted(
        (node for node in graph if kinds[node] == "gpu"),
        key=lambda gpu: (graph.nodes[gpu]["host"], graph.nodes[gpu]["rank"]),
    )
    if any(kinds[a] == kinds[b] == "gpu" for a, b in graph.edges):
        return Sketch(tuple(_rings(graph, gpus)), lines, part)
    return Sketch(_spread(_rows(graph, gpus)), lines, part)


def _first_host(graph: nx.Graph[str]) -> nx.Graph[str]:
    """Return one host's GPUs, and what is nearer to them than to all others."""
    hosts = nx.get_node_attributes(graph, "host")
    first = min(hosts.values())
    near: dict[bool, dict[str, float]] = {}
    for is_own in (True, False):
        starts = {gpu for gpu, host in hosts.items() if (host == first) is is_own}
        near[is_own] = nx.multi_source_dijkstra_path_length(
            graph, starts or set(hosts), weight=_one
        )
    own = [node for node in graph if near[True][node] <= near[False][node]]
    kept = [node for node in own if hosts.get(node, first) == first]
    return nx.Graph(graph.subgraph(kept))


def _one(_a: str, _b: str, _link: dict[str, float]) -> int:
    return 1


def _hops(graph: nx.Graph[str], gpus: list[str]) -> dict[str, int]:
    """Return how far each vertex is from its nearest GPU, the nearest ones first."""
    hops = nx.multi_source_dijkstra_path_length(graph, set(gpus), weight=_one)
    return {node: int(hops[node]) for node in sorted(hops, key=lambda n: (hops[n], n))}


def _leanings(graph: nx.Graph[str], gpus: list[str]) -> dict[str, float]:
    """Return where each vertex leans, from 0 to 1: towards the GPUs that it serves."""
    hops = _hops(graph, gpus)
    lean = {gpu: (index + 0.5) / len(gpus) for index, gpu in enumerate(gpus)}
    for node in (node for node in hops if hops[node]):
        nearer = [lean[other] for other in graph[node] if hops[other] < hops[node]]
        lean[node] = sum(nearer) / len(nearer)
    return lean


def _rows(graph: nx.Graph[str], gpus: list[str]) -> Iterable[list[Point]]:
    """Yield switches of GPUs alone, GPUs, NICs, then switches by hops from a GPU."""
    lean, kinds = _leanings(graph, gpus), nx.get_node_attributes(graph, "kind")
    rows: dict[int, list[Point]] = {}
    for node, hops in _hops(graph, gpus).items():
        is_inner = hops and all(kinds[other] == "gpu" for other in graph[node])
        height = 2 if kinds[node] == "nic" else 2 + hops if hops else 1
        rows.setdefault(0 if is_inner else height, []).append(Point(node, kinds[node]))
    for height in sorted(rows):
        yield sorted(rows[height], key=lambda point: lean[point.name])


def _rings(graph: nx.Graph[str], gpus: list[str]) -> Iterable[Point]:
    """Yield GPUs on a ring, so that no link of two passes a third; others outside."""
    lean, hops = _leanings(graph, gpus), _hops(graph, gpus)
    rings: dict[int, list[str]] = {}
    for node in sorted(hops, key=lambda node: lean[node]):
        rings.setdefault(hops[node], []).append(node)
    for distance, nodes in rings.items():
        radius = 0.5 * (distance + 1.5) / (max(rings) + 1.5)
        for index, node in enumerate(nodes):
            angle = 2 * math.pi * (index + 0.5) / len(nodes)
            x, y = radius * math.sin(angle), radius * math.cos(angle)
            yield Point(node, graph.nodes[node]["kind"], 1, 0.5 + x, 0.5 + y)
