"""InfiniBand: the fabric that `ibnetdiscover` lists, and the ports of `ibstat`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from meshwright.imports.machines.facts import Pair
from meshwright.imports.registry import FabricImporter, Imported, Importer, unique
from meshwright.imports.switch_levels import (
    LATENCY_US,
    TIERS,
    Group,
    Tree,
    level_above,
    most_common_rate,
    narrowed,
    note_trees,
    note_unequal,
    regular_sizes,
    trees_of,
)
from meshwright.imports.text import Line, fail, known, read_lines, shown

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


Cables = Mapping[Pair, float]
"""Gbit/s between two hosts or switches, summed over their cables."""


def parse_ibnetdiscover(text: str, name: str) -> IbFabric:
    """Return the blocks and ports of ibnetdiscover's output.

    Raises:
        SpecError: there is no block, or a line of one is broken; with file and line.
    """
    blocks: list[Block] = []
    ports: list[Port] = []
    lines = read_lines(text, name)
    if any(map(is_port_line, lines[:MOST_HEADING])):
        return read_port_lines(lines, name)
    for whole in lines:
        line = whole._replace(text=whole.text.strip()[:LONGEST])
        if not _STARTS.match(line.text):
            continue
        if line.text.startswith("["):
            ports.append(_read_port(blocks, line))
        else:
            blocks.append(_read_block(line))
    if not blocks:
        sentence = 'no block such as Switch 41 "S-.."; expected the output of'
        fail(name, 0, f"{sentence} ibnetdiscover")
    return IbFabric(name, tuple(blocks), tuple(ports))


def to_levels(facts: IbFabric) -> Imported:
    """Return the levels above a host, innermost first.

    The children of a level are the groups of hosts that switches of lower tiers join.
    The uplink of a child is the sum of its cables to the switches of the level.

    Raises:
        SpecError: no host is on a switch, or there are too many tiers.
    """
    cables = _cables(facts)
    hosts = {end for pair in cables for end in pair} & set(facts.hosts)
    tiers = _tiers(cables, hosts)
    if not hosts or not tiers:
        fail(facts.name, 0, "no host is joined to a switch; expected a whole fabric")
    if max(tiers.values()) >= len(TIERS):
        fail(facts.name, 0, f"expected at most {len(TIERS)} tiers of switches")
    guess = f"Latency of each uplink is assumed to be {LATENCY_US:g} us."
    notes = [guess]
    by_tier = [
        [name for name, tier in tiers.items() if tier == height]
        for height in range(max(tiers.values()) + 1)
    ]
    trees = trees_of(sorted(hosts), by_tier, cables)
    names = [f"that of {tree.tiers[-1][0].hosts[0]}" for tree in trees]
    note_trees(names, trees, notes)
    sizes = regular_sizes(trees[0].counts)
    note_unequal(dict(zip(TIERS, trees[0].counts, strict=False)), sizes, notes)
    levels = _levels(trees[0], sizes, cables, tiers, notes)
    return Imported({"levels": levels}, unique(notes), guess)


def _levels(
    tree: Tree,
    sizes: Sequence[int],
    cables: Cables,
    tiers: Mapping[str, int],
    notes: list[str],
) -> list[dict[str, Any]]:
    """Return the levels of a tree whose groups have several children."""
    below = [Group((host,)) for group in tree.tiers[0] for host in group.hosts]
    rates, block = [], 1
    for tier, (groups, size) in enumerate(zip(tree.tiers, sizes, strict=True)):
        if len(groups) < len(below):
            gbit_s = _uplink_gbit_s(tier, below, block, cables, tiers, notes)
        else:
            gbit_s = math.inf
        rates.append(gbit_s / block)
        below, block = [*groups], block * size
    levels, block = [], 1
    for name, size, rate in zip(TIERS, sizes, narrowed(sizes, rates), strict=False):
        if size > 1:
            levels.append(level_above(name, size, rate * block / 8, "shared"))
        block *= size
    return levels


def _cables(facts: IbFabric) -> Cables:
    """Return the bandwidth between pairs of hosts and switches; cables count once."""
    cables: dict[Pair, float] = {}
    seen = set()
    for port in facts.ports:
        ends = [facts.host_of.get(end, end) for end in (port.owner, port.peer)]
        is_known = all(not end.startswith("H-") or end in facts.hosts for end in ends)
        if port.cable not in seen and is_known and ends[0] != ends[1]:
            seen.add(port.cable)
            pair = frozenset(ends)
            cables[pair] = cables.get(pair, 0.0) + port.gbit_s
    return cables


def _tiers(cables: Cables, hosts: set[str]) -> dict[str, int]:
    """Return how many switches lie between each switch and the nearest host."""
    near: dict[str, set[str]] = {}
    for a, b in map(tuple, cables):
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    tiers: dict[str, int] = {}
    reached, tier = set(hosts), 0
    while reached:
        found = set().union(*(near.get(name, set()) for name in reached))
        reached = found - set(tiers) - hosts
        tiers |= dict.fromkeys(reached, tier)
        tier += 1
    return tiers


def _uplink_gbit_s(
    tier: int,
    children: Sequence[Group],
    block: int,
    cables: Cables,
    tiers: Mapping[str, int],
    notes: list[str],
) -> float:
    """Return the rate from a block of hosts up to the switches of a tier.

    A child has the cables of all its hosts, a block the share of its hosts in them.
    """
    home = {
        name: i
        for i, child in enumerate(children)
        for name in (*child.hosts, *child.switches)
    }
    uplinks = [0.0] * len(children)
    for pair, gbit_s in cables.items():
        inner = {home[end] for end in pair if end in home}
        if len(inner) == 1 and any(tiers.get(end) == tier for end in pair):
            uplinks[inner.pop()] += gbit_s
    shares = [
        round(gbit_s * block / len(child.hosts))
        for gbit_s, child in zip(uplinks, children, strict=True)
    ]
    name = TIERS[tier]
    rate = most_common_rate(shares, f"Gbit/s up to {name}", notes)
    if rate <= 0:
        notes.append(f"No speed is printed for cables to {name}; 100 Gbit/s assumed.")
    return rate or 100


KINDS = {"CA": ("Ca", "H-"), "SW": ("Switch", "S-"), "RT": ("Rt", "R-")}
"""By the first word of an end: its kind, and the letter before its guid."""

MOST_PORTS = 200_000

_END = r"(CA|SW|RT)\s{1,9}\d{1,5}\s{1,9}(\d{1,3})\s{1,9}0x([0-9a-fA-F]{1,16})"
_START = re.compile(
    _END + r"\s{1,9}(?:(\d{1,2})x\s{1,9}(\S{1,9})|\?{1,9}\s{0,9}\S{0,9})?"
)
_PEER = re.compile(r"\s{1,99}-\s{1,99}" + _END + r"\s{1,99}\(")
_END_NAMES = re.compile(
    r"\(\s{0,9}'(.{0,200}?)'\s{1,9}-\s{1,9}'(.{0,200}?)'\s{0,9}\)\s{0,9}"
)


def is_port_line(line: Line) -> bool:
    """Return whether a line is one of `ibnetdiscover -p`."""
    return _START.match(line.text[:100].strip()) is not None


def read_port_lines(lines: Sequence[Line], name: str) -> IbFabric:
    """Return the blocks and ports of a list of ports.

    Raises:
        SpecError: a speed is unknown, or there are too many ports; with file and line.
    """
    blocks: dict[str, Block] = {}
    ports: list[Port] = []
    for whole in lines:
        line = whole._replace(text=whole.text.strip()[:1_000])
        start = _START.match(line.text)
        if start is None:
            continue
        peer = _PEER.match(line.text, start.end())
        names = _END_NAMES.search(line.text, peer.end() - 1) if peer else None
        titles = (names[1], names[2]) if names else ("", "")
        owner = _block_of_end(blocks, start[1], start[3], titles[0], line.number)
        if peer is None:
            continue  # nothing is plugged in
        other = _block_of_end(blocks, peer[1], peer[3], titles[1], line.number)
        speed = _speed(start, line)
        ports.append(Port(owner, start[2], other, peer[2], titles[1], speed))
        if len(ports) > MOST_PORTS:
            line.fail(f"expected at most {MOST_PORTS:,} ports")
    return IbFabric(name, tuple(blocks.values()), tuple(ports))


def _block_of_end(
    blocks: dict[str, Block], kind: str, guid: str, title: str, line: int
) -> str:
    """Return the guid of an end, which becomes a block where it is new."""
    word, letter = KINDS[kind]
    full = letter + guid.lower().zfill(16)
    if full not in blocks or (title and not blocks[full].name):
        blocks[full] = Block(word, full, title.strip(), line)
    return full


def _speed(start: re.Match[str], line: Line) -> str:
    """Return the speed, such as 4xHDR; empty where the tool prints ???."""
    if not start[4] or "?" in start[5]:
        return ""
    if start[5] not in LANE_GBIT_S:
        line.fail(f"{shown(start[5])}: unknown speed; {known(LANE_GBIT_S)}")
    return f"{start[4]}x{start[5]}"


_BLOCK = re.compile(r"(Switch|Ca|Rt)\s{1,20}\d{1,5}\s{1,20}\"([^\"]{1,60})\"")
_PORT = re.compile(
    r"\[(\d{1,5})\](?:\[ext \d{1,5}\])?(?:\([0-9a-fA-FxX]{1,20}\))?\s{1,40}"
    r"\"([^\"]{1,60})\"(?:\[(\d{1,5})\])?"
)
_NAME = re.compile(r"#[^\"]{0,60}\"([^\"]{0,200})\"")
_SPEED = re.compile(r"\s(\d{1,2})x([A-Z]{2,4}\d{0,3})(?=\s|$)")
_STARTS = re.compile(r"(?:Switch|Ca|Rt)\s|\[\d")

MOST_HEADING = 200
"""Lines before the first port of `ibnetdiscover -p`."""

LONGEST = 2_000
"""Characters of a line that are read."""


def _read_block(line: Line) -> Block:
    match = _BLOCK.match(line.text)
    if match is None:
        sentence = 'expected a block such as Ca 1 "H-0123" # "host mlx5_0"'
        line.fail(f"{shown(line.text)}: {sentence}")
    title = _NAME.search(line.text, match.end())
    return Block(match[1], match[2], title[1].strip() if title else "", line.number)


def _read_port(blocks: list[Block], line: Line) -> Port:
    match = _PORT.match(line.text)
    if match is None or not blocks:
        where = "" if match is None else "a port outside of a block; "
        sentence = f'{where}expected a port such as [1] "S-0123"[2] # "name" 4xHDR'
        line.fail(f"{shown(line.text)}: {sentence}")
    title = _NAME.search(line.text, match.end())
    speeds = list(_SPEED.finditer(line.text, match.end()))
    if speeds and speeds[-1][2] not in LANE_GBIT_S:
        line.fail(f"{speeds[-1][2]}: unknown speed; {known(LANE_GBIT_S)}")
    return Port(
        owner=blocks[-1].guid,
        number=match[1],
        peer=match[2],
        peer_number=match[3] or "",
        peer_name=title[1].strip() if title else "",
        speed=f"{speeds[-1][1]}x{speeds[-1][2]}" if speeds else "",
    )


_HOST_NAME = re.compile(r"VM_hostname\s{1,20}(\S{1,200})")
_GUID = re.compile(r"(?:0x)?([0-9a-fA-F]{12,16})")
_PORT_GUID = re.compile(r"Port GUID:\s{1,20}(?:0x)?([0-9a-fA-F]{1,16})")
_OTHER = re.compile(r"CA '|Port \d|[A-Z][A-Za-z /0-9]{1,40}:|#")

THIS_HOST = "localhost"
"""Stands for the host that ibstat ran on, which it does not print."""


@dataclass(frozen=True)
class IbPorts:
    """Port GUIDs, small letters without 0x, by host."""

    name: str
    guids: Mapping[str, tuple[str, ...]]


def parse_ibstat(text: str, name: str) -> IbPorts:
    """Return the port GUIDs of each host.

    Raises:
        SpecError: no port, or a line that is neither host nor GUID; with line.
    """
    guids: dict[str, list[str]] = {}
    host = ""
    for whole in read_lines(text, name):
        line = whole.text.strip()[:400]
        if match := _HOST_NAME.fullmatch(line):
            host = match[1]
            guids.setdefault(host, [])
        elif match := _PORT_GUID.fullmatch(line) or _GUID.fullmatch(line):
            guids.setdefault(host or THIS_HOST, []).append(match[1].lower())
        elif line and not _OTHER.match(line):
            sentence = "expected VM_hostname, a port GUID or a line of ibstat"
            whole.fail(f"{shown(line)}: {sentence}")
    if not any(guids.values()):
        fail(name, 0, "no port GUID; expected the output of ibstat")
    return IbPorts(name, {host: tuple(found) for host, found in guids.items()})


IMPORTERS = {
    "ibnetdiscover": FabricImporter(
        sign=r"(?m)^(?:Switch|Ca)\s{1,9}\d{1,5}\s{1,9}\"[SH]-|^switchguid="
        r"|^(?:CA|SW)\s{1,9}\d{1,5}\s{1,9}\d{1,3}\s{1,9}0x[0-9a-f]{8,16}\s",
        parse=parse_ibnetdiscover,
        to_levels=to_levels,
    ),
    "ibstat": Importer(
        sign=r"(?m)^VM_hostname |^CA '|^\s{0,9}Port GUID: ",
        parse=parse_ibstat,
    ),
}
