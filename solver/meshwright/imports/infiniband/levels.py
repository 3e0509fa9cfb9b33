"""Makes levels of an InfiniBand fabric, with the speeds of its cables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.imports.imported import Imported, unique
from meshwright.imports.infiniband.ib_fabric import IbFabric
from meshwright.imports.machine_facts import Pair, components
from meshwright.imports.switch_tiers import TIERS, most_common_size
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
    levels: list[dict[str, Any]] = []
    children: list[tuple[str, ...]] = [(host,) for host in sorted(hosts)]
    for tier in range(max(tiers.values()) + 1):
        below = {name for name, height in tiers.items() if height <= tier} | hosts
        groups = [g for g in components(sorted(below), _within(cables, below))
                  if hosts & set(g)]  # fmt: skip
        if len(groups) < len(children):
            levels.append(_level(tier, children, groups, cables, tiers, notes))
        children = [*groups]
    if len(children) > 1:
        notes.append(f"{len(children)} parts of the fabric are not joined.")
    return Imported({"levels": levels}, unique(notes), guess)


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


def _within(cables: Cables, names: set[str]) -> list[Pair]:
    return [pair for pair in cables if pair <= names]


def _level(
    tier: int,
    children: list[tuple[str, ...]],
    groups: list[tuple[str, ...]],
    cables: Cables,
    tiers: Mapping[str, int],
    notes: list[str],
) -> dict[str, Any]:
    name = TIERS[tier]
    what = "Hosts below leaves" if tier == 0 else f"Children of {name}"
    parent = {end: i for i, group in enumerate(groups) for end in group}
    sizes = [0] * len(groups)
    for child in children:
        sizes[parent[child[0]]] += 1
    home = {end: i for i, child in enumerate(children) for end in child}
    uplinks = [0.0] * len(children)
    for pair, gbit_s in cables.items():
        inner = {home[end] for end in pair if end in home}
        if len(inner) == 1 and any(tiers.get(end) == tier for end in pair):
            uplinks[inner.pop()] += gbit_s
    gbit_s = most_common_size(
        [round(up) for up in uplinks], f"Gbit/s up to {name}", notes
    )
    if gbit_s <= 0:
        notes.append(f"No speed is printed for cables to {name}; 100 Gbit/s assumed.")
    return {
        "name": name,
        "size": most_common_size(sizes, what, notes),
        "gb_s": (gbit_s or 100) / 8,
        "latency_us": LATENCY_US,
        "uplink": "shared",
    }
