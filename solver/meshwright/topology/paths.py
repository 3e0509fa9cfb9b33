"""The price of groups on a cluster: what all of a kind pay on the links at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Meshes = NDArray[np.int64]
"""Shape (meshes, axes, levels): the factor of each axis at each level."""


Order = tuple[tuple[int, ...], ...]
"""Of each kind of host, the GPU of each rank; empty where ranks are as listed."""


class Place(NamedTuple):
    """Where the ranks of a plan are."""

    mesh: Meshes
    """(axes, levels)."""
    order: Order = ()


class Fabric(Protocol):
    """A cluster seen by the lattice."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the fan-out of each level, innermost first."""

    @property
    def link_names(self) -> tuple[str, ...]:
        """Return the names of the links, such as 'gpu0 -> nvlink0'."""

    @property
    def link_gb_s(self) -> tuple[float, ...]:
        """Return the bandwidth of each link per direction, 1e9 bytes/s."""

    def __hash__(self) -> int:
        """Return a hash by identity: fabrics are shared, not compared."""

    def placed(self, order: Order) -> Fabric:
        """Return the fabric with ranks on GPUs in another order."""

    def loads(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return seconds per byte on every link, (meshes, axes, links).

        That is the time a link needs for each byte that every member of every group
        of the axis passes to its ring neighbour, all groups at once.
        """

    def exchange_loads(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return the same where every member sends each other one an equal part."""

    def least(self, degrees: NDArray[np.int64]) -> Paths:
        """Return what groups of these sizes pay at least, wherever they lie.

        Column 0 is for exchanges, column 1 for rings.
        """

    def latency_s(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return the longest hop between ring neighbours, (meshes, axes)."""

    def exchange_latency_s(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return the longest hop between any two members, (meshes, axes)."""


@dataclass(frozen=True)
class Paths:
    """Per mesh and group, shape (meshes, groups); 0 where a group has one member."""

    s_per_byte: NDArray[np.float64]
    """Of the most loaded link, see `Fabric.loads`."""
    latency_s: NDArray[np.float64]

    def take(self, index: Any) -> Paths:
        """Return the rows of `index`."""
        return Paths(self.s_per_byte[index], self.latency_s[index])

    @staticmethod
    def joined(tables: Sequence[Paths]) -> Paths:
        """Return the rows of all tables, one after another."""
        return Paths(
            np.concatenate([own.s_per_byte for own in tables]),
            np.concatenate([own.latency_s for own in tables]),
        )


def free_paths(meshes: int, groups: int) -> Paths:
    """Return paths that cost nothing, where prices do not matter yet."""
    # Prices are read group by group: what a group pays lies side by side.
    shape = (meshes, groups)
    return Paths(np.zeros(shape, order="F"), np.zeros(shape, order="F"))
