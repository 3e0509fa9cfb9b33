"""Makes levels of an InfiniBand fabric, with the speeds of its cables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.imports.imported import Imported, unique
from meshwright.imports.infiniband.ib_fabric import IbFabric
from meshwright.imports.machine_facts import Pair
from meshwright.imports.switch_tiers import (
    TIERS,
    Group,
    Tree,
    most_common_rate,
    narrowed,
    note_trees,
    note_unequal,
    regular_sizes,
    trees_of,
)
from meshwright.imports.text import fail

LATENCY_US = 2.5
"""Estimate: an uplink of a leaf, as in topologies/dgx-h100.yaml."""

Cables = Mapping[Pair, float]
"""Gbit/s between two hosts or switches, summed over their cables."""


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
            levels.append(_level(name, size, rate * block))
        block *= size
    return levels


def _level(name: str, size: int, gbit_s: float) -> dict[str, Any]:
    return {
        "name": name,
        "size": size,
        "gb_s": gbit_s / 8,
        "latency_us": LATENCY_US,
        "uplink": "shared",
    }


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
