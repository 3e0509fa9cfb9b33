"""Makes levels of the groups of Slurm: sizes from the file, speeds assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.imports.imported import Imported, unique
from meshwright.imports.slurm.groups import Group, SlurmTopology
from meshwright.imports.switch_tiers import TIERS, most_common_size
from meshwright.imports.text import fail, shown

GB_S = 50.0
"""Estimate: one 400 Gbit/s port per GPU, as in topologies/dgx-h100-pod.yaml."""
LATENCY_US = 2.5
"""Estimate: an uplink of a leaf, as in topologies/dgx-h100.yaml."""


def to_levels(facts: SlurmTopology) -> Imported:
    """Return the levels above a node, innermost first, with what was assumed.

    Raises:
        SpecError: a switch is not defined, or is below itself, or there are too many
            tiers.
    """
    notes = [*facts.notes]
    if facts.kind == "tree":
        sizes = _tree_sizes(facts.name, facts.groups, notes)
    elif facts.kind == "block":
        sizes = _block_sizes(facts.groups, facts.block_sizes, notes)
    else:
        rings = [len(group.nodes) for group in facts.groups.values()]
        sizes = [("ring", most_common_size(rings, "Nodes of a ring", notes))]
        notes.append("A ring of nodes is taken as nodes under one switch.")
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


def _tree_sizes(
    name: str, groups: Mapping[str, Group], notes: list[str]
) -> list[tuple[str, int]]:
    heights = _heights(name, groups)
    children = {child for group in groups.values() for child in group.switches}
    roots = [group for group in groups if group not in children]
    top = max(heights.values())
    if len(roots) > 1:
        notes.append(
            f"{len(roots)} trees have no switch in common; a job stays in one of them, "
            "and one is described."
        )
    sizes = []
    for height in range(top + 1):
        tier = [group for key, group in groups.items() if heights[key] == height]
        fans = [len(group.switches) or len(group.nodes) for group in tier]
        title = TIERS[height]
        sizes.append(
            (title, most_common_size(fans, f"Children of a {title} switch", notes))
        )
    return sizes


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


def _block_sizes(
    groups: Mapping[str, Group], block_sizes: Sequence[int], notes: list[str]
) -> list[tuple[str, int]]:
    """Return the sizes of a block, of aggregates of blocks, and of the cluster."""
    nodes = [len(group.nodes) for group in groups.values() if group.nodes]
    if len(nodes) < len(groups):
        notes.append(f"{len(groups) - len(nodes)} blocks without nodes are left out.")
    size = most_common_size(nodes or [1], "Nodes of a block", notes)
    sizes, joined = [("block", size)], size
    for wanted in block_sizes:
        if wanted > joined and wanted % joined == 0 and len(sizes) < len(TIERS) - 1:
            sizes.append((f"{wanted}-node-group", wanted // joined))
            joined = wanted
        elif wanted != joined:
            notes.append(f"BlockSizes={wanted} is no level above {joined} nodes.")
    rest = len(nodes) * size // joined
    if rest * joined != len(nodes) * size:
        notes.append(f"{len(nodes)} blocks of {size} do not fill {joined} nodes each.")
    return sizes if rest <= 1 else [*sizes, ("cluster", rest)]
