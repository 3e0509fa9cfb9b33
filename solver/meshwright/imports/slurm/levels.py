"""Makes levels of the groups of Slurm: sizes from the file, speeds assumed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshwright.imports.imported import Imported, unique
from meshwright.imports.machine_facts import Pair
from meshwright.imports.slurm.groups import Group, SlurmTopology, without_mutual
from meshwright.imports.switch_tiers import (
    TIERS,
    Tree,
    note_trees,
    note_unequal,
    regular_sizes,
    trees_of,
)
from meshwright.imports.switch_tiers import Group as SwitchGroup
from meshwright.imports.text import fail, shown

GB_S = 50.0
"""Estimate: one 400 Gbit/s port per GPU, as in topologies/dgx-h100-pod.yaml."""
LATENCY_US = 2.5
"""Estimate: an uplink of a leaf, as in topologies/dgx-h100.yaml."""

Sizes = list[tuple[str, int]]
"""Name and size of each level, innermost first."""


def to_levels(facts: SlurmTopology) -> Imported:
    """Return the levels above a node, innermost first, with what was assumed.

    Raises:
        SpecError: a switch is not defined, or is below itself, or there are too many
            tiers.
    """
    notes = [*facts.notes]
    sizes = _SIZES[facts.kind](facts, notes)
    guess = (
        f"Slurm's file has no speeds: every uplink is assumed to have {GB_S:g} GB/s "
        f"per GPU (one 400 Gbit/s port) and {LATENCY_US:g} us."
    )
    levels = [_level(*size) for size in sizes]
    return Imported({"levels": levels}, unique([*notes, guess]), guess, True)


def _level(name: str, size: int) -> dict[str, Any]:
    return {
        "name": name,
        "size": size,
        "gb_s": GB_S,
        "latency_us": LATENCY_US,
        "uplink": "per_gpu",
    }


def _tree_sizes(facts: SlurmTopology, notes: list[str]) -> Sizes:
    groups, mutual = without_mutual(facts.groups)
    heights = _heights(facts.name, groups)
    tiers = [
        [_vertex(key) for key, height in heights.items() if height == tier]
        for tier in range(max(heights.values()) + 1)
    ]
    pairs = [*_pairs(groups)]
    if mutual:
        notes.append(
            "Switches that list each other, as in a dragonfly, are taken as joined by "
            "a level above them."
        )
        joint = _vertex(" joint")
        tiers.append([f"{joint}{i}" for i in range(len(mutual))])
        pairs += [
            frozenset((_vertex(switch), f"{joint}{i}"))
            for i, switches in enumerate(mutual)
            for switch in switches
        ]
    hosts = dict.fromkeys(node for g in facts.groups.values() for node in g.nodes)
    trees = trees_of([*hosts], tiers, pairs)
    if not trees:
        fail(facts.name, 0, "no switch has nodes; expected Nodes= of the leaves")
    roots = _roots(groups)
    names = [_root_of(tree, roots) for tree in trees]
    note_trees(names, trees, notes)
    counts = trees[0].counts
    sizes = regular_sizes(counts)
    note_unequal(dict(zip(TIERS, counts, strict=False)), sizes, notes)
    return [*zip(TIERS, sizes, strict=False)]


def _vertex(switch: str) -> str:
    """Return the name of a switch as a vertex, which no host has."""
    return f" {switch}"


def _pairs(groups: Mapping[str, Group]) -> Iterator[Pair]:
    """Yield what lies directly below what.

    `scontrol show topology` lists the nodes of upper switches too: they lie below the
    switches that are listed beside them.
    """
    for name, group in groups.items():
        below = {*group.switches}
        inner = {node for child in below for node in groups[child].nodes}
        for child in below:
            yield frozenset((_vertex(name), _vertex(child)))
        for node in group.nodes:
            if node not in inner:
                yield frozenset((_vertex(name), node))


def _roots(groups: Mapping[str, Group]) -> set[str]:
    children = {child for group in groups.values() for child in group.switches}
    return {_vertex(name) for name in groups if name not in children}


def _root_of(tree: Tree, roots: set[str]) -> str:
    return next(s for s in tree.tiers[-1][0].switches if s in roots).strip()


def _ring_sizes(facts: SlurmTopology, notes: list[str]) -> Sizes:
    rings = [group for group in facts.groups.values() if group.nodes]
    trees = [Tree(((SwitchGroup(ring.nodes),),)) for ring in rings]
    order = sorted(range(len(rings)), key=lambda i: -trees[i].hosts)
    note_trees([rings[i].name for i in order], [trees[i] for i in order], notes)
    notes.append("A ring of nodes is taken as nodes under one switch.")
    return [("ring", trees[order[0]].hosts)]


def _heights(name: str, groups: Mapping[str, Group]) -> dict[str, int]:
    """Return the height of each switch above the leaves, from leaves to roots."""
    above: dict[str, list[str]] = {}
    waits = {key: len(group.switches) for key, group in groups.items()}
    for key, group in groups.items():
        for child in group.switches:
            if child not in groups:
                fail(name, group.line, f"{shown(child)}: a switch that is not defined")
            above.setdefault(child, []).append(key)
    heights = {key: 0 for key, count in waits.items() if not count}
    ready = list(heights)
    while ready:
        child = ready.pop()
        for key in above.get(child, ()):
            heights[key] = max(heights.get(key, 0), heights[child] + 1)
            waits[key] -= 1
            if not waits[key]:
                ready.append(key)
    stuck = next((key for key, count in waits.items() if count), None)
    if stuck is not None:
        fail(name, groups[stuck].line, f"{shown(stuck)} is below itself")
    if max(heights.values()) >= len(TIERS):
        fail(name, 0, f"expected at most {len(TIERS)} tiers of switches")
    return heights


def _block_sizes(facts: SlurmTopology, notes: list[str]) -> Sizes:
    """Return the sizes of a block, of aggregates of blocks, and of the cluster."""
    blocks = [len(group.nodes) for group in facts.groups.values() if group.nodes]
    if not blocks:
        fail(facts.name, 0, "no block has nodes; expected Nodes= of the blocks")
    if len(blocks) < len(facts.groups):
        left_out = len(facts.groups) - len(blocks)
        notes.append(f"{left_out} blocks without nodes are left out.")
    names, counts = ["block"], [blocks]
    base = min(facts.block_sizes[0], max(blocks)) if facts.block_sizes else 1
    for wanted in facts.block_sizes:
        if wanted > base and wanted % base == 0 and len(names) < len(TIERS) - 1:
            names.append(f"{wanted}-node-group")
            counts.append(_summed(blocks, wanted // base))
        elif wanted != base:
            notes.append(f"BlockSizes={wanted} is no level above {base} nodes.")
    sizes = regular_sizes([*counts, [sum(blocks)]])
    note_unequal(dict(zip(names, counts, strict=True)), sizes, notes)
    return [*zip([*names, "cluster"], sizes, strict=True)]


def _summed(blocks: Sequence[int], each: int) -> list[int]:
    """Return the nodes of so many blocks at a time, in the order of the file."""
    return [sum(blocks[i : i + each]) for i in range(0, len(blocks), each)]


def _torus_sizes(facts: SlurmTopology, notes: list[str]) -> Sizes:
    """Return one level for each dimension of the largest torus."""
    tori = [group for group in facts.groups.values() if group.nodes]
    trees = [Tree(((SwitchGroup(torus.nodes),),)) for torus in tori]
    order = sorted(range(len(tori)), key=lambda i: -trees[i].hosts)
    note_trees([tori[i].name for i in order], [trees[i] for i in order], notes)
    notes.append(
        "A torus is taken as levels of its dimensions: neighbours along the first one "
        "are near, and what wraps around is not drawn."
    )
    largest = tori[order[0]]
    if math.prod(largest.dims) != len(largest.nodes):
        return [("torus", len(largest.nodes))]
    return [*zip(("x-ring", "y-ring", "z-ring"), largest.dims, strict=True)]


_SIZES = {
    "tree": _tree_sizes,
    "block": _block_sizes,
    "ring": _ring_sizes,
    "torus3d": _torus_sizes,
}
"""By kind of file, what reads the size of each level."""
