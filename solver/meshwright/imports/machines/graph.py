"""Turns the facts of a machine into the nodes and links of a topology."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.errors import SpecError
from meshwright.imports.machines.defaults import (
    INNER_LATENCY_US,
    PEER_LATENCY_US,
    PORT_LATENCY_US,
    SOCKET_GB_S,
    peer_link_gb_s,
    port_bandwidth_gb_s,
)
from meshwright.imports.machines.facts import (
    RELATIONS,
    MachineFacts,
    Pair,
    PeerLinks,
    components,
    pairs_of,
)
from meshwright.imports.registry import Imported, unique
from meshwright.spec.gpu import Gpu
from meshwright.spec.topology import MAX_NODES
from meshwright.spec.units import LARGEST, SMALLEST


@dataclass
class GraphBuilder:
    """The switches, links and notes added so far."""

    taken: set[str]
    """Names in use: those of devices, then those of switches too."""
    switches: list[str] = field(default_factory=list)
    links: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """GB/s per direction and latency in us, by the names of both ends."""
    notes: list[str] = field(default_factory=list)

    def switch(self, stem: str, is_counted: bool = True) -> str:
        """Add a switch named by a stem and a number, and return its name."""
        number = sum(name.rstrip("0123456789_") == stem for name in self.switches)
        name = f"{stem}{number}" if is_counted else stem
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        self.switches.append(name)
        return name

    def link(self, a: str, b: str, gb_s: float, latency_us: float) -> None:
        """Add a link between two vertices."""
        self.links[a, b] = (gb_s, latency_us)

    def links_gb_s(self, switch: str) -> float:
        """Return the sum of the bandwidths of all links at a switch so far."""
        return math.fsum(
            gb_s for ends, (gb_s, _) in self.links.items() if switch in ends
        )


NEAR = RELATIONS.index("PXB")
"""The furthest relation of a NIC that lies on a PCIe switch of a GPU."""


def to_graph(machine: MachineFacts, gpu: Gpu) -> Imported:
    """Return the machine as nodes and links, GPUs first, and notes on assumptions.

    PCIe is left out where other links join all GPUs and there is no NIC.

    Raises:
        SpecError: the file names no GPU, or a bandwidth is unknown.
    """
    if not machine.gpus:
        raise SpecError("the file names no GPU; expected at least one")
    machine = with_near_nics(machine)
    graph = GraphBuilder(taken={*machine.gpus, *(nic.name for nic in machine.nics)})
    graph.notes += machine.notes
    add_peer_links(machine, gpu, graph)
    if machine.nics or not _joins_all(machine, graph):
        port_gb_s = port_bandwidth_gb_s(machine, gpu, graph.notes)
        add_pcie_tree(machine, port_gb_s, graph)
    elif len(machine.gpus) > 1:
        graph.notes.append(
            "PCIe is left out: other links join all GPUs, and there is no NIC."
        )
    return Imported(_fields(machine, graph), unique(graph.notes))


def _joins_all(machine: MachineFacts, graph: GraphBuilder) -> bool:
    names = [*machine.gpus, *graph.switches]
    return len(components(names, map(frozenset, graph.links))) == 1


def _fields(machine: MachineFacts, graph: GraphBuilder) -> dict[str, Any]:
    """Return the fields `nodes` and `links`; refuse what no topology takes.

    Raises:
        SpecError: there are too many devices, or a bandwidth is out of range.
    """
    nodes: list[dict[str, Any]] = [
        {"name": name, "kind": "gpu", "host": 0} for name in machine.gpus
    ]
    for nic in machine.nics:
        port = {} if nic.gb_s is None else {"gb_s": nic.gb_s}
        nodes.append({"name": nic.name, "kind": "nic", "host": 0, **port})
    nodes += [{"name": name, "kind": "switch"} for name in graph.switches]
    if len(nodes) > MAX_NODES:
        raise SpecError(f"{len(nodes):,} devices; accepted: up to {MAX_NODES:,}")
    rates = {nic.name: nic.gb_s for nic in machine.nics if nic.gb_s is not None}
    rates |= {" - ".join(ends): gb_s for ends, (gb_s, _) in graph.links.items()}
    for name, gb_s in rates.items():
        if not SMALLEST <= gb_s <= LARGEST:
            accepted = f"accepted: {SMALLEST:g} to {LARGEST:,} GB/s"
            raise SpecError(f"{name}: {gb_s:,g} GB/s; {accepted}")
    links = [
        {"between": [*ends], "gb_s": round(gb_s, 4), "latency_us": latency_us}
        for ends, (gb_s, latency_us) in graph.links.items()
    ]
    return {"nodes": nodes, "links": links}


def with_near_nics(machine: MachineFacts) -> MachineFacts:
    """Return a machine without the NICs that are nearest to no GPU.

    Nothing changes unless every GPU has a NIC on the same PCIe switch, nor for a single
    GPU, which may see the NICs of other GPUs of a shared machine.
    """
    if len(machine.gpus) < 2:
        return machine
    used: set[str] = set()
    for gpu in machine.gpus:
        ranks = {nic.name: _distance(machine, gpu, nic.name) for nic in machine.nics}
        nearest = min(ranks.values(), default=len(RELATIONS))
        if nearest > NEAR:
            return machine
        used |= {name for name, rank in ranks.items() if rank == nearest}
    far = [nic.name for nic in machine.nics if nic.name not in used]
    if not far:
        return machine
    kept = tuple(nic for nic in machine.nics if nic.name in used)
    note = (
        f"{', '.join(far[:8])}{', ...' if len(far) > 8 else ''}: nearest to no GPU, "
        f"as NICs of storage are; left out. {len(kept)} of {len(machine.nics)} NICs "
        "serve the GPUs."
    )
    return replace(machine, nics=kept, notes=(*machine.notes, note))


def _distance(machine: MachineFacts, gpu: str, nic: str) -> int:
    """Return how far a NIC is, as a place in RELATIONS; behind all if not known."""
    relation = machine.relations.get(frozenset((gpu, nic)))
    return RELATIONS.index(relation) if relation else len(RELATIONS)


STEMS = dict(zip(RELATIONS, ("pcie", "bridge", "host", "numa", "system"), strict=True))
"""By relation, the stem of the name of the switch where its devices meet."""

RANK = {relation: rank for rank, relation in enumerate(RELATIONS)}

ONE_PORT_WIDE = ("", "PIX", "PXB")
"""Relations whose uplink is as wide as one port: devices and PCIe switches. The uplink
of a root is as wide as its ports together."""


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


SWITCHED_COUNTS = (6, 12, 18)
"""Links of a GPU to NVSwitches: of DGX-2, of A100, and of H100 to B300 machines."""


def add_peer_links(machine: MachineFacts, gpu: Gpu, graph: GraphBuilder) -> None:
    """Add all links between GPUs that are not PCIe.

    Raises:
        SpecError: the bandwidth of such a link is unknown.
    """
    peers = machine.peers
    if not peers.counts and not peers.ports:
        return
    gb_s = peer_link_gb_s(gpu, peers.link_gb_s, graph.notes)
    graph.notes.append(
        f"{peers.kind} latency is assumed to be {PEER_LATENCY_US:g} us a link."
    )
    if peers.ports:
        _draw_switch(peers.kind, peers.ports, gb_s, graph)
    islands = components(machine.gpus, peers.counts)
    for island in (island for island in islands if len(island) > 1):
        _draw_island(island, peers, gpu, gb_s, graph)


def _draw_island(
    island: tuple[str, ...],
    peers: PeerLinks,
    gpu: Gpu,
    gb_s: float,
    graph: GraphBuilder,
) -> None:
    counts = {p: peers.counts[p] for p in pairs_of(island) if peers.counts.get(p)}
    per_gpu = {g: [n for p, n in counts.items() if g in p] for g in island}
    is_complete = len(counts) == len(pairs_of(island))
    if is_complete and peers.kind == "XGMI" and len(island) > 2:
        _draw_switch("XGMI", {g: sum(n) for g, n in per_gpu.items()}, gb_s, graph)
        graph.notes.append(
            f"XGMI joins all {len(island)} GPUs directly; it is drawn as a switch, "
            "since collectives use all links of a GPU at once."
        )
    elif is_complete and not peers.is_explicit and _is_switched(per_gpu, gpu):
        _draw_switch("NVLink", {g: max(n) for g, n in per_gpu.items()}, gb_s, graph)
        _note_switch(island, counts, graph)
    else:
        _draw_direct(island, counts, gb_s, graph)
        _note_direct(peers, per_gpu, gpu, gb_s, graph)


def _is_switched(per_gpu: dict[str, list[int]], gpu: Gpu) -> bool:
    """Return whether the cells of a row all count the same links, to a switch.

    They do where the cells of a row add up to more links than the GPU has. Where that
    number is unknown, they do if four GPUs or more have 6, 12 or 18 in every cell.
    Four GPUs of 6 each are an exception: direct meshes of H100 and GH200 boards.
    """
    if gpu.peer_links:
        return all(len(n) > 1 and sum(n) > gpu.peer_links for n in per_gpu.values())
    counts = {count for row in per_gpu.values() for count in row}
    is_mesh = len(per_gpu) == 4 and counts == {6}
    is_usual = len(counts) == 1 and counts <= set(SWITCHED_COUNTS)
    return len(per_gpu) >= 4 and is_usual and not is_mesh


def _draw_switch(
    kind: str, ports: Mapping[str, int], gb_s: float, graph: GraphBuilder
) -> None:
    stem = "nvswitch" if kind == "NVLink" else kind.lower()
    switch = graph.switch(stem, is_counted=stem in graph.switches)
    for name, count in ports.items():
        graph.link(name, switch, count * gb_s, PEER_LATENCY_US)


def _draw_direct(
    island: tuple[str, ...], counts: dict[Pair, int], gb_s: float, graph: GraphBuilder
) -> None:
    for a, b in itertools.combinations(island, 2):
        count = counts.get(frozenset((a, b)))
        if count:
            graph.link(a, b, count * gb_s, PEER_LATENCY_US)


def _note_switch(
    island: tuple[str, ...], counts: dict[Pair, int], graph: GraphBuilder
) -> None:
    spoken = "/".join(f"{count}" for count in sorted(set(counts.values())))
    graph.notes.append(
        f"{spoken} NVLinks in every cell of {len(island)} GPUs are taken as links to "
        "an NVSwitch, not as links of each pair."
    )


def _note_direct(
    peers: PeerLinks,
    per_gpu: dict[str, list[int]],
    gpu: Gpu,
    gb_s: float,
    graph: GraphBuilder,
) -> None:
    most = max(sum(row) for row in per_gpu.values())
    counts_links = peers.link_gb_s is None  # hwloc's numbers are bandwidths
    if counts_links and gpu.peer_links is not None and most > gpu.peer_links:
        graph.notes.append(
            f"A GPU has {most} links to peers here, and {gpu.peer_links} by its data "
            "sheet; they are taken as printed."
        )
    if any(len(row) > 2 for row in per_gpu.values()):
        graph.notes.append(
            f"Links of pairs are drawn one by one; collectives that use all of a GPU's "
            f"at once may reach {most * gb_s:g} GB/s."
        )
