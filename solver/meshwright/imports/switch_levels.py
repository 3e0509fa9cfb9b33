"""Levels of switches: cut from a tree of unequal switches, and stacked on a machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from meshwright.errors import SpecError
from meshwright.imports.machines.facts import Pair, components
from meshwright.imports.registry import Imported
from meshwright.spec.cluster import Cluster
from meshwright.spec.hosts import split_levels
from meshwright.spec.topology import Level, ScaleOut, Topology

TIERS = ("leaf", "spine", "core", "hall", "site")
"""Names of levels of switches, innermost first. None ends in a digit, since a number
follows in the names of switches."""

MOST_TOLD = 8
"""Trees or sizes that one note lists."""


class Group(NamedTuple):
    """Hosts, and the switches up to some tier that join them."""

    hosts: tuple[str, ...]
    switches: tuple[str, ...] = ()


class Tree(NamedTuple):
    """Hosts below one root: by tier, the groups that switches up to it join."""

    tiers: tuple[tuple[Group, ...], ...]

    @property
    def hosts(self) -> int:
        """Return the number of hosts of the tree."""
        return sum(self.counts[-1])

    @property
    def counts(self) -> list[list[int]]:
        """Return, by tier, the number of hosts of each group."""
        return [[len(group.hosts) for group in tier] for tier in self.tiers]


def trees_of(
    hosts: Sequence[str], switches: Sequence[Iterable[str]], pairs: Iterable[Pair]
) -> list[Tree]:
    """Return the trees that switches join, the one with most hosts first.

    Args:
        hosts: The names of the hosts.
        switches: By tier, the names of its switches, leaves first.
        pairs: Links of hosts with switches, and of switches with each other.
    """
    joined, kept = tuple(pairs), set(hosts)
    below: list[str] = []
    tiers: list[list[Group]] = []
    for names in switches:
        below += sorted(names)
        within = {*hosts, *below}
        parts = components([*hosts, *below], [p for p in joined if p <= within])
        tiers.append([_group(part, kept) for part in parts if part[0] in kept])
    return _split(tiers) if tiers else []


def _group(names: Sequence[str], hosts: set[str]) -> Group:
    """Return a group of names, whose hosts come before its switches."""
    count = sum(name in hosts for name in names)
    return Group(tuple(names[:count]), tuple(names[count:]))


def _split(tiers: Sequence[Sequence[Group]]) -> list[Tree]:
    """Return one tree for each group of the last tier."""
    home = {host: i for i, root in enumerate(tiers[-1]) for host in root.hosts}
    split: list[list[list[Group]]] = [[[] for _ in tiers] for _ in tiers[-1]]
    for height, tier in enumerate(tiers):
        for group in tier:
            split[home[group.hosts[0]]][height].append(group)
    trees = [Tree(tuple(map(tuple, parts))) for parts in split]
    return sorted(trees, key=lambda tree: -tree.hosts)


def regular_sizes(counts: Sequence[Sequence[int]]) -> list[int]:
    """Return the size of each level; their product is the number of all hosts.

    Args:
        counts: By tier, the hosts of its groups. Every group is a union of groups of
            the tier below, and the last tier has one group.
    """
    sizes, block = [], 1
    for tier in counts:
        size = math.gcd(*(hosts // block for hosts in tier))
        sizes.append(size)
        block *= size
    return sizes


def note_unequal(
    counts: Mapping[str, Sequence[int]], sizes: Sequence[int], notes: list[str]
) -> None:
    """Add a note for each named tier whose groups have unequally many hosts."""
    block = 1
    for (title, tier), size in zip(counts.items(), sizes, strict=False):
        block *= size
        if len(set(tier)) > 1:
            told = f"Groups of a {title} have {_spelled(tier)} hosts:"
            notes.append(f"{told} {_cut(tier, block)}.")


def _cut(tier: Sequence[int], block: int) -> str:
    """Return words on the blocks that unequal groups are cut into."""
    if block > 1:
        return f"they are described as {sum(tier) // block} blocks of {block}"
    most = max(set(tier), key=lambda size: (size * _able(tier, size), size))
    groups = _able(tier, most)
    return (
        "no number of hosts divides all, so the level above joins them; a file with "
        f"{most} hosts in each of {groups} groups, {most * groups} of {sum(tier)}, "
        "would keep the level"
    )


def _able(tier: Sequence[int], size: int) -> int:
    return sum(hosts >= size for hosts in tier)


def note_trees(names: Sequence[str], trees: Sequence[Tree], notes: list[str]) -> None:
    """Add a note on each tree beside the first, which is the one described."""
    if len(trees) < 2:
        return
    told = [f"{name} ({tree.hosts:,})" for name, tree in zip(names, trees, strict=True)]
    rest = ", ..." if len(told) > MOST_TOLD else ""
    notes.append(
        f"{len(trees)} trees have no switch in common, and a job stays in one of them; "
        f"by hosts: {', '.join(told[:MOST_TOLD])}{rest}. {names[0]} is described."
    )


def _spelled(sizes: Sequence[int]) -> str:
    """Return how often each size occurs, the most common first: '6 x 18, 1 x 12'."""
    counts = Counter(sizes).most_common()
    told = [f"{times} x {size:,}" for size, times in counts[:MOST_TOLD]]
    return ", ".join(told) + (", ..." if len(counts) > MOST_TOLD else "")


def narrowed(sizes: Sequence[int], rates: Sequence[float]) -> Iterator[float]:
    """Yield the rate of a host at each tier: the least since the last real level.

    A tier of size one is no level, but what it lets through limits the one above.
    """
    narrowest = math.inf
    for size, rate in zip(sizes, rates, strict=True):
        narrowest = min(narrowest, rate)
        yield narrowest
        if size > 1:
            narrowest = math.inf


def most_common_rate(rates: Sequence[int], what: str, notes: list[str]) -> int:
    """Return the most common rate; of two that are equally common, the lower."""
    counts = Counter(rates)
    most = max(counts.values())
    rate = min(rate for rate, count in counts.items() if count == most)
    if len(counts) > 1:
        others = ", ".join(map(str, sorted(set(counts) - {rate})[:MOST_TOLD]))
        notes.append(
            f"{what}: {most} of {len(rates)} have {rate}, others {others}; "
            f"{rate} is taken for all."
        )
    return rate


LATENCY_US = 2.5
"""Estimate: an uplink of a leaf, as in topologies/dgx-h100.yaml."""

UPPER_LATENCY_US = 0.5
"""Estimate: latency of levels above the first, as in topologies/dgx-h100-pod.yaml."""


def level_above(name: str, size: int, gb_s: float, uplink: str) -> dict[str, Any]:
    """Return the fields of a level above hosts."""
    rates = {"gb_s": gb_s, "latency_us": LATENCY_US, "uplink": uplink}
    return {"name": name, "size": size, **rates}


def stack(imported: Imported, topology: Topology) -> Imported:
    """Return the levels of a topology: those inside a machine, then the fabric's.

    Args:
        imported: The levels above a machine, innermost first.
        topology: The machine; the levels above it define its uplinks.

    Raises:
        SpecError: the machine has no NIC for the levels to join.
    """
    if topology.nodes and not any(node.kind == "nic" for node in topology.nodes):
        raise SpecError(f"machine {topology.name} has no NIC that switches could join")
    given = [_level(**level) for level in imported.fields["levels"]]
    given = [level for level in given if level.size > 1]
    inside, above = _inside_and_above(topology)
    notes = [note for note in imported.notes if note != imported.guess]
    notes += _left_out(topology, above)
    if not given:
        outer: list[Level] = []
    elif imported.are_rates_guessed:
        scale_out = above[0] if above else _port(topology)
        notes.append(
            _taken(scale_out, topology) if scale_out else _guess(imported, topology)
        )
        outer = list(_as_machine(given, scale_out or _guessed(given[0], topology)))
    else:
        scale_out = above[0] if above else None
        outer = list(_shared_out(given, scale_out, topology))
        notes.append(_latencies(outer, scale_out, topology))
    levels = [level.model_dump() for level in (*inside, *outer)]
    return Imported({"levels": levels}, tuple(notes))


def _level(**fields: Any) -> Level:
    """Return a level.

    Raises:
        SpecError: its size or bandwidth is out of range.
    """
    try:
        return Level.model_validate(fields)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        field = ".".join(map(str, detail["loc"]))
        told = detail["msg"].removeprefix("Value error, ")
        value = detail["input"]
        text = f"level {fields['name']}: {field}: {value!r}: {told}"
        raise SpecError(text) from None


def _inside_and_above(topology: Topology) -> tuple[Sequence[Level], Sequence[ScaleOut]]:
    """Return the levels inside a machine, and those above it in its topology."""
    if topology.nodes:
        return (), topology.above
    split = split_levels(topology.levels, _gpu_count(topology))
    inside = len(split[0]) if split else len(topology.levels)
    return topology.levels[:inside], topology.above[inside:]


def _gpu_count(topology: Topology) -> int:
    gpus = sum(node.kind == "gpu" for node in topology.nodes)
    return gpus or Cluster.model_construct(topology=topology).gpus_per_host


def _port(topology: Topology) -> ScaleOut | None:
    """Return uplinks as wide as the ports of NICs, where their bandwidth is known."""
    rates = [n.gb_s for n in topology.nodes if n.kind == "nic" and n.gb_s]
    if not rates:
        return None
    latency_us = UPPER_LATENCY_US
    return ScaleOut(
        name="port", gb_s=max(rates), latency_us=latency_us, uplink="per_nic"
    )


def _guess(imported: Imported, topology: Topology) -> str:
    """Return the note on assumed speeds, per NIC where the machine has NICs."""
    holder = "per NIC" if topology.nodes else "per GPU"
    return imported.guess.replace("per GPU", holder)


def _guessed(level: Level, topology: Topology) -> ScaleOut:
    """Return uplinks with the speed that was assumed for a level."""
    uplink = "per_nic" if topology.nodes else "per_gpu"
    return ScaleOut(**level.model_dump(exclude={"size"}) | {"uplink": uplink})


def _as_machine(given: Sequence[Level], scale_out: ScaleOut) -> Iterator[Level]:
    """Yield levels with the uplinks of a machine; switches have as many up as down."""
    machines = 1
    for index, level in enumerate(given):
        yield _level(
            name=level.name,
            size=level.size,
            gb_s=scale_out.gb_s * (machines if scale_out.uplink == "shared" else 1),
            latency_us=UPPER_LATENCY_US if index else scale_out.latency_us,
            uplink=scale_out.uplink,
        )
        machines *= level.size


def _shared_out(
    given: Sequence[Level], scale_out: ScaleOut | None, topology: Topology
) -> Iterator[Level]:
    """Yield levels whose bandwidth, a sum over cables, is divided among uplinks."""
    uplink = (
        scale_out.uplink if scale_out else ("per_nic" if topology.nodes else "shared")
    )
    below = 1
    for index, level in enumerate(given):
        holders = {
            "per_gpu": _gpu_count(topology) * below,
            "per_nic": sum(node.kind == "nic" for node in topology.nodes),
        }
        own_uplink = "shared" if index and uplink == "per_nic" else uplink
        first_us = scale_out.latency_us if scale_out else level.latency_us
        yield _level(
            name=level.name,
            size=level.size,
            gb_s=level.gb_s / holders.get(own_uplink, 1),
            latency_us=UPPER_LATENCY_US if index else first_us,
            uplink=own_uplink,
        )
        below *= level.size


def _left_out(topology: Topology, above: Sequence[ScaleOut]) -> Iterator[str]:
    """Yield a note on the levels that those of the file replace."""
    if len(above) > 1:
        names = ", ".join(level.name for level in above)
        yield f"Levels {names} of {topology.name} are replaced by those of the file."


def _taken(scale_out: ScaleOut, topology: Topology) -> str:
    return (
        f"The file has no speeds: machines are assumed to have the uplinks of "
        f"{topology.name} ({scale_out.gb_s:g} GB/s {scale_out.uplink}, "
        f"{scale_out.latency_us:g} us), and switches as many up as down, "
        f"{UPPER_LATENCY_US:g} us each."
    )


def _latencies(
    outer: Sequence[Level], scale_out: ScaleOut | None, topology: Topology
) -> str:
    source = f"as in {topology.name}" if scale_out else "an estimate"
    return (
        f"The file has no latencies: {outer[0].latency_us:g} us up to {outer[0].name} "
        f"({source}) and {UPPER_LATENCY_US:g} us for each level above are assumed."
    )
