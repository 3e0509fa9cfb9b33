"""NCCL's and RCCL's topology XML (NCCL_TOPO_FILE) and graph dumps.

`system` > `cpu` > nested `pci` > `gpu` with `nvlink` or `xgmi`, or `nic` with `net`.
Files of clouds often hold the PCIe tree alone; GPUs are then told by their PCI class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.imports.cpu_sockets import Cpu
from meshwright.imports.imported import Imported
from meshwright.imports.importer import MachineImporter
from meshwright.imports.machine_graph import to_graph
from meshwright.imports.nccl.devices import Device, read_devices
from meshwright.imports.nccl.graph_dump import Graph, read_graphs
from meshwright.imports.nccl.machine import to_machine
from meshwright.imports.safe_xml import Element, parse_xml
from meshwright.imports.text import fail, known, shown
from meshwright.spec.gpu import Gpu

TAGS = ("system", "cpu", "pci", "gpu", "nic", "net", "nvlink", "xgmi", "c2c", "pcilink")


@dataclass(frozen=True)
class NcclXml:
    """The content of a topology file, or the graphs of a graph dump."""

    name: str
    root: str
    version: str
    cpus: tuple[Cpu, ...] = ()
    devices: tuple[Device, ...] = ()
    """GPUs and NICs on PCIe, in the order of the file."""
    pci_by_class: Mapping[str, int] = field(default_factory=dict)
    gpu_elements: int = 0
    net_elements: int = 0
    graphs: tuple[Graph, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[Device, ...]:
        """Return the GPUs in the order of their numbers, then of their bus ids."""
        found = [device for device in self.devices if device.is_gpu]
        return tuple(sorted(found, key=lambda d: (d.number, d.busid)))

    @property
    def nics(self) -> tuple[Device, ...]:
        """Return the network adapters in the order of the file."""
        return tuple(device for device in self.devices if not device.is_gpu)


def parse(text: str, name: str) -> NcclXml:
    """Return the content of a topology file or a graph dump.

    Raises:
        SpecError: not XML, another kind of XML, or a number that is none; with line.
    """
    root = parse_xml(text, name)
    if root.tag == "graphs":
        graphs = read_graphs(root, name)
        return NcclXml(name, root.tag, root.get("version"), graphs=graphs)
    if root.tag != "system":
        accepted = known(("system", "graphs"))
        fail(name, root.line, f"{shown(root.tag)}: unknown root element; {accepted}")
    cpus = (
        Cpu(*map(cpu.get, ("arch", "vendor", "familyid", "modelid")))
        for cpu in root.all("cpu")
    )
    return NcclXml(
        name=name,
        root=root.tag,
        version=root.get("version"),
        cpus=tuple(cpus),
        devices=tuple(read_devices(root, name)),
        pci_by_class=dict(Counter(pci.get("class") for pci in root.all("pci"))),
        gpu_elements=len(root.all("gpu")),
        net_elements=len(root.all("net")),
        notes=tuple(_strange(root, name)),
    )


def _strange(root: Element, name: str) -> list[str]:
    """Return a note for each unknown element, with the line of the first of them."""
    first: dict[str, int] = {}
    for element in root.walk():
        if element.tag not in TAGS:
            first.setdefault(element.tag, element.line)
    return [
        f"{name}:{line}: elements {shown(tag)} are not known and left out."
        for tag, line in list(first.items())[:20]
    ]


def to_topology(facts: NcclXml, gpu: Gpu, gpu_name: str) -> Imported:
    """Return the machine as nodes and links.

    Raises:
        SpecError: a graph dump, a file without GPUs, or a bandwidth is not known.
    """
    if facts.root == "graphs":
        sentence = "a graph dump holds NCCL's plan, not the machine; expected its"
        fail(facts.name, 0, f"{sentence} topology file (root element system)")
    if not facts.gpus:
        fail(facts.name, 0, "the file names no GPU; expected the whole PCIe tree")
    machine = to_machine(facts.gpus, facts.nics, facts.cpus, facts.notes, gpu)
    return to_graph(machine, gpu, gpu_name)


IMPORTER = MachineImporter(
    sign=r"<(?:system|graphs)[\s>]",
    parse=parse,
    to_topology=to_topology,
    has_machine=lambda facts: facts.root == "system",
)
