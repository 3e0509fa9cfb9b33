"""Switches, blocks and rings as the files of Slurm name them."""

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
