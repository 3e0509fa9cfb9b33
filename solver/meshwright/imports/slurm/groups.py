"""Switches, blocks and rings as the files of Slurm name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.imports.machine_facts import components

KINDS = ("tree", "block", "ring", "torus3d")
"""Plugins whose files say how nodes are joined."""


@dataclass(frozen=True)
class Group:
    """A switch, block or ring: nodes, or switches below it."""

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...] = ()
    line: int = 0
    dims: tuple[int, ...] = ()
    """Of a torus: nodes along x, y and z."""


@dataclass(frozen=True)
class SlurmTopology:
    """The switches of a tree, or the blocks, or the rings."""

    name: str
    kind: str
    groups: Mapping[str, Group]
    block_sizes: tuple[int, ...] = ()
    """Nodes in a block and in each aggregate of blocks."""
    notes: tuple[str, ...] = ()


def without_mutual(
    groups: Mapping[str, Group],
) -> tuple[Mapping[str, Group], list[tuple[str, ...]]]:
    """Return groups without switches that list each other, and the sets of those.

    Files of dragonflies list, beside the nodes of a leaf, the leaves that it is joined
    with: neither is below the other.
    """
    listed = {
        name: set(group.switches) for name, group in groups.items() if group.nodes
    }
    mutual = {
        name: {other for other in others if name in listed.get(other, ())} - {name}
        for name, others in listed.items()
    }
    joined = [frozenset((a, b)) for a, others in mutual.items() for b in others]
    plain = {
        name: replace(
            group,
            switches=tuple(s for s in group.switches if s not in mutual.get(name, ())),
        )
        for name, group in groups.items()
    }
    sets = components([name for name, others in mutual.items() if others], joined)
    return plain, sets
