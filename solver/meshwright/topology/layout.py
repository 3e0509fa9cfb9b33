"""Where the vertices of one host stand in a picture: in rows, or on rings."""

from __future__ import annotations

import math
from collections.abc import Iterator

import networkx as nx


def first_host(graph: nx.Graph[str]) -> nx.Graph[str]:
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


def around(graph: nx.Graph[str], gpus: list[str]) -> nx.Graph[str]:
    """Return what GPUs reach."""
    return nx.Graph(graph.subgraph(_hops(graph, gpus)))


def _leanings(graph: nx.Graph[str], gpus: list[str]) -> dict[str, float]:
    """Return where each vertex leans, from 0 to 1: towards the GPUs that it serves."""
    hops = _hops(graph, gpus)
    lean = {gpu: (index + 0.5) / len(gpus) for index, gpu in enumerate(gpus)}
    for node in (node for node in hops if hops[node]):
        nearer = [lean[other] for other in graph[node] if hops[other] < hops[node]]
        lean[node] = sum(nearer) / len(nearer)
    return lean


def rows(graph: nx.Graph[str], gpus: list[str]) -> Iterator[list[str]]:
    """Yield switches of GPUs alone, GPUs, then the others by hops from a GPU.

    NICs stand halfway between what is as near to GPUs as they are, and one hop nearer.
    """
    lean, kinds = _leanings(graph, gpus), nx.get_node_attributes(graph, "kind")
    found: dict[float, list[str]] = {}
    for node, hops in _hops(graph, gpus).items():
        around_gpus = all(kinds[other] == "gpu" for other in graph[node])
        is_inner = kinds[node] == "switch" and around_gpus
        height = -1.0 if is_inner else hops - 0.5 * (kinds[node] == "nic")
        found.setdefault(height, []).append(node)
    for height in sorted(found):
        yield sorted(found[height], key=lambda node: lean[node])


def rings(graph: nx.Graph[str], gpus: list[str]) -> Iterator[tuple[str, float, float]]:
    """Yield places: GPUs on a ring, so that no link of two passes a third; others out.

    Names, x and y, from 0 to 1.
    """
    lean, hops = _leanings(graph, gpus), _hops(graph, gpus)
    found: dict[int, list[str]] = {}
    for node in sorted(hops, key=lambda node: lean[node]):
        found.setdefault(hops[node], []).append(node)
    for distance, nodes in found.items():
        radius = 0.5 * (distance + 1.5) / (max(found) + 1.5)
        for node, turn in zip(nodes, _turns([lean[n] for n in nodes]), strict=True):
            angle = 2 * math.pi * turn
            x, y = radius * math.sin(angle), radius * math.cos(angle)
            yield node, 0.5 + x, 0.5 + y


def _turns(leanings: list[float]) -> list[float]:
    """Return places on a ring, in turns: near where points lean, but well apart."""
    gap, turns = 0.5 / len(leanings), leanings[:1]
    for lean in leanings[1:]:
        turns.append(max(lean, turns[-1] + gap))
    if turns[-1] - turns[0] > 1 - gap:
        return [(index + 0.5) / len(turns) for index in range(len(turns))]
    return turns


def has_far_links(graph: nx.Graph[str], gpus: list[str]) -> bool:
    """Return whether a link joins GPUs that are not neighbours in their row."""
    at = {gpu: index for index, gpu in enumerate(gpus)}
    return any(a in at and b in at and abs(at[a] - at[b]) > 1 for a, b in graph.edges)
