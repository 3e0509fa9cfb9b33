"""hwloc's XML (`lstopo --of xml`): PCIe tree, GPUs as OS devices, NVLink bandwidths.

Bandwidths are a matrix over objects, in MB/s; its objects may be NVSwitches and CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from meshwright.imports.cpu_sockets import Cpu
from meshwright.imports.hwloc.machine import LocatedDevice, Matrix, to_machine
from meshwright.imports.imported import Imported
from meshwright.imports.importer import MachineImporter
from meshwright.imports.machine_graph import to_graph
from meshwright.imports.safe_xml import Element, parse_xml
from meshwright.imports.text import fail, shown, whole
from meshwright.spec.gpu import Gpu

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


def parse(text: str, name: str) -> Hwloc:
    """Return GPUs, NICs and bandwidth matrices of an XML export.

    Raises:
        SpecError: not XML of hwloc, or a matrix that is not whole; with file and line.
    """
    root = parse_xml(text, name)
    if root.tag != "topology":
        sentence = f"{shown(root.tag)}: unknown root element; accepted: topology"
        fail(name, root.line, sentence)
    matrices = (
        _matrix(element, name)
        for element in root.all("distances2", "distances2hetero")
        if element.get("name") in BANDWIDTHS
    )
    return Hwloc(
        name=name,
        os_devices=tuple(_placed(root, _is_os_device)),
        cards=tuple(_placed(root, _is_card)),
        matrices={matrix.name: matrix for matrix in matrices},
        cpus=tuple(_cpus(root)),
    )


def _cpus(root: Element) -> Iterator[Cpu]:
    """Yield the packages of CPUs as hwloc describes them."""
    for package in root.all("object"):
        if package.get("type") in ("Package", "Socket"):
            infos = {i.get("name"): i.get("value") for i in package.all("info")}
            keys = ("CPUVendor", "CPUFamilyNumber", "CPUModelNumber")
            yield Cpu("", *(infos.get(key, "") for key in keys))


def _is_os_device(element: Element) -> bool:
    return element.get("type") == "OSDev"


def _is_card(element: Element) -> bool:
    kind = element.get("pci_type").startswith(CARD_CLASSES)
    return element.get("type") == "PCIDev" and kind


def _placed(
    root: Element, is_wanted: Callable[[Element], bool]
) -> Iterator[LocatedDevice]:
    """Yield the wanted objects, each with the objects around it."""
    waiting: list[tuple[Element, tuple[Element, ...]]] = [(root, ())]
    while waiting:
        element, way = waiting.pop()
        if is_wanted(element):
            yield LocatedDevice.of(element, way)
        inner = (*way, element) if element.tag == "object" else way
        waiting += [(child, inner) for child in reversed(element.children)]


def _matrix(element: Element, name: str) -> Matrix:
    size = whole(element.get("nbobjs"), 4_096)
    objects = _words(element, "indexes")
    values = [whole(value, 10**9) for value in _words(element, "u64values")]
    title = element.get("name")
    if size is None or len(objects) != size or len(values) != size * size:
        sentence = (
            f"{title}: {len(objects)} objects and {len(values)} values; expected "
            f"nbobjs={shown(element.get('nbobjs'))} and its square"
        )
        fail(name, element.line, sentence)
    if None in values or not all(map(_INDEX.fullmatch, objects)):
        fail(name, element.line, f"{title}: expected whole numbers of MB/s")
    numbers = tuple(value or 0 for value in values)
    kinds = (o.rpartition(":")[0] or element.get("type") for o in objects)
    indexes = tuple(o.rpartition(":")[2] for o in objects)
    return Matrix(title, indexes, tuple(kinds), numbers)


def _words(element: Element, tag: str) -> list[str]:
    return [word for part in element.all(tag) for word in part.text.split()]


def to_topology(facts: Hwloc, gpu: Gpu, gpu_name: str) -> Imported:
    """Return the machine as nodes and links.

    Raises:
        SpecError: no GPU is among the OS devices, or a bandwidth is not known.
    """
    if not facts.gpus:
        fail(facts.name, 0, "no GPU; expected OS devices such as nvml0, cuda0, rsmi0")
    matrix = next(iter(facts.matrices.values()), None)
    return to_graph(
        to_machine(facts.gpus, facts.nics, matrix, facts.cpus), gpu, gpu_name
    )


IMPORTER = MachineImporter(
    sign=r"<topology[\s>]|<!DOCTYPE topology",
    parse=parse,
    to_topology=to_topology,
)
