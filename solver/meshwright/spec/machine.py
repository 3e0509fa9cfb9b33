"""One host of a cluster as nodes and links, whichever way it was written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from meshwright.spec.links import Level, Link, Node, ScaleOut
from meshwright.spec.override import Override


class Machine(NamedTuple):
    """The nodes and links of one host, and the switch that its NICs reach."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]

    @property
    def gpus(self) -> int:
        """Return how many GPUs it has."""
        return sum(node.kind == "gpu" for node in self.nodes)

    @property
    def nics(self) -> int:
        """Return how many NICs it has."""
        return sum(node.kind == "nic" for node in self.nodes)


def outside(level: ScaleOut) -> str:
    """Return the name of the switch of a level that a host sees."""
    return f"{level.name}0"


def joined(machine: Machine, above: ScaleOut | None) -> Machine:
    """Return a machine with its NICs linked to the switch above it, if there is one."""
    if above is None:
        return machine
    switch = Node(name=outside(above), kind="switch")
    links = [
        Link(
            between=(node.name, switch.name),
            gb_s=min(node.gb_s or above.gb_s, above.gb_s),
            latency_us=above.latency_us,
        )
        for node in machine.nodes
        if node.kind == "nic"
    ]
    return Machine((*machine.nodes, switch), (*machine.links, *links))


def machine_of_levels(levels: Sequence[Level], above: ScaleOut | None) -> Machine:
    """Return the levels of one host as a tree of switches, with the NICs they need.

    A rail per GPU is a NIC at that GPU; one shared uplink is a NIC at the top switch.
    """
    gpus = math.prod(level.size for level in levels)
    nodes = [Node(name=f"gpu{rank}") for rank in range(gpus)]
    links: list[Link] = []
    children, below = [node.name for node in nodes], 1
    for level in levels:
        switches = [f"{level.name}{i}" for i in range(len(children) // level.size)]
        nodes += [Node(name=name, kind="switch") for name in switches]
        gb_s = level.gb_s * level.uplinks(below)
        links += [
            Link(
                between=(child, switches[i // level.size]),
                gb_s=gb_s,
                latency_us=level.latency_us,
            )
            for i, child in enumerate(children)
        ]
        children, below = switches, below * level.size
    if above is not None:
        is_shared = above.uplink == "shared"
        exits = children if is_shared else [f"gpu{rank}" for rank in range(gpus)]
        nodes += [Node(name=f"nic{i}", kind="nic") for i in range(len(exits))]
        latency_us = 0.0 if is_shared else sum(level.latency_us for level in levels)
        links += [
            Link(between=(name, f"nic{i}"), gb_s=above.gb_s, latency_us=latency_us)
            for i, name in enumerate(exits)
        ]
    return Machine(tuple(nodes), tuple(links))


def degraded(machine: Machine, overrides: Sequence[Override]) -> Machine:
    """Return what overrides leave of a machine; what no GPU reaches is left out."""
    down = {own.node for own in overrides if own.node is not None}
    rates = {frozenset(own.link): own.gb_s for own in overrides if own.link}
    links = [
        link.model_copy(update={"gb_s": rates.get(frozenset(link.between), link.gb_s)})
        for link in machine.links
        if not down & set(link.between)
    ]
    nodes = tuple(node for node in machine.nodes if node.name not in down)
    return Machine(nodes, tuple(link for link in links if link.gb_s > 0))
