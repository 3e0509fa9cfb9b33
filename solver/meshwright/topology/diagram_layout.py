"""Places the vertices of one host in a diagram: in rows, or on rings."""

from __future__ import annotations

import math
from collections.abc import Iterator

import networkx as nx


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

    NICs have a row of their own, half a hop nearer to the GPUs.
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
