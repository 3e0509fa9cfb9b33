"""hwloc's XML (`lstopo --of xml`): PCIe tree, GPUs as OS devices, NVLink bandwidths.

Bandwidths are a matrix over objects, in MB/s; its objects may be NVSwitches and CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from meshwright.imports.machines.defaults import Cpu, socket_gb_s
from meshwright.imports.machines.facts import (
    MachineFacts,
    Nic,
    Pair,
    PeerLinks,
    check_count,
    relations_of,
    shared_depth,
)
from meshwright.imports.registry import MachineImporter
from meshwright.imports.text import Element, fail, parse_xml, shown, whole
from meshwright.spec.gpu import Gpu

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


def parse(text: str, name: str) -> Hwloc:
    """Return GPUs, NICs and bandwidth matrices of an XML export.

    Raises:
        SpecError: not XML of hwloc, or a matrix that is not whole; with file and line.
    """
    root = parse_xml(text, name)
    if root.tag != "topology":
        root.fail(f"{shown(root.tag)}: unknown root element; accepted: topology")
    matrices = (
        _matrix(element)
        for element in root.all("distances2", "distances2hetero")
        if element.get("name") in BANDWIDTHS
    )
    return Hwloc(
        name=name,
        os_devices=tuple(_placed(root, lambda element: element.get("type") == "OSDev")),
        cards=tuple(_placed(root, _is_card)),
        matrices={matrix.name: matrix for matrix in matrices},
        cpus=tuple(_cpus(root)),
    )


def to_machine(facts: Hwloc, _gpu: Gpu) -> MachineFacts:
    """Return devices, links and PCIe relations.

    Raises:
        SpecError: no GPU is among the OS devices, or there are more devices than in
            one machine.
    """
    gpus, nics = facts.gpus, facts.nics
    if not gpus:
        fail(facts.name, 0, "no GPU; expected OS devices such as nvml0, cuda0, rsmi0")
    check_count(len(gpus) + len(nics))
    matrix = next(iter(facts.matrices.values()), None)
    devices = {f"GPU{i}": gpu for i, gpu in enumerate(gpus)}
    names = tuple(devices)
    for nic in nics:
        devices.setdefault(nic.name, nic)
    notes: list[str] = []
    return MachineFacts(
        gpus=names,
        nics=tuple(Nic(name) for name in devices if name not in names),
        peers=_peers(dict(zip(names, gpus, strict=True)), matrix, notes),
        relations=relations_of(devices, _relation),
        socket_gb_s=socket_gb_s([*facts.cpus]),
        notes=tuple(notes),
    )


def _relation(a: LocatedDevice, b: LocatedDevice) -> str:
    """Return the relation of two devices, by the innermost object around both."""
    depth = shared_depth(a.way, b.way) - 1
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
        row = matrix.row(gpu.gp_index) or (matrix.row(gpu.way[-1]) if gpu.way else {})
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


GPU_NAMES = ("nvml", "cuda", "rsmi")
"""Stems of OS devices of GPUs, the most trusted first: drivers see all GPUs."""

CARD_CLASSES = ("0302", "0380", "1200")
"""PCI classes of GPUs: 3D controllers, and those of accelerators of AMD."""

BANDWIDTHS = ("NVLinkBandwidth", "XGMIBandwidth")

_OS_GPU = re.compile(r"(nvml|cuda|rsmi)(\d{1,4})")
_OS_NIC = re.compile(r"(mlx\d|hfi1|bnxt_re|irdma|efa|rdmap|roce|ibp|opa)[\w.-]{0,40}")
_INDEX = re.compile(r"(?:[A-Za-z0-9]{1,20}:)?(\d{1,18})")


@dataclass(frozen=True)
class Hwloc:
    """The GPUs, the NICs and their links in a file."""

    name: str
    os_devices: tuple[LocatedDevice, ...] = ()
    """OS devices in the order of the file."""
    cards: tuple[LocatedDevice, ...] = ()
    """PCI devices of a class that GPUs of servers have."""
    matrices: Mapping[str, Matrix] = field(default_factory=dict)
    """Bandwidth matrices by name: NVLinkBandwidth, XGMIBandwidth."""
    cpus: tuple[Cpu, ...] = ()

    def count(self, stem: str) -> int:
        """Return how many OS devices have a stem such as nvml or cuda."""
        names = (_OS_GPU.fullmatch(device.name) for device in self.os_devices)
        return sum(match is not None and match[1] == stem for match in names)

    @property
    def gpus(self) -> tuple[LocatedDevice, ...]:
        """Return the GPUs in the order of their numbers, by their most trusted names.

        Without OS devices of GPUs they are the PCI cards in the order of the file.
        """
        stem = next((stem for stem in GPU_NAMES if self.count(stem)), None)
        if stem is None:
            return self.cards
        found = [
            (int(match[2]), device)
            for device in self.os_devices
            if (match := _OS_GPU.fullmatch(device.name)) and match[1] == stem
        ]
        return tuple(device for _, device in sorted(found, key=lambda pair: pair[0]))

    @property
    def nics(self) -> tuple[LocatedDevice, ...]:
        """Return the RDMA devices in the order of the file."""
        return tuple(d for d in self.os_devices if _OS_NIC.fullmatch(d.name))


def _cpus(root: Element) -> Iterator[Cpu]:
    """Yield the packages of CPUs as hwloc describes them."""
    for package in root.all("object"):
        if package.get("type") in ("Package", "Socket"):
            infos = {i.get("name"): i.get("value") for i in package.all("info")}
            keys = ("CPUVendor", "CPUFamilyNumber", "CPUModelNumber")
            yield Cpu("", *(infos.get(key, "") for key in keys))


def _is_card(element: Element) -> bool:
    kind = element.get("pci_type").startswith(CARD_CLASSES)
    return element.get("type") == "PCIDev" and kind


def _placed(
    root: Element, is_wanted: Callable[[Element], bool]
) -> Iterator[LocatedDevice]:
    """Yield the wanted objects, each with the objects around it."""
    for element, around in root.placed():
        if is_wanted(element):
            way = tuple(one for one in around if one.tag == "object")
            yield LocatedDevice.of(element, way)


def _matrix(element: Element) -> Matrix:
    size = whole(element.get("nbobjs"), 4_096)
    objects = _words(element, "indexes")
    values = [whole(value, 10**9) for value in _words(element, "u64values")]
    title = element.get("name")
    if size is None or len(objects) != size or len(values) != size * size:
        sentence = (
            f"{title}: {len(objects)} objects and {len(values)} values; expected "
            f"nbobjs={shown(element.get('nbobjs'))} and its square"
        )
        element.fail(sentence)
    if None in values or not all(map(_INDEX.fullmatch, objects)):
        element.fail(f"{title}: expected whole numbers of MB/s")
    numbers = tuple(value or 0 for value in values)
    kinds = (o.rpartition(":")[0] or element.get("type") for o in objects)
    indexes = tuple(o.rpartition(":")[2] for o in objects)
    return Matrix(title, indexes, tuple(kinds), numbers)


def _words(element: Element, tag: str) -> list[str]:
    return [word for part in element.all(tag) for word in part.text.split()]


IMPORTERS = {
    "hwloc": MachineImporter(
        sign=r"<topology[\s>]|<!DOCTYPE topology",
        parse=parse,
        to_machine=to_machine,
    ),
}
