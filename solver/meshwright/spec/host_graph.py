"""One host of a cluster as nodes and links, whether written so or as levels."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from meshwright.spec.links import Level, Link, Node, ScaleOut
from meshwright.spec.override import Override


class HostGraph(NamedTuple):
    """The nodes and links of one host, and the switch that its NICs reach."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    way_out: str = ""
    """Name of the switch that the NICs reach; empty where nothing is above the host."""

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of the host."""
        return sum(node.kind == "gpu" for node in self.nodes)

    @property
    def nics(self) -> int:
        """Return the number of NICs of the host."""
        return sum(node.kind == "nic" for node in self.nodes)


def with_switch_above(machine: HostGraph, above: ScaleOut | None) -> HostGraph:
    """Return a host with its NICs linked to the switch of the level above, if any."""
    if above is None:
        return machine
    (name,) = _switches(above, 1, [node.name for node in machine.nodes])
    switch = Node(name=name, kind="switch")
    links = [
        Link(
            between=(node.name, switch.name),
            gb_s=min(node.gb_s or above.gb_s, above.gb_s),
            latency_us=above.latency_us,
            bus_share=above.bus_share,
        )
        for node in machine.nodes
        if node.kind == "nic"
    ]
    return HostGraph((*machine.nodes, switch), (*machine.links, *links), name)


def _switches(level: ScaleOut, count: int, taken: Collection[str]) -> list[str]:
    """Return names for the switches of a level that no other node has."""
    name = level.name
    while not set(taken).isdisjoint(names := [f"{name}{i}" for i in range(count)]):
        name += "-switch"
    return names


def graph_of_levels(levels: Sequence[Level], above: ScaleOut | None) -> HostGraph:
    """Return the levels of one host as a tree of switches, with NICs at its top.

    A rail per GPU is a NIC at that GPU; one shared uplink is a NIC at the top switch.
    """
    gpus = math.prod(level.size for level in levels)
    nodes = [Node(name=f"gpu{rank}") for rank in range(gpus)]
    links: list[Link] = []
    nics = [f"nic{i}" for i in range(gpus if above else 0)]
    children, below = [node.name for node in nodes], 1
    for level in levels:
        taken = [*nics, *(node.name for node in nodes)]
        switches = _switches(level, len(children) // level.size, taken)
        nodes += [Node(name=name, kind="switch") for name in switches]
        gb_s = level.gb_s * level.uplinks(below)
        links += [
            Link(
                between=(child, switches[i // level.size]),
                gb_s=gb_s,
                latency_us=level.latency_us,
                bus_share=level.bus_share,
            )
            for i, child in enumerate(children)
        ]
        children, below = switches, below * level.size
    if above is not None:
        is_shared = above.uplink == "shared"
        exits = children if is_shared else [f"gpu{rank}" for rank in range(gpus)]
        nodes += [Node(name=name, kind="nic") for name in nics[: len(exits)]]
        latency_us = (
            0.0 if is_shared else math.fsum(level.latency_us for level in levels)
        )
        links += [
            Link(
                between=pair,
                gb_s=above.gb_s,
                latency_us=latency_us,
                bus_share=above.bus_share,
            )
            for pair in zip(exits, nics, strict=False)
        ]
    return HostGraph(tuple(nodes), tuple(links))


def degraded(machine: HostGraph, overrides: Sequence[Override]) -> HostGraph:
    """Return a host after overrides: what is down is left out, slow links have less."""
    down = {override.node for override in overrides if override.node is not None}
    rates = {
        frozenset(override.link): override.gb_s
        for override in overrides
        if override.link
    }
    links = [
        link.model_copy(update={"gb_s": rates.get(frozenset(link.between), link.gb_s)})
        for link in machine.links
        if not down & set(link.between)
    ]
    nodes = tuple(node for node in machine.nodes if node.name not in down)
    kept = tuple(link for link in links if link.gb_s > 0)
    return HostGraph(nodes, kept, machine.way_out)
