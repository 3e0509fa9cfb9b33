"""One machine as any kind of file describes it, before bandwidths are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from meshwright.errors import SpecError

MAX_DEVICES = 256
"""GPUs and network ports of one machine: three times those of a rack of 72."""

Device = TypeVar("Device")

Pair = frozenset[str]
"""The names of two devices."""

RELATIONS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""PCIe relations of two devices, nearest first, in the words of nvidia-smi."""


@dataclass(frozen=True)
class Nic:
    """A network adapter, or one port of it."""

    name: str
    gb_s: float | None = None
    """Bandwidth of its port, where the file has it."""


@dataclass(frozen=True)
class PeerLinks:
    """Links between GPUs that are not PCIe: NVLink, XGMI."""

    kind: str = "NVLink"
    counts: Mapping[Pair, int] = field(default_factory=dict)
    """Number of links by pair; behind switches, those of each GPU to the switches."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Number of links of a GPU to switches, where the file names the switches."""
    is_explicit: bool = False
    """Whether the file names every switch, so that `counts` are of direct links."""
    link_gb_s: float | None = None
    """Bandwidth of one link per direction, where the file has it."""


@dataclass(frozen=True)
class MachineFacts:
    """Devices of one machine and how they are joined."""

    gpus: tuple[str, ...]
    nics: tuple[Nic, ...] = ()
    peers: PeerLinks = field(default_factory=PeerLinks)
    relations: Mapping[Pair, str] = field(default_factory=dict)
    """One of RELATIONS for every pair whose PCIe path the file shows."""
    sockets: Mapping[str, str] = field(default_factory=dict)
    """By GPU, the NUMA node or the CPUs next to it, where the file has one."""
    socket_gb_s: float | None = None
    """Bandwidth between CPU sockets, where the file names the CPU."""
    port_rate_gb_s: float | None = None
    """Rate of a GPU's PCIe link per direction, where the file has it."""
    has_peer_access: bool | None = None
    """Whether GPUs copy to each other over PCIe without a stop in host memory, where
    the file says so."""
    notes: tuple[str, ...] = ()


def check_count(devices: int) -> None:
    """Refuse more devices than any machine has, since every pair is visited."""
    if devices > MAX_DEVICES:
        accepted = f"expected at most {MAX_DEVICES} in one machine"
        raise SpecError(f"{devices:,} GPUs and network ports; {accepted}")


def components(names: Iterable[str], pairs: Iterable[Pair]) -> list[tuple[str, ...]]:
    """Return the groups of names that pairs join, in the order of the names."""
    order = list(names)
    leader = {name: name for name in order}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for pair in pairs:
        a, b = pair
        leader[find(a)] = find(b)
    groups: dict[str, list[str]] = {}
    for name in order:
        groups.setdefault(find(name), []).append(name)
    return [tuple(group) for group in groups.values()]


def relations_of(
    devices: Mapping[str, Device], relation: Callable[[Device, Device], str]
) -> dict[Pair, str]:
    """Return the relation of every pair of named devices."""
    return {
        frozenset((a, b)): relation(devices[a], devices[b])
        for a, b in itertools.combinations(devices, 2)
    }


def shared_depth(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how much of the way to two devices, from the outermost part, is shared."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def pairs_of(names: Sequence[str]) -> list[Pair]:
    """Return all pairs of names."""
    return [frozenset((a, b)) for i, a in enumerate(names) for b in names[i + 1 :]]
