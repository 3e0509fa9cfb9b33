"""Facts of a machine from the objects of hwloc: PCIe relations and links of GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.imports.cpu_sockets import Cpu, socket_gb_s
from meshwright.imports.machine_facts import (
    MachineFacts,
    Nic,
    Pair,
    PeerLinks,
    check_count,
)
from meshwright.imports.safe_xml import Element

MB_PER_GB = 1_000
"""Links per GB/s: the matrix has bandwidths, so that one MB/s counts as a link."""


@dataclass(frozen=True)
class Matrix:
    """Bandwidths between objects, MB/s per direction, row by row."""

    name: str
    objects: tuple[str, ...]
    """The gp_index of each object."""
    kinds: tuple[str, ...]
    """OSDev or PCIDev for GPUs, PCIDev for NVSwitches, Package or NUMANode for CPUs."""
    values: tuple[int, ...]

    def row(self, gp_index: str) -> dict[str, int]:
        """Return the bandwidths of one object to those that it has a link to."""
        if gp_index not in self.objects:
            return {}
        size, start = len(self.objects), self.objects.index(gp_index)
        row = self.values[start * size : (start + 1) * size]
        found = zip(self.objects, row, strict=True)
        return {other: value for other, value in found if value and other != gp_index}


@dataclass(frozen=True)
class LocatedDevice:
    """An OS device and the objects around it, outermost first."""

    name: str
    gp_index: str
    way: tuple[str, ...]
    """gp_index of each object."""
    kinds: tuple[str, ...]
    """Type of each object, a bridge with its bridge_type: Bridge 0-1, Bridge 1-1."""

    @classmethod
    def of(cls, element: Element, way: tuple[Element, ...]) -> LocatedDevice:
        """Return an OS device of the file."""
        return cls(
            name=element.get("name"),
            gp_index=element.get("gp_index") or f"line {element.line}",
            way=tuple(o.get("gp_index") or f"line {o.line}" for o in way),
            kinds=tuple(f"{o.get('type')} {o.get('bridge_type')}".strip() for o in way),
        )


def to_machine(
    gpus: Sequence[LocatedDevice],
    nics: Sequence[LocatedDevice],
    matrix: Matrix | None,
    cpus: Sequence[Cpu] = (),
) -> MachineFacts:
    """Return devices, links and PCIe relations.

    Raises:
        SpecError: there are more devices than in one machine.
    """
    check_count(len(gpus) + len(nics))
    devices = {f"GPU{i}": gpu for i, gpu in enumerate(gpus)}
    names = tuple(devices)
    for nic in nics:
        devices.setdefault(nic.name, nic)
    relations = {
        frozenset((a, b)): _relation(devices[a], devices[b])
        for a, b in itertools.combinations(devices, 2)
    }
    notes: list[str] = []
    return MachineFacts(
        gpus=names,
        nics=tuple(Nic(name) for name in devices if name not in names),
        peers=_peers(dict(zip(names, gpus, strict=True)), matrix, notes),
        relations=relations,
        socket_gb_s=socket_gb_s([*cpus]),
        notes=tuple(notes),
    )


def _relation(a: LocatedDevice, b: LocatedDevice) -> str:
    """Return the relation of two devices, by the innermost object around both."""
    shared = [one == other for one, other in zip(a.way, b.way, strict=False)]
    depth = (shared.index(False) if False in shared else len(shared)) - 1
    meeting = a.kinds[depth] if depth >= 0 else "Machine"
    if meeting in ("PCIDev", "Bridge 1-1"):
        is_near = max(len(a.way), len(b.way)) - depth <= 3
        return "PIX" if is_near else "PXB"
    if meeting == "Bridge 0-1":
        return "PHB"
    return "SYS" if meeting == "Machine" else "NODE"


def _peers(
    gpus: dict[str, LocatedDevice], matrix: Matrix | None, notes: list[str]
) -> PeerLinks:
    """Return MB/s of pairs of GPUs, and of GPUs to other PCI devices: NVSwitches."""
    kind = "XGMI" if matrix and matrix.name.startswith("XGMI") else "NVLink"
    counts: dict[Pair, int] = {}
    ports: dict[str, int] = {}
    if matrix is None:
        notes.append("The file has no bandwidths between GPUs; only PCIe is drawn.")
        return PeerLinks(kind)
    names, kinds = _names(gpus), dict(zip(matrix.objects, matrix.kinds, strict=True))
    for name, gpu in gpus.items():
        row = matrix.row(gpu.gp_index) or _device_row(gpu, matrix)
        for other, mb_s in row.items():
            peer = names.get(other)
            if peer is not None and peer != name:
                pair = frozenset((name, peer))
                counts[pair] = max(mb_s, counts.get(pair, 0))
            elif peer is None and kinds[other] == "PCIDev":
                ports[name] = ports.get(name, 0) + mb_s
            elif peer is None:
                notes.append(f"{kind} of GPUs to {kinds[other]} objects is left out.")
    if ports:
        notes.append(
            "NVSwitches (PCI devices of the matrix, no GPUs) are drawn as one that "
            "blocks nothing: the file does not say how they are joined."
        )
    return PeerLinks(kind, counts, ports, is_explicit=True, link_gb_s=1 / MB_PER_GB)


def _names(gpus: dict[str, LocatedDevice]) -> dict[str, str]:
    """Return GPUs by gp_index of their OS device and of their PCI device."""
    names = {gpu.gp_index: name for name, gpu in gpus.items()}
    return {gpu.way[-1]: name for name, gpu in gpus.items() if gpu.way} | names


def _device_row(gpu: LocatedDevice, matrix: Matrix) -> dict[str, int]:
    return matrix.row(gpu.way[-1]) if gpu.way else {}
