"""Devices and bridges as `lspci -vv` prints them, a block of lines for each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.imports.text import Line, whole

LANE_GB_S_PER_GT_S = 128 / 130 / 8
"""Rate of a lane of PCIe 3.0 to 5.0 over its transfers: 128 of 130 bits."""

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
    """What the port is able to; idle devices run slower."""
    width: int | None = None
    """What was agreed on with the slot."""

    @property
    def rate_gb_s(self) -> float | None:
        """Return the rate of its link per direction; None if not known."""
        if not self.speed_gt_s or not self.width:
            return None
        return self.speed_gt_s * self.width * LANE_GB_S_PER_GT_S

    def holds(self, other: PciDevice) -> bool:
        """Return whether a device lies below this bridge."""
        if self.buses is None or self.domain != other.domain:
            return False
        return self.buses[0] <= other.bus <= self.buses[1]


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
