"""Which GPUs of a host could stand in each other's places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx

Swap = dict[str, str]
"""Where a symmetry takes each vertex."""

Colours = dict[str, int]
"""Of each vertex: vertices with different colours are not alike."""


def before(
    graph: nx.Graph[str], gpus: list[str], way_out: str
) -> list[tuple[int, int]]:
    """Return pairs of GPUs of which the first may be taken to have the lower rank.

    For each GPU those are the ones that a symmetry of the graph takes it to while all
    earlier GPUs stay where they are. Of the orders that symmetries turn into each
    other this keeps the first one (Puget 2005, Breaking symmetries in all different
    problems). Symmetries found for later GPUs keep earlier ones too: most others are
    made of them (Sims 1970, Computational methods for permutation groups).
    """
    kinds = {node: (own["kind"], node == way_out) for node, own in graph.nodes.data()}
    symmetries: list[Swap] = []
    pairs = []
    for index in reversed(range(len(gpus))):
        gpu, fixed = gpus[index], {own: i for i, own in enumerate(gpus[:index])}
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
    """Return where symmetries take a vertex, one after the other."""
    reached, waiting = {start}, [start]
    while waiting:
        here = waiting.pop()
        found = {own[here] for own in symmetries} - reached
        reached |= found
        waiting += found
    return reached


def _swap(
    graph: nx.Graph[str], alike: dict[str, Any], first: str, second: str
) -> Swap | None:
    """Return a symmetry that takes one vertex to another and keeps what is `alike`."""
    here = {node: (own, node == first) for node, own in alike.items()}
    there = {node: (own, node == second) for node, own in alike.items()}
    number = _numbers([*here.values(), *there.values()])
    return _matched(
        graph,
        {node: number[own] for node, own in here.items()},
        {node: number[own] for node, own in there.items()},
    )


def _matched(graph: nx.Graph[str], here: Colours, there: Colours) -> Swap | None:
    """Return a symmetry that takes each vertex to one of its colour, if there is one.

    Colours are told apart by those of the neighbours until that tells nothing more
    (McKay and Piperno 2014, Practical graph isomorphism II); then one vertex is taken
    to each that it may stand for.
    """
    here, there = _refined(graph, here, there)
    sizes = Counter(here.values())
    if sizes != Counter(there.values()):
        return None
    several = [colour for colour, size in sizes.items() if size > 1]
    if not several:
        by_colour = {colour: node for node, colour in there.items()}
        return {node: by_colour[colour] for node, colour in here.items()}
    colour = min(several, key=lambda own: (sizes[own], own))
    taken = next(node for node, own in here.items() if own == colour)
    for other in (node for node, own in there.items() if own == colour):
        found = _matched(graph, here | {taken: -1}, there | {other: -1})
        if found:
            return found
    return None


def _refined(
    graph: nx.Graph[str], here: Colours, there: Colours
) -> tuple[Colours, Colours]:
    """Return colours of which all vertices with one have neighbours alike."""
    while True:
        known = len({*here.values(), *there.values()})
        seen, found = _surroundings(graph, here), _surroundings(graph, there)
        number = _numbers([*seen.values(), *found.values()])
        here = {node: number[own] for node, own in seen.items()}
        there = {node: number[own] for node, own in found.items()}
        if len(number) == known:
            return here, there


def _surroundings(graph: nx.Graph[str], colours: Colours) -> dict[str, Any]:
    """Return the colour of each vertex, and its links with those of neighbours."""
    return {
        node: (
            colours[node],
            tuple(
                sorted(
                    (link["gb_s"], link["latency_us"], colours[other])
                    for other, link in graph.adj[node].items()
                )
            ),
        )
        for node in colours
    }


def _numbers(seen: Iterable[Any]) -> dict[Any, int]:
    return {own: number for number, own in enumerate(sorted(set(seen)))}
