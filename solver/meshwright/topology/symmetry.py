"""Which GPUs of a host could stand in each other's places."""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx


def before(
    graph: nx.Graph[str], gpus: list[str], way_out: str
) -> list[tuple[int, int]]:
    """Return pairs of GPUs of which the first may be taken to have the lower rank.

    For each GPU those are the ones that a symmetry of the graph takes it to while all
    earlier GPUs stay where they are. Of the orders that symmetries turn into each
    other this keeps the first one (Puget 2005, Breaking symmetries in all different
    problems).
    """
    wired = _with_links_as_nodes(graph)
    labels = {
        node: (own["kind"], node == way_out, own.get("link"))
        for node, own in wired.nodes(data=True)
    }
    pairs = []
    for index, gpu in enumerate(gpus):
        fixed = labels | {own: ("fixed", i) for i, own in enumerate(gpus[:index])}
        for other in range(index + 1, len(gpus)):
            if _can_swap(wired, fixed, gpu, gpus[other]):
                pairs.append((index, other))
    return pairs


def _can_swap(
    wired: nx.Graph[str], labels: Mapping[str, object], first: str, second: str
) -> bool:
    """Return whether a symmetry that keeps labels takes one vertex to another."""
    here, there = wired.copy(), wired.copy()
    nx.set_node_attributes(here, {**labels, first: "taken"}, "label")
    nx.set_node_attributes(there, {**labels, second: "taken"}, "label")
    return bool(nx.vf2pp_is_isomorphic(here, there, node_label="label"))


def _with_links_as_nodes(graph: nx.Graph[str]) -> nx.Graph[str]:
    """Return the graph with a vertex in the middle of each link that carries its data.

    Matching then has only vertices to compare.
    """
    wired: nx.Graph[str] = nx.Graph()
    wired.add_nodes_from(
        (node, {"kind": own["kind"]}) for node, own in graph.nodes.data()
    )
    for a, b, own in graph.edges(data=True):
        middle = f"{a} -> {b}"
        wired.add_node(middle, kind="link", link=(own["gb_s"], own["latency_us"]))
        wired.add_edges_from([(a, middle), (middle, b)])
    return wired
