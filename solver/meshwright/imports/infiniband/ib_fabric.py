"""The blocks and ports that ibnetdiscover lists, and the hosts behind them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

LANE_GBIT_S = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 13.64,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
"""Data rate of one lane per direction: InfiniBand Trade Association's roadmap."""

SHARP = "Aggregation Node"
"""Marks the names of adapters inside switches that reduce: they have no host."""

UNNAMED = "Mellanox Technologies"
"""Marks the names of adapters whose host has not set one."""


@dataclass(frozen=True)
class Block:
    """A switch (Switch), channel adapter (Ca) or router (Rt)."""

    kind: str
    guid: str
    """With the letter of its kind: S-0123, H-0123."""
    name: str
    line: int


@dataclass(frozen=True)
class Port:
    """One end of a cable."""

    owner: str
    number: str
    peer: str
    peer_number: str
    peer_name: str
    speed: str
    """Such as 4xHDR; empty where it is not printed."""

    @property
    def gbit_s(self) -> float:
        """Return the data rate per direction; 0 where it is not known."""
        lanes, _, kind = self.speed.partition("x")
        return int(lanes) * LANE_GBIT_S[kind] if kind else 0.0

    @property
    def cable(self) -> frozenset[tuple[str, str]]:
        """Return both ends, the same from either side."""
        return frozenset(((self.owner, self.number), (self.peer, self.peer_number)))


@dataclass(frozen=True)
class IbFabric:
    """All blocks and all ports, in the order of the file."""

    name: str
    blocks: tuple[Block, ...]
    ports: tuple[Port, ...]

    @cached_property
    def adapter_names(self) -> dict[str, str]:
        """Return the name of each channel adapter, by guid."""
        host_names = {b.guid: b.name for b in self.blocks if b.guid.startswith("H-")}
        seen = {p.peer: p.peer_name for p in self.ports if p.peer.startswith("H-")}
        return {**seen, **{guid: name for guid, name in host_names.items() if name}}

    @cached_property
    def host_of(self) -> dict[str, str]:
        """Return the host behind each adapter: the first word of its name."""
        hosts = {}
        for guid, name in self.adapter_names.items():
            if SHARP not in name:
                words = name.split() if UNNAMED not in name else []
                hosts[guid] = words[0] if words else guid
        return hosts

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts of the fabric, each once."""
        return tuple(dict.fromkeys(self.host_of.values()))
