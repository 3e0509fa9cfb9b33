"""Adds the PCIe tree of a machine, inferred from how near its devices are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from meshwright.imports.default_bandwidths import (
    INNER_LATENCY_US,
    PORT_LATENCY_US,
    SOCKET_GB_S,
)
from meshwright.imports.graph_builder import GraphBuilder
from meshwright.imports.machine_facts import (
    RELATIONS,
    MachineFacts,
    Pair,
    components,
    pairs_of,
)

STEMS = dict(zip(RELATIONS, ("pcie", "bridge", "host", "numa", "system"), strict=True))
"""By relation, the stem of the name of the switch where its devices meet."""

RANK = {relation: rank for rank, relation in enumerate(RELATIONS)}

ONE_PORT_WIDE = ("", "PIX", "PXB")
"""Relations whose uplink is as wide as one port: devices and PCIe switches. Roots have
as much as their ports together."""


def add_pcie_tree(machine: MachineFacts, port_gb_s: float, graph: GraphBuilder) -> None:
    """Add switches, roots and sockets above all devices, one relation at a time."""
    tree = _Tree(machine, port_gb_s, graph)
    for relation in RELATIONS:
        tree.join(relation)
    tree.note()


@dataclass(frozen=True)
class _Branch:
    """A device, or a switch with all devices below it."""

    top: str
    devices: tuple[str, ...]
    relation: str = ""
    """The relation of the devices; empty for a single device."""


@dataclass
class _Tree:
    machine: MachineFacts
    port_gb_s: float
    graph: GraphBuilder
    branches: list[_Branch] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    """Sentences on pairs that the file has further apart than the tree."""

    def __post_init__(self) -> None:
        nics = (nic.name for nic in self.machine.nics)
        names = (*self.machine.gpus, *nics)
        self.branches = [_Branch(name, (name,)) for name in names]

    @property
    def socket_gb_s(self) -> float:
        return self.machine.socket_gb_s or SOCKET_GB_S

    def join(self, relation: str) -> None:
        """Put branches that are in this relation, or nearer, under one switch."""
        by_top = {branch.top: branch for branch in self.branches}
        groups = components(by_top, self._pairs(relation))
        self.branches = [
            self._merged([by_top[top] for top in group], relation) for group in groups
        ]

    def _pairs(self, relation: str) -> Iterator[Pair]:
        for a, b in itertools.combinations(self.branches, 2):
            if relation == "SYS" or self._meet(a, b, relation):
                yield frozenset((a.top, b.top))

    def _meet(self, a: _Branch, b: _Branch, relation: str) -> bool:
        """Return whether branches are this near: by relations, else by NUMA node."""
        pairs = [frozenset((x, y)) for x in a.devices for y in b.devices]
        cells = [
            self.machine.relations[p] for p in pairs if p in self.machine.relations
        ]
        if cells:
            return min(RANK[cell] for cell in cells) <= RANK[relation]
        return relation == "NODE" and any(map(self._share_socket, pairs))

    def _share_socket(self, pair: Pair) -> bool:
        sockets = [self.machine.sockets.get(name) for name in pair]
        return None not in sockets and len(set(sockets)) == 1

    def _merged(self, group: list[_Branch], relation: str) -> _Branch:
        if len(group) == 1:
            return group[0]
        top = self.graph.switch(STEMS[relation], is_counted=relation != "SYS")
        for branch in group:
            is_device = not branch.relation
            latency_us = PORT_LATENCY_US if is_device else INNER_LATENCY_US
            self.graph.link(branch.top, top, self._gb_s(branch, relation), latency_us)
        self._check(group, relation)
        devices = tuple(device for branch in group for device in branch.devices)
        return _Branch(top, devices, relation)

    def _gb_s(self, branch: _Branch, relation: str) -> float:
        is_narrow = branch.relation in ONE_PORT_WIDE
        gb_s = self.port_gb_s if is_narrow else self.graph.links_gb_s(branch.top)
        return min(gb_s, self.socket_gb_s) if relation == "SYS" else gb_s

    def _check(self, group: list[_Branch], relation: str) -> None:
        for a, b in itertools.combinations(group, 2):
            for x, y in itertools.product(a.devices, b.devices):
                cell = self.machine.relations.get(frozenset((x, y)), relation)
                if RANK[cell] > RANK[relation]:
                    self.denied.append(f"{x} to {y} is {cell}, not {relation}")

    def note(self) -> None:
        """Add notes on what the tree assumes."""
        drawn = {name.rstrip("0123456789_") for name in self.graph.switches}
        self.graph.notes += [
            f"PCIe latency is assumed to be {PORT_LATENCY_US:g} us at a device's port, "
            f"{INNER_LATENCY_US:g} us between bridges, roots and sockets."
        ] * bool(drawn & {*STEMS.values()})
        self.graph.notes += [
            "The uplink of a PCIe switch is assumed to be as wide as one port, "
            f"{self.port_gb_s:g} GB/s."
        ] * bool(drawn & {"pcie", "bridge"})
        self._note_sockets("system" in drawn)
        self._note_hidden()
        self.graph.notes += [
            f"{len(self.denied)} cells fit no tree and are drawn nearer, such as: "
            f"{self.denied[0]}."
            for _ in self.denied[:1]
        ]

    def _note_sockets(self, is_drawn: bool) -> None:
        if is_drawn:
            known = self.machine.socket_gb_s is not None
            why = "what NCCL plans for this CPU" if known else "the CPU is not named"
            self.graph.notes.append(
                "Bandwidth between sockets is assumed to be "
                f"{self.socket_gb_s:g} GB/s ({why})."
            )

    def _note_hidden(self) -> None:
        hidden = set(pairs_of(self.machine.gpus)) - set(self.machine.relations)
        if hidden:
            self.graph.notes.append(
                f"The PCIe way of {len(hidden)} pairs of GPUs is not printed; it is "
                "taken from other cells, then from NUMA and CPU affinity, else as SYS."
            )
