"""Switches, blocks and rings as Slurm's files name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KINDS = ("tree", "block", "ring")
"""Plugins whose files say how nodes are joined."""


@dataclass(frozen=True)
class Group:
    """A switch, block or ring: nodes, or switches below it."""

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...] = ()
    line: int = 0


@dataclass(frozen=True)
class SlurmTopology:
    """The switches of a tree, or the blocks, or the rings."""

    name: str
    kind: str
    groups: Mapping[str, Group]
    block_sizes: tuple[int, ...] = ()
    """Nodes in a block and in each aggregate of blocks."""
    notes: tuple[str, ...] = ()

    @property
    def leaves(self) -> tuple[Group, ...]:
        """Return the switches, blocks or rings that have nodes."""
        return tuple(group for group in self.groups.values() if group.nodes)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return all nodes, each once."""
        every = (node for group in self.groups.values() for node in group.nodes)
        return tuple(dict.fromkeys(every))
