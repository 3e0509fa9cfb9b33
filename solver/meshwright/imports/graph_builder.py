"""Builds the graph of a machine: adds switches, links and notes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


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
