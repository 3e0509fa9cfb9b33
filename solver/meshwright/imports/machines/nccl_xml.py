"""NCCL's and RCCL's topology XML (NCCL_TOPO_FILE) and graph dumps.

`system` > `cpu` > nested `pci` > `gpu` with `nvlink` or `xgmi`, or `nic` with `net`.
Files of clouds often hold the PCIe tree alone; GPUs are then told by their PCI class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from meshwright.imports.machines.defaults import (
    Cpu,
    board_links,
    pcie_rate_gb_s,
    socket_gb_s,
)
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
from meshwright.imports.text import Element, fail, known, parse_xml, shown, whole
from meshwright.spec.gpu import Gpu
from meshwright.spec.units import SMALLEST

GPU_CLASSES = ("0x0302", "0x0300", "0x1200", "0x0380")
"""PCI classes of GPUs: 3D and VGA controllers, and those of accelerators of AMD."""

NIC_CLASSES = ("0x0207", "0x0200", "0x0280")
"""PCI classes of NICs: InfiniBand, Ethernet (RoCE and EFA too), other networks."""

MBIT_S_PER_GB_S = 8_000

LEAST_MBIT_S = round(SMALLEST * MBIT_S_PER_GB_S)
"""Speed of the slowest network port that a topology takes."""

MOST_LINKS = 1_000
"""Most links from a GPU to one target; real machines have up to 18."""

UNNUMBERED = 1_000_000
"""The number of a GPU that has none; it sorts behind all others."""


@dataclass(frozen=True)
class PeerLink:
    """NVLinks (or XGMI links) from a GPU to one target."""

    kind: str
    target: str
    count: int
    tclass: str


@dataclass(frozen=True)
class Net:
    """A network port."""

    name: str
    mbit_s: int | None


@dataclass(frozen=True)
class Device:
    """A GPU or a NIC on PCIe."""

    busid: str
    is_gpu: bool
    way: tuple[int, ...]
    """The elements around it by their numbers, outermost first."""
    way_tags: tuple[str, ...]
    number: int = UNNUMBERED
    pcie_gb_s: float | None = None
    """Rate of its PCIe link per direction, where the file has it."""
    links: tuple[PeerLink, ...] = ()
    nets: tuple[Net, ...] = field(default=())


def parse(text: str, name: str) -> NcclXml:
    """Return the content of a topology file or a graph dump.

    Raises:
        SpecError: not XML, another kind of XML, or a number that is none; with line.
    """
    root = parse_xml(text, name)
    if root.tag == "graphs":
        graphs = tuple(_read_graph(graph) for graph in root.all("graph"))
        return NcclXml(name, root.tag, root.get("version"), graphs=graphs)
    if root.tag != "system":
        accepted = known(("system", "graphs"))
        root.fail(f"{shown(root.tag)}: unknown root element; {accepted}")
    cpus = (
        Cpu(*map(cpu.get, ("arch", "vendor", "familyid", "modelid")))
        for cpu in root.all("cpu")
    )
    return NcclXml(
        name=name,
        root=root.tag,
        version=root.get("version"),
        cpus=tuple(cpus),
        devices=tuple(read_devices(root)),
        notes=tuple(_strange(root, name)),
    )


def bus_id(text: str) -> str:
    """Return a bus id in lower case, with four digits of its domain."""
    domain, colon, rest = text.lower().partition(":")
    return f"{domain[-4:]}{colon}{rest}"


def read_devices(root: Element) -> Iterator[Device]:
    """Yield GPUs and NICs in the order of the file.

    Raises:
        SpecError: an attribute is no number; with file and line.
    """
    for element, around in root.placed():
        if element.tag == "pci" and _is_device(element):
            yield _device(element, around)
        if element.tag == "nic" and around[-1].tag == "cpu":
            nets = tuple(_nets([element]))
            yield Device("", False, _way(around), _tags(around), nets=nets)


def _way(around: Sequence[Element]) -> tuple[int, ...]:
    return tuple(element.number for element in around)


def _tags(around: Sequence[Element]) -> tuple[str, ...]:
    return tuple(element.tag for element in around)


def _is_device(pci: Element) -> bool:
    kind = pci.get("class").lower()
    tags = {child.tag for child in pci.children}
    return kind.startswith(GPU_CLASSES + NIC_CLASSES) or bool(tags & {"gpu", "nic"})


def _device(pci: Element, around: Sequence[Element]) -> Device:
    inner = [child for child in pci.children if child.tag in ("gpu", "nic")]
    gpu = next((child for child in inner if child.tag == "gpu"), None)
    is_gpu = gpu is not None or pci.get("class").lower().startswith(GPU_CLASSES)
    number = _number(gpu, "dev") if gpu else None
    return Device(
        busid=bus_id(pci.get("busid")),
        is_gpu=is_gpu,
        way=_way(around),
        way_tags=_tags(around),
        number=UNNUMBERED if number is None else number,
        pcie_gb_s=_pcie_gb_s(pci),
        links=tuple(_links(gpu)) if gpu else (),
        nets=tuple(_nets(inner)),
    )


def _links(gpu: Element) -> Iterator[PeerLink]:
    for link in gpu.all("nvlink", "xgmi"):
        count = _number(link, "count", MOST_LINKS)
        tclass = link.get("tclass").lower()
        yield PeerLink(link.tag, bus_id(link.get("target")), count or 0, tclass)


def _nets(inner: list[Element]) -> Iterator[Net]:
    for net in (net for nic in inner for net in nic.all("net")):
        mbit_s = _number(net, "speed") or None
        if mbit_s and mbit_s < LEAST_MBIT_S:
            place = f"<net speed='{mbit_s}'>"
            net.fail(f"{place}: expected at least {LEAST_MBIT_S} Mbit/s")
        yield Net(net.get("name"), mbit_s)


def _number(element: Element, key: str, most: int = 1_000_000_000) -> int | None:
    """Return a whole number that an attribute holds; None where it is not there."""
    value = element.get(key)
    if value in ("", "-1"):
        return None
    number = whole(value, most)
    if number is None:
        place = f"<{element.tag} {key}={shown(value)}>"
        element.fail(f"{place}: expected a whole number up to {most:,}")
    return number


def _pcie_gb_s(pci: Element) -> float | None:
    """Return the rate of a link, such as "16 GT/s" x 16."""
    digits = pci.get("link_speed").partition(" ")[0].partition(".")[0]
    speed, width = whole(digits, 1000), whole(pci.get("link_width"), 64)
    return pcie_rate_gb_s(speed, width) if speed and width else None


NVSWITCH_CLASS = "0x0680"


def to_machine(facts: NcclXml, gpu: Gpu) -> MachineFacts:
    """Return devices, links and PCIe relations of a file.

    Raises:
        SpecError: a graph dump, a file without GPUs, or with more devices than are in
            one machine, or it leaves out links that several boards join differently.
    """
    if facts.root == "graphs":
        sentence = "a graph dump holds NCCL's plan, not the machine; expected its"
        fail(facts.name, 0, f"{sentence} topology file (root element system)")
    gpus, nics = facts.gpus, facts.nics
    if not gpus:
        fail(facts.name, 0, "the file names no GPU; expected the whole PCIe tree")
    check_count(len(gpus) + sum(max(1, len(nic.nets)) for nic in nics))
    named = {f"GPU{i}": device for i, device in enumerate(gpus)}
    ports = _ports(nics, taken=set(named))
    placed = named | {nic.name: device for nic, device in ports}
    said = list(facts.notes)
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
        relations=relations_of(placed, _relation),
        socket_gb_s=socket_gb_s([*facts.cpus]),
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
    depth = shared_depth(a.way, b.way)
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


@dataclass(frozen=True)
class Graph:
    """One graph: its attributes as written, and by channel its GPUs in order."""

    id: str
    pattern: str
    nchannels: int
    speedintra: str
    speedinter: str
    typeintra: str
    typeinter: str
    channels: tuple[tuple[str, ...], ...]


def _read_graph(graph: Element) -> Graph:
    count = whole(graph.get("nchannels"), 10_000)
    if count is None:
        value = shown(graph.get("nchannels"))
        graph.fail(f"nchannels={value}: expected a whole number")
    texts = ("id", "pattern", "speedintra", "speedinter", "typeintra", "typeinter")
    return Graph(
        **{key: graph.get(key) for key in texts},
        nchannels=count,
        channels=tuple(
            tuple(gpu.get("dev") for gpu in channel.all("gpu"))
            for channel in graph.all("channel")
        ),
    )


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


IMPORTERS = {
    "nccl_xml": MachineImporter(
        sign=r"<(?:system|graphs)[\s>]",
        parse=parse,
        to_machine=to_machine,
        has_machine=lambda facts: facts.root == "system",
    ),
}
