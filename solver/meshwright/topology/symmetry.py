"""Symmetries of a host's graph: which GPUs can be exchanged without a difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx

Swap = dict[str, str]
"""A symmetry: the vertex that each vertex is mapped to."""

Colours = dict[str, int]
"""The colour of each vertex; vertices of different colours are not alike."""


def rank_order_pairs(
    graph: nx.Graph[str], gpus: list[str], way_out: str
) -> list[tuple[int, int]]:
    """Return pairs of GPUs of which the first may be taken to have the lower rank.

    A GPU is paired with every later one that a symmetry of the graph maps it to while
    all earlier GPUs stay in place. Of the orders that symmetries map to each other
    these pairs keep just the first (Puget 2005, Breaking symmetries in all different
    problems). Symmetries found for later GPUs fix the earlier ones too, and most
    others are products of them (Sims 1970, Computational methods for permutation
    groups).
    """
    kinds = {node: (data["kind"], node == way_out) for node, data in graph.nodes.data()}
    symmetries: list[Swap] = []
    pairs = []
    for index in reversed(range(len(gpus))):
        gpu, fixed = gpus[index], {name: i for i, name in enumerate(gpus[:index])}
        alike = {node: (kind, fixed.get(node, -1)) for node, kind in kinds.items()}
        reached = _orbit(gpu, symmetries)
        for other in range(index + 1, len(gpus)):
            if gpus[other] not in reached:
                found = _swap(graph, alike, gpu, gpus[other])
                symmetries += [found] if found else []
                reached = _orbit(gpu, symmetries)
            if gpus[other] in reached:
                pairs.append((index, other))
    return sorted(pairs)


def _orbit(start: str, symmetries: Sequence[Swap]) -> set[str]:
    """Return the vertices that products of symmetries map a vertex to."""
    reached, waiting = {start}, [start]
    while waiting:
        here = waiting.pop()
        found = {symmetry[here] for symmetry in symmetries} - reached
        reached |= found
        waiting += found
    return reached


def _swap(
    graph: nx.Graph[str], alike: dict[str, Any], first: str, second: str
) -> Swap | None:
    """Return a symmetry that maps one vertex to another and preserves `alike`."""
    here = {node: (label, node == first) for node, label in alike.items()}
    there = {node: (label, node == second) for node, label in alike.items()}
    number = _numbers([*here.values(), *there.values()])
    return _matched(
        graph,
        {node: number[label] for node, label in here.items()},
        {node: number[label] for node, label in there.items()},
    )


def _matched(graph: nx.Graph[str], here: Colours, there: Colours) -> Swap | None:
    """Return a symmetry that maps each vertex to one of its colour, if one exists.

    Colours are refined by those of the neighbours until they are stable (McKay and
    Piperno 2014, Practical graph isomorphism II); then one vertex is mapped to each
    candidate in turn.
    """
    here, there = _refined(graph, here, there)
    sizes = Counter(here.values())
    if sizes != Counter(there.values()):
        return None
    several = [colour for colour, size in sizes.items() if size > 1]
    if not several:
        by_colour = {colour: node for node, colour in there.items()}
        return {node: by_colour[colour] for node, colour in here.items()}
    rarest = min(several, key=lambda colour: (sizes[colour], colour))
    mapped = next(node for node, colour in here.items() if colour == rarest)
    for image in (node for node, colour in there.items() if colour == rarest):
        found = _matched(graph, here | {mapped: -1}, there | {image: -1})
        if found:
            return found
    return None


def _refined(
    graph: nx.Graph[str], here: Colours, there: Colours
) -> tuple[Colours, Colours]:
    """Return stable colours: one colour has equally coloured neighbours."""
    while True:
        known = len({*here.values(), *there.values()})
        seen, found = _surroundings(graph, here), _surroundings(graph, there)
        number = _numbers([*seen.values(), *found.values()])
        here = {node: number[near] for node, near in seen.items()}
        there = {node: number[near] for node, near in found.items()}
        if len(number) == known:
            return here, there


def _surroundings(graph: nx.Graph[str], colours: Colours) -> dict[str, Any]:
    """Return the colour of each vertex with its links and its neighbours' colours."""
    return {
        node: (
            colours[node],
            tuple(
                sorted(
                    (link["effective_gb_s"], link["latency_us"], colours[other])
                    for other, link in graph.adj[node].items()
                )
            ),
        )
        for node in colours
    }


def _numbers(values: Iterable[Any]) -> dict[Any, int]:
    """Return the distinct values, numbered in sorted order."""
    return {value: number for number, value in enumerate(sorted(set(values)))}
