"""CPUs, GPUs and NICs of NCCL's topology XML, with their paths from the root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from meshwright.imports.safe_xml import Element
from meshwright.imports.text import fail, shown, whole
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
    """The elements around it, outermost first: the place of each among siblings."""
    way_tags: tuple[str, ...]
    number: int = UNNUMBERED
    pcie_gb_s: float | None = None
    """Rate of its PCIe link per direction, where the file has it."""
    links: tuple[PeerLink, ...] = ()
    nets: tuple[Net, ...] = field(default=())


def bus_id(text: str) -> str:
    """Return a bus id in lower case, with four digits of its domain."""
    domain, colon, rest = text.lower().partition(":")
    return f"{domain[-4:]}{colon}{rest}"


def read_devices(root: Element, name: str) -> Iterator[Device]:
    """Yield GPUs and NICs in the order of the file.

    Raises:
        SpecError: an attribute is no number; with file and line.
    """
    waiting: list[tuple[Element, tuple[int, ...], tuple[str, ...]]] = [(root, (), ())]
    while waiting:
        element, way, tags = waiting.pop()
        if element.tag == "pci" and _is_device(element):
            yield _device(element, way[:-1], tags, name)
        if element.tag == "nic" and tags[-1:] == ("cpu",):
            nets = tuple(_nets([element], name))
            yield Device("", False, (0, *way[:-1]), tags, nets=nets)
        inner = (*tags, element.tag)
        waiting += [
            (child, (*way, place), inner)
            for place, child in reversed([*enumerate(element.children)])
        ]


def _is_device(pci: Element) -> bool:
    kind = pci.get("class").lower()
    tags = {child.tag for child in pci.children}
    return kind.startswith(GPU_CLASSES + NIC_CLASSES) or bool(tags & {"gpu", "nic"})


def _device(
    pci: Element, way: tuple[int, ...], tags: tuple[str, ...], name: str
) -> Device:
    inner = [child for child in pci.children if child.tag in ("gpu", "nic")]
    gpu = next((child for child in inner if child.tag == "gpu"), None)
    is_gpu = gpu is not None or pci.get("class").lower().startswith(GPU_CLASSES)
    number = _number(gpu, "dev", name) if gpu else None
    return Device(
        busid=bus_id(pci.get("busid")),
        is_gpu=is_gpu,
        way=(0, *way),
        way_tags=tags,
        number=UNNUMBERED if number is None else number,
        pcie_gb_s=_pcie_gb_s(pci),
        links=tuple(_links(gpu, name)) if gpu else (),
        nets=tuple(_nets(inner, name)),
    )


def _links(gpu: Element, name: str) -> Iterator[PeerLink]:
    for link in gpu.all("nvlink", "xgmi"):
        count = _number(link, "count", name, MOST_LINKS)
        tclass = link.get("tclass").lower()
        yield PeerLink(link.tag, bus_id(link.get("target")), count or 0, tclass)


def _nets(inner: list[Element], name: str) -> Iterator[Net]:
    for net in (net for nic in inner for net in nic.all("net")):
        mbit_s = _number(net, "speed", name) or None
        if mbit_s and mbit_s < LEAST_MBIT_S:
            place = f"<net speed='{mbit_s}'>"
            fail(name, net.line, f"{place}: expected at least {LEAST_MBIT_S} Mbit/s")
        yield Net(net.get("name"), mbit_s)


def _number(
    element: Element, key: str, name: str, most: int = 1_000_000_000
) -> int | None:
    """Return a whole number that an attribute holds; None where it is not there."""
    value = element.get(key)
    if value in ("", "-1"):
        return None
    number = whole(value, most)
    if number is None:
        place = f"<{element.tag} {key}={shown(value)}>"
        fail(name, element.line, f"{place}: expected a whole number up to {most:,}")
    return number


def _pcie_gb_s(pci: Element) -> float | None:
    """Return the rate of a link, 128 of 130 bits: PCIe 3.0 to 5.0 ("16 GT/s" x 16)."""
    digits = pci.get("link_speed").partition(" ")[0].partition(".")[0]
    speed, width = whole(digits, 1000), whole(pci.get("link_width"), 64)
    return speed * width / 8 * 128 / 130 if speed and width else None
