"""Facts of a machine from NCCL's XML: relations from its tree, links of its GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from meshwright.imports.board_links import board_links
from meshwright.imports.cpu_sockets import Cpu, socket_gb_s
from meshwright.imports.machine_facts import (
    MachineFacts,
    Nic,
    Pair,
    PeerLinks,
    check_count,
)
from meshwright.imports.nccl.devices import MBIT_S_PER_GB_S, UNNUMBERED, Device
from meshwright.spec.gpu import Gpu

NVSWITCH_CLASS = "0x0680"


def to_machine(
    gpus: Sequence[Device],
    nics: Sequence[Device],
    cpus: Sequence[Cpu],
    notes: tuple[str, ...],
    gpu: Gpu,
) -> MachineFacts:
    """Return devices, links and PCIe relations of a file.

    Raises:
        SpecError: there are more devices than in one machine, or the file leaves out
            links that several boards join differently.
    """
    check_count(len(gpus) + sum(max(1, len(nic.nets)) for nic in nics))
    named = {f"GPU{i}": device for i, device in enumerate(gpus)}
    ports = _ports(nics, taken=set(named))
    placed = named | {nic.name: device for nic, device in ports}
    relations = {
        frozenset((a, b)): _relation(placed[a], placed[b])
        for a, b in itertools.combinations(placed, 2)
    }
    said = list(notes)
    peers = _peers(named, said)
    if gpus[0].number == UNNUMBERED:
        said.append("The file does not number the GPUs; they are in bus order.")
    if not peers.counts and not peers.ports:
        peers = board_links([*named], gpu, said)
    rates = [device.pcie_gb_s for device in gpus if device.pcie_gb_s]
    return MachineFacts(
        gpus=tuple(named),
        nics=tuple(nic for nic, _ in ports),
        peers=peers,
        relations=relations,
        socket_gb_s=socket_gb_s([*cpus]),
        port_rate_gb_s=min(rates, default=None),
        notes=tuple(said),
    )


def _ports(nics: Sequence[Device], taken: set[str]) -> list[tuple[Nic, Device]]:
    """Return the network ports; a NIC that names none is numbered."""
    ports: list[tuple[Nic, Device]] = []
    for number, device in enumerate(nics):
        for net in device.nets or (None,):
            name = (net.name if net else "")[:100] or f"nic{number}"
            name = name if name.isprintable() else f"nic{number}"
            if not device.busid and name in taken:
                continue  # NCCL lists sockets' NICs below every CPU
            while name in taken:
                name += "_"
            taken.add(name)
            gb_s = net.mbit_s / MBIT_S_PER_GB_S if net and net.mbit_s else None
            ports.append((Nic(name, gb_s), device))
    return ports


def _relation(a: Device, b: Device) -> str:
    """Return the relation of two devices, by the innermost element around both."""
    if a is b:
        return "PIX"
    depth = 0
    for one, other in zip(a.way, b.way, strict=False):
        if one != other:
            break
        depth += 1
    if a.way_tags[depth - 1] == "pci":
        is_near = len(a.way) == len(b.way) == depth
        return "PIX" if is_near else "PXB"
    return "PHB" if a.way_tags[depth - 1] == "cpu" else "SYS"


def _peers(named: Mapping[str, Device], notes: list[str]) -> PeerLinks:
    names = {device.busid: name for name, device in named.items()}
    counts: dict[Pair, int] = {}
    ports: dict[str, int] = {}
    kind, strange = "NVLink", 0
    for name, device in named.items():
        for link in device.links:
            kind = "XGMI" if link.kind == "xgmi" else kind
            target = names.get(link.target)
            if link.tclass.startswith(NVSWITCH_CLASS):
                ports[name] = ports.get(name, 0) + link.count
            elif target and target != name and link.count:
                pair = frozenset((name, target))
                counts[pair] = max(link.count, counts.get(pair, 0))
            else:
                strange += 1
    if strange:
        notes.append(f"{strange} links lead to no GPU or NVSwitch here; left out.")
    return PeerLinks(kind, counts, ports, is_explicit=True)
