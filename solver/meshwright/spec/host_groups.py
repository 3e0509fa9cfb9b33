"""The hosts of a cluster in groups of equal ones, and the levels above them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from meshwright.spec.base import Problem
from meshwright.spec.host_graph import HostGraph, degraded
from meshwright.spec.links import (
    USUAL_BUS_SHARE,
    Level,
    Link,
    Node,
    broken_graph,
    effective_gb_s,
)
from meshwright.spec.override import Override


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
