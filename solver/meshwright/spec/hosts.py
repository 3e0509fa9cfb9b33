"""The hosts of a cluster: which are alike, which are left out, and what joins them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from meshwright.spec.base import Problem
from meshwright.spec.links import Level, Link, Node, broken_graph
from meshwright.spec.machine import Machine, degraded
from meshwright.spec.override import Override


class Alike(NamedTuple):
    """Hosts that have the same nodes and links."""

    machine: Machine
    hosts: tuple[int, ...]
    """Their numbers, of all hosts of the cluster."""


class Hosts(NamedTuple):
    """The hosts that a plan may use, and the levels above them."""

    kinds: tuple[Alike, ...]
    outer: tuple[Level, ...]
    left_out: tuple[int, ...] = ()
    """Those that are down, or have lost more GPUs than the others."""

    @property
    def gpus(self) -> int:
        """Return the GPUs of each host."""
        return self.kinds[0].machine.gpus


def split_levels(
    levels: Sequence[Level], gpus_per_host: int
) -> tuple[tuple[Level, ...], tuple[Level, ...]] | None:
    """Return the levels inside a host and those above; None if hosts cut a level."""
    sizes = list(accumulate((level.size for level in levels), mul))
    if gpus_per_host not in sizes:
        return None
    inside = sizes.index(gpus_per_host) + 1
    return tuple(levels[:inside]), tuple(levels[inside:])


def hosts_of(
    machine: Machine, outer: tuple[Level, ...], overrides: tuple[Override, ...]
) -> Hosts:
    """Return the hosts that overrides leave, alike ones together.

    All must have equally many GPUs: of the numbers of GPUs that hosts are left with,
    the one that makes up the most GPUs counts, hosts with fewer are left out.
    """
    rated = math.prod(level.size for level in outer)
    common = [own for own in overrides if own.host is None]
    touched = {own.host for own in overrides if own.host is not None}
    down = {own.host for own in overrides if own.is_whole_host}
    machines = {
        host: degraded(machine, [own for own in overrides if own.holds_for(host)])
        for host in touched - down
    }
    plain = tuple(host for host in range(rated) if host not in touched)
    kinds: dict[Machine, list[int]] = {}
    if plain:
        kinds[degraded(machine, common)] = list(plain)
    for host in sorted(machines):
        kinds.setdefault(machines[host], []).append(host)
    if not kinds:
        return Hosts((), outer, tuple(range(rated)))
    gpus = _best_size(kinds)
    kept = [Alike(own, tuple(at)) for own, at in kinds.items() if own.gpus >= gpus]
    kept = [Alike(_first_gpus(own.machine, gpus), own.hosts) for own in kept]
    used = {host for own in kept for host in own.hosts}
    left_out = tuple(host for host in range(rated) if host not in used)
    return Hosts(tuple(kept), _flat(outer, len(used), gpus, left_out), left_out)


def _best_size(kinds: dict[Machine, list[int]]) -> int:
    def total(gpus: int) -> int:
        return gpus * sum(len(at) for own, at in kinds.items() if own.gpus >= gpus)

    return max((own.gpus for own in kinds), key=lambda gpus: (total(gpus), gpus))


def _first_gpus(machine: Machine, gpus: int) -> Machine:
    """Return a machine with only its first GPUs in use; the others pass nothing on."""
    names = [node.name for node in machine.nodes if node.kind == "gpu"][gpus:]
    return degraded(machine, [Override(node=name) for name in names])


def _flat(
    outer: tuple[Level, ...], hosts: int, gpus: int, left_out: tuple[int, ...]
) -> tuple[Level, ...]:
    """Return the levels above hosts: one, as wide as the narrowest, if some are out."""
    if not left_out:
        return outer
    if hosts == 1:
        return ()
    first, below, rates = outer[0], gpus, []
    for level in outer:
        rates.append(level.gb_s / (below if level.uplink == "shared" else 1))
        below *= level.size
    narrowest = min(rates) * (gpus if first.uplink == "shared" else 1)
    latency_us = sum(level.latency_us for level in outer)
    changed = {"size": hosts, "gb_s": narrowest, "latency_us": latency_us}
    return (first.model_copy(update=changed),)


def broken_hosts(hosts: Hosts, overrides: Sequence[Override]) -> Iterable[Problem]:
    """Yield what overrides leave in pieces."""
    if not hosts.kinds:
        yield Problem(("overrides",), len(overrides), "given, which leave no host")
    for kind in hosts.kinds:
        nodes, links = in_reach(kind.machine)
        for problem in broken_graph(nodes, links):
            sentence = f"given, which leave {problem.value!r} without a way to others"
            yield Problem(("overrides",), len(overrides), sentence)
            return


def in_reach(machine: Machine) -> tuple[tuple[Node, ...], tuple[Link, ...]]:
    """Return the nodes of a machine that have a link, and all GPUs."""
    ends = {end for link in machine.links for end in link.between}
    kept = tuple(n for n in machine.nodes if n.name in ends or n.kind == "gpu")
    return kept, machine.links
