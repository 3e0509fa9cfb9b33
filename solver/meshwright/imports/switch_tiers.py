"""Cuts a tree of unequal switches into levels of equal groups, over the same hosts.

A level has equal children. Where the switches of a tier have unequally many hosts, its
groups are cut into blocks of the largest size that divides them all: leaves of 32, 8
and 8 hosts become six blocks of 8. Blocks of one leaf are then described as joined by
the tier above, which is never faster than the leaf. The sizes multiply to the hosts
that the file lists, never to more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from meshwright.imports.machine_facts import Pair, components

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
    """What lies below one root: by tier, the groups that switches up to it join."""

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
        pairs: What is joined: hosts with switches, and switches with each other.
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
    """Return what becomes of unequal groups that are cut into blocks, in words."""
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
