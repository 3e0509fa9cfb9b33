"""`lspci -vv`: GPUs and NICs, the bridges above them, NUMA nodes and PCIe links.

NVLink is not on the PCI bus: the links of the board are assumed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.imports.machines.defaults import board_links, pcie_rate_gb_s
from meshwright.imports.machines.facts import (
    MachineFacts,
    Nic,
    check_count,
    relations_of,
    shared_depth,
)
from meshwright.imports.registry import MachineImporter
from meshwright.imports.text import Line, fail, read_lines, whole
from meshwright.spec.gpu import Gpu

_HEAD = re.compile(
    r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7]) ([^:\[]{3,60}?)"
    r"(?: \[[0-9a-f]{4}\])?: (.{1,300})"
)
_BUSES = re.compile(r"Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), "
                    r"subordinate=([0-9a-f]{2})")  # fmt: skip
_LINK = re.compile(
    r"Lnk(Cap|Sta):.{0,80}?Speed ([\d.]{1,5})GT/s.{0,40}?Width x(\d{1,2})"
)
_NUMA = re.compile(r"NUMA node: (-?\d{1,4})")


@dataclass
class PciDevice:
    """One function, or a bridge with the buses below it."""

    domain: str
    bus: int
    slot: str
    kind: str
    """Such as 3D controller."""
    title: str
    """Vendor and product, as printed."""
    numa: str = ""
    primary: int | None = None
    buses: tuple[int, int] | None = None
    """Secondary and subordinate bus of a bridge."""
    speed_gt_s: float | None = None
    """Highest speed of the port; idle devices run slower."""
    width: int | None = None
    """Lanes that device and slot have agreed on."""

    @property
    def rate_gb_s(self) -> float | None:
        """Return the rate of its link per direction; None if not known."""
        if not self.speed_gt_s or not self.width:
            return None
        return pcie_rate_gb_s(self.speed_gt_s, self.width)

    def holds(self, other: PciDevice) -> bool:
        """Return whether a device lies below this bridge."""
        if self.buses is None or self.domain != other.domain:
            return False
        return self.buses[0] <= other.bus <= self.buses[1]


def parse(text: str, name: str) -> Lspci:
    """Return the GPUs, NICs and bridges of `lspci -vv`.

    Raises:
        SpecError: no GPU is listed, or there are more devices than in a machine.
    """
    devices = read_pci(read_lines(text, name))
    if len(devices) > MOST_PCI:
        fail(name, 0, f"{len(devices):,} devices; expected at most {MOST_PCI:,}")
    gpus = [
        device
        for device in devices
        if device.kind in GPU_KINDS and GPU_VENDORS.search(device.title)
    ]
    nics = [
        device
        for device in devices
        if device.kind == NIC_KINDS[0]
        or (device.kind in NIC_KINDS and FAST_NICS.search(device.title))
    ]
    if not gpus:
        fail(name, 0, "no GPU; expected the output of lspci -vv")
    check_count(len(gpus) + len(nics))
    bridges = tuple(device for device in devices if device.buses)
    return Lspci(name, tuple(gpus), tuple(nics), bridges)


def to_machine(facts: Lspci, gpu: Gpu) -> MachineFacts:
    """Return devices, the links of the board and PCIe relations.

    Raises:
        SpecError: the board of the GPUs is not known.
    """
    names = tuple(f"GPU{i}" for i in range(len(facts.gpus)))
    placed = dict(zip(names, facts.gpus, strict=True))
    placed |= {f"nic{i}": nic for i, nic in enumerate(facts.nics)}
    ways = {name: (*facts.way(device), device) for name, device in placed.items()}
    notes = ["Bus order is taken for the order of the GPUs."]
    if not facts.bridges:
        notes.append("The file has no bridges (lspci -vv has, run as root).")
    rates = [rate for name in names if (rate := _rate(ways[name]))]
    return MachineFacts(
        gpus=names,
        nics=tuple(Nic(name) for name in placed if name not in names),
        peers=board_links(names, gpu, notes),
        relations=relations_of(ways, _relation),
        port_rate_gb_s=min(rates, default=None),
        notes=tuple(notes),
    )


def read_pci(lines: Sequence[Line]) -> list[PciDevice]:
    """Return the devices in the order of the file."""
    devices: list[PciDevice] = []
    for line in lines:
        if head := _HEAD.fullmatch(line.text.strip()[:500]):
            domain, bus, *slot = head[1] or "0000", int(head[2], 16), head[3], head[4]
            devices.append(PciDevice(domain, bus, ".".join(slot), head[5], head[6]))
        elif devices:
            _read_detail(devices[-1], line.text[:500])
    return devices


def _read_detail(device: PciDevice, text: str) -> None:
    if match := _BUSES.search(text):
        primary, *below = (int(match[i], 16) for i in (1, 2, 3))
        device.primary, device.buses = primary, (below[0], below[1])
    elif match := _NUMA.search(text):
        device.numa = match[1]
    elif match := _LINK.search(text):
        if match[1] == "Cap":
            device.speed_gt_s = float(match[2]) if match[2].count(".") < 2 else None
        device.width = whole(match[3], 32) or device.width


GPU_KINDS = (
    "3D controller",
    "VGA compatible controller",
    "Display controller",
    "Processing accelerators",
)

GPU_VENDORS = re.compile(r"NVIDIA|AMD/ATI|Advanced Micro Devices|Habana|Gaudi", re.I)

FAST_NICS = re.compile(r"Mellanox|ConnectX|Elastic Fabric|Pensando|BCM57[56]|Omni-Path")
"""Network controllers that machines of GPUs join with; others are for management."""

NIC_KINDS = ("Infiniband controller", "Ethernet controller", "Fabric controller")

MOST_PCI = 20_000
"""Most devices of a file; large servers have some 500."""


@dataclass(frozen=True)
class Lspci:
    """GPUs, NICs and bridges in the order of the file."""

    name: str
    gpus: tuple[PciDevice, ...]
    nics: tuple[PciDevice, ...]
    bridges: tuple[PciDevice, ...]

    @property
    def product(self) -> str:
        """Return the name of the GPUs; empty where they are unlike."""
        titles = {gpu.title for gpu in self.gpus}
        return titles.pop() if len(titles) == 1 else ""

    def way(self, device: PciDevice) -> tuple[PciDevice, ...]:
        """Return the bridges above a device, outermost first."""
        above = [b for b in self.bridges if b.holds(device)]
        return tuple(sorted(above, key=lambda b: _width(b), reverse=True))


def _width(bridge: PciDevice) -> int:
    first, last = bridge.buses or (0, 0)
    return last - first


def _relation(way_a: Sequence[PciDevice], way_b: Sequence[PciDevice]) -> str:
    """Return the relation of two devices by the bridges that are above both."""
    (*above_a, a), (*above_b, b) = way_a, way_b
    if depth := shared_depth(above_a, above_b):
        is_near = max(len(above_a), len(above_b)) - depth <= 1
        return "PIX" if is_near else "PXB"
    roots = [above[0].primary if above else device.bus
             for above, device in ((above_a, a), (above_b, b))]  # fmt: skip
    if a.domain == b.domain and roots[0] == roots[1]:
        return "PHB"
    return "NODE" if a.numa == b.numa and a.numa not in ("", "-1") else "SYS"


def _rate(way: Sequence[PciDevice]) -> float | None:
    """Return the rate of a link, the lower one of its device and its slot."""
    rates = [rate for end in way[-2:] if (rate := end.rate_gb_s)]
    return min(rates, default=None)


IMPORTERS = {
    "lspci": MachineImporter(
        sign=r"(?m)^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] "
        r"[A-Z3][^:\n]{3,60}: ",
        parse=parse,
        to_machine=to_machine,
        gpu_name=lambda facts: facts.product,
    ),
}
