"""The hosts of a cluster in groups of equal ones, and each host as nodes and links."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from meshwright.spec.base import Problem
from meshwright.spec.topology import (
    USUAL_BUS_SHARE,
    Level,
    Link,
    Node,
    Override,
    ScaleOut,
    broken_graph,
    effective_gb_s,
)


class HostGraph(NamedTuple):
    """The nodes and links of one host, and the switch that its NICs reach."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    way_out: str = ""
    """Name of the switch that the NICs reach; empty where nothing is above the host."""

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of the host."""
        return sum(node.kind == "gpu" for node in self.nodes)

    @property
    def nics(self) -> int:
        """Return the number of NICs of the host."""
        return sum(node.kind == "nic" for node in self.nodes)


def with_switch_above(machine: HostGraph, above: ScaleOut | None) -> HostGraph:
    """Return a host with its NICs linked to the switch of the level above, if any."""
    if above is None:
        return machine
    (name,) = _switches(above, 1, [node.name for node in machine.nodes])
    switch = Node(name=name, kind="switch")
    links = [
        Link(
            between=(node.name, switch.name),
            gb_s=min(node.gb_s or above.gb_s, above.gb_s),
            latency_us=above.latency_us,
            bus_share=above.bus_share,
        )
        for node in machine.nodes
        if node.kind == "nic"
    ]
    return HostGraph((*machine.nodes, switch), (*machine.links, *links), name)


def _switches(level: ScaleOut, count: int, taken: Collection[str]) -> list[str]:
    """Return names for the switches of a level that no other node has."""
    name = level.name
    while not set(taken).isdisjoint(names := [f"{name}{i}" for i in range(count)]):
        name += "-switch"
    return names


def graph_of_levels(levels: Sequence[Level], above: ScaleOut | None) -> HostGraph:
    """Return the levels of one host as a tree of switches, with NICs at its top.

    A rail per GPU is a NIC at that GPU; one shared uplink is a NIC at the top switch.
    """
    gpus = math.prod(level.size for level in levels)
    nodes = [Node(name=f"gpu{rank}") for rank in range(gpus)]
    links: list[Link] = []
    nics = [f"nic{i}" for i in range(gpus if above else 0)]
    children, below = [node.name for node in nodes], 1
    for level in levels:
        taken = [*nics, *(node.name for node in nodes)]
        switches = _switches(level, len(children) // level.size, taken)
        nodes += [Node(name=name, kind="switch") for name in switches]
        gb_s = level.gb_s * level.uplinks(below)
        links += [
            Link(
                between=(child, switches[i // level.size]),
                gb_s=gb_s,
                latency_us=level.latency_us,
                bus_share=level.bus_share,
            )
            for i, child in enumerate(children)
        ]
        children, below = switches, below * level.size
    if above is not None:
        is_shared = above.uplink == "shared"
        exits = children if is_shared else [f"gpu{rank}" for rank in range(gpus)]
        nodes += [Node(name=name, kind="nic") for name in nics[: len(exits)]]
        latency_us = (
            0.0 if is_shared else math.fsum(level.latency_us for level in levels)
        )
        links += [
            Link(
                between=pair,
                gb_s=above.gb_s,
                latency_us=latency_us,
                bus_share=above.bus_share,
            )
            for pair in zip(exits, nics, strict=False)
        ]
    return HostGraph(tuple(nodes), tuple(links))


def degraded(machine: HostGraph, overrides: Sequence[Override]) -> HostGraph:
    """Return a host after overrides: without what is down, with slow links slower."""
    down = {override.node for override in overrides if override.node is not None}
    rates = {
        frozenset(override.link): override.gb_s
        for override in overrides
        if override.link
    }
    links = [
        link.model_copy(update={"gb_s": rates.get(frozenset(link.between), link.gb_s)})
        for link in machine.links
        if not down & set(link.between)
    ]
    nodes = tuple(node for node in machine.nodes if node.name not in down)
    kept = tuple(link for link in links if link.gb_s > 0)
    return HostGraph(nodes, kept, machine.way_out)


class HostGroup(NamedTuple):
    """Hosts that have the same nodes and links."""

    machine: HostGraph
    hosts: tuple[int, ...]
    """Their numbers among all hosts of the cluster."""


class Hosts(NamedTuple):
    """The hosts that a plan may use, and the levels above them."""

    groups: tuple[HostGroup, ...]
    outer: tuple[Level, ...]
    left_out: tuple[int, ...] = ()
    """Hosts that are down, or have lost more GPUs than the others."""

    @property
    def gpus(self) -> int:
        """Return the GPUs of each host."""
        return self.groups[0].machine.gpus

    @property
    def nics(self) -> int:
        """Return the NICs of the host that has the fewest."""
        return min(kind.machine.nics for kind in self.groups)


def split_levels(
    levels: Sequence[Level], gpus_per_host: int
) -> tuple[tuple[Level, ...], tuple[Level, ...]] | None:
    """Return the levels inside a host and those above; None if hosts split a level."""
    sizes = list(accumulate((level.size for level in levels), mul))
    if gpus_per_host not in sizes:
        return None
    inside = sizes.index(gpus_per_host) + 1
    return tuple(levels[:inside]), tuple(levels[inside:])


def hosts_of(
    machine: HostGraph, outer: tuple[Level, ...], overrides: tuple[Override, ...]
) -> Hosts:
    """Return the hosts that overrides leave, in groups of equal ones.

    All must have equally many GPUs. Their number is the one that keeps most GPUs in
    use: hosts with fewer are left out, hosts with more use the first of their GPUs.
    """
    rated = math.prod(level.size for level in outer)
    common = [override for override in overrides if override.host is None]
    touched = {override.host for override in overrides if override.host is not None}
    down = {override.host for override in overrides if override.is_whole_host}
    machines = {
        host: degraded(
            machine, [override for override in overrides if override.holds_for(host)]
        )
        for host in touched - down
    }
    plain = tuple(host for host in range(rated) if host not in touched)
    kinds: dict[HostGraph, list[int]] = {}
    if plain:
        kinds[degraded(machine, common)] = list(plain)
    for host in sorted(machines):
        kinds.setdefault(machines[host], []).append(host)
    if not kinds:
        return Hosts((), outer, tuple(range(rated)))
    gpus = _best_size(kinds)
    kept = [
        HostGroup(remaining, tuple(at))
        for remaining, at in kinds.items()
        if remaining.gpus >= gpus
    ]
    kept = [HostGroup(_first_gpus(group.machine, gpus), group.hosts) for group in kept]
    used = {host for group in kept for host in group.hosts}
    left_out = tuple(host for host in range(rated) if host not in used)
    hosts = Hosts(tuple(kept), outer, left_out)
    return hosts._replace(outer=_flat(hosts, len(used))) if left_out else hosts


def _best_size(kinds: dict[HostGraph, list[int]]) -> int:
    def total(gpus: int) -> int:
        return gpus * sum(
            len(at) for machine, at in kinds.items() if machine.gpus >= gpus
        )

    return max(
        (machine.gpus for machine in kinds), key=lambda gpus: (total(gpus), gpus)
    )


def _first_gpus(machine: HostGraph, gpus: int) -> HostGraph:
    """Return a machine with only its first GPUs in use; the others pass nothing on."""
    names = [node.name for node in machine.nodes if node.kind == "gpu"][gpus:]
    return degraded(machine, [Override(node=name) for name in names])


def _flat(hosts: Hosts, used: int) -> tuple[Level, ...]:
    """Return one level above the hosts in use, as narrow as the narrowest of all."""
    if used == 1:
        return ()
    if not hosts.nics:
        return hosts.outer  # Nothing leads out: `broken_hosts` says so.
    first, below, rates = hosts.outer[0], 1, []
    for level in hosts.outer:
        gb_s = level.gb_s_per_gpu(hosts.gpus * below, hosts.nics * below)
        rates.append(effective_gb_s(gb_s, level.bus_share))
        below *= level.size
    gpus_per_uplink = hosts.gpus / first.uplinks(hosts.gpus, hosts.nics)
    latency_us = math.fsum(level.latency_us for level in hosts.outer)
    changed = {
        "size": used,
        "gb_s": min(rates) * gpus_per_uplink,
        "latency_us": latency_us,
        "bus_share": USUAL_BUS_SHARE,
    }
    return (first.model_copy(update=changed),)


def broken_hosts(hosts: Hosts, overrides: Sequence[Override]) -> Iterable[Problem]:
    """Yield the overrides that leave no host, or a host in pieces."""
    if not hosts.groups:
        yield Problem(("overrides",), len(overrides), "given, which leave no host")
    for kind in hosts.groups:
        for problem in broken_graph(*_in_reach(kind.machine, bool(hosts.outer))):
            sentence = f"given, which leave {problem.value!r} without a way to others"
            yield Problem(("overrides",), len(overrides), sentence)
            return


def _in_reach(
    machine: HostGraph, has_others: bool
) -> tuple[tuple[Node, ...], tuple[Link, ...]]:
    """Return the nodes of a machine that have a link, and those that need one.

    These are all GPUs, and the switch outside where there are other hosts.
    """
    ends = {end for link in machine.links for end in link.between}
    ends -= {machine.way_out}
    kept = [n for n in machine.nodes if n.name in ends or n.kind == "gpu"]
    if has_others:
        kept.append(Node(name=machine.way_out, kind="switch"))
    return tuple(kept), machine.links
