"""The hosts of a cluster by kind: how many, and what they lack."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from meshwright.spec.cluster import Cluster
from meshwright.spec.hosts import Alike, split_levels
from meshwright.spec.links import Level, Link, some
from meshwright.spec.machine import Machine, joined, machine_of_levels
from meshwright.spec.topology import MAX_NODES


class Kind(NamedTuple):
    """Hosts that are alike."""

    name: str
    """Of the first of them."""
    where: str
    """The names of all."""
    size: int
    """How many they are."""
    gpus: int
    nics: int
    machine: Machine
    """Empty where its levels have more GPUs than an explicit graph may have."""
    lacks: tuple[str, ...]
    """What is down or slow, compared with the topology."""


def host_kinds(cluster: Cluster) -> tuple[Kind, ...]:
    """Return the kinds of hosts that plans may use; of a tree, the only one.

    Where hosts cut a level of a tree, the machine is its innermost level.
    """
    if cluster.is_tree:
        return (_tree_kind(cluster),)
    return tuple(_graph_kind(cluster, alike) for alike in cluster.hosts.kinds)


def _tree_kind(cluster: Cluster) -> Kind:
    levels, gpus = cluster.levels, cluster.gpus_per_host
    split = split_levels(levels, gpus)
    inside, outer = split or (levels[:1], levels[1:])
    nics, above, machine = 0, None, Machine((), ())
    if outer:
        above = outer[0]
        nics = gpus if above.uplink == "per_gpu" else int(split is not None)
    if math.prod(level.size for level in inside) <= MAX_NODES:
        machine = joined(machine_of_levels(inside, above), above)
    size = cluster.gpus // gpus
    return Kind("node0", spans(range(size)), size, gpus, nics, machine, ())


def _graph_kind(cluster: Cluster, alike: Alike) -> Kind:
    hosts, machine = alike.hosts, alike.machine
    return Kind(
        f"node{hosts[0]}",
        spans(hosts),
        len(hosts),
        machine.gpus,
        machine.nics,
        machine,
        tuple(_lacks(cluster, alike)),
    )


def levels_above(cluster: Cluster) -> tuple[Uplinks, ...]:
    """Return the levels that are not inside a graph: all of a tree."""
    if cluster.is_tree:
        return tuple(uplinks(cluster.levels))
    first = cluster.hosts.kinds[0].machine
    return tuple(uplinks(cluster.hosts.outer, first.gpus, first.nics))


class Uplinks(NamedTuple):
    """A level, the GPUs below each child of its switches, and the uplinks of it."""

    level: Level
    gpus: int
    rails: int


def uplinks(levels: Iterable[Level], gpus: int = 1, nics: int = 1) -> Iterator[Uplinks]:
    """Yield levels, innermost first, above children with so many GPUs and NICs."""
    for level in levels:
        yield Uplinks(level, gpus, level.uplinks(gpus, nics))
        gpus, nics = gpus * level.size, nics * level.size


def _lacks(cluster: Cluster, alike: Alike) -> Iterator[str]:
    """Yield what hosts lack of what the topology says, in its order."""
    rated, _ = cluster.rated_host
    names = {node.name for node in alike.machine.nodes}
    gone = [node.name for node in rated.nodes if node.name not in names]
    own = [each for each in cluster.overrides if each.holds_for(alike.hosts[0])]
    down = {each.node for each in own}
    for name in gone:
        yield f"{name} is {'down' if name in down else 'not used'}"
    rates = {link.between: link.gb_s for link in alike.machine.links}
    for link in rated.links:
        if not set(link.between) & set(gone):
            yield from _slower(link, rates.get(link.between, 0.0))


def _slower(link: Link, gb_s: float) -> Iterator[str]:
    if gb_s != link.gb_s:
        state = f"has {gb_s:g} of {link.gb_s:g} GB/s" if gb_s else "is down"
        yield f"{' - '.join(link.between)} {state}"


def left_out(cluster: Cluster) -> tuple[int, ...]:
    """Return the numbers of the hosts that no plan may use."""
    return () if cluster.is_tree else cluster.hosts.left_out


def why_left_out(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield the names of hosts that are left out, and why they are."""
    out = left_out(cluster)
    whole = {own.host for own in cluster.overrides if own.is_whole_host}
    down = [host for host in out if host in whole]
    poorer = [host for host in out if host not in whole]
    if down:
        yield spans(down), "down"
    if poorer:
        yield spans(poorer), "fewer GPUs than the others"


def spans(hosts: Iterable[int]) -> str:
    """Return the names of hosts, neighbours together: node0 to node5, node7."""
    found: list[list[int]] = []
    for host in hosts:
        if found and host == found[-1][1] + 1:
            found[-1][1] = host
        else:
            found.append([host, host])
    return some([_span(first, last) for first, last in found])


def _span(first: int, last: int) -> str:
    if first == last:
        return f"node{first}"
    return f"node{first}{',' if last == first + 1 else ' to'} node{last}"
