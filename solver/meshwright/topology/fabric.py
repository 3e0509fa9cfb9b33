"""What a cluster must answer: the cost of its links to the groups of a mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.topology.exchange import EVEN, Exchange

Meshes = NDArray[np.int64]
"""Shape (meshes, axes, levels): the factor of each axis at each level."""

HostOrders = tuple[tuple[int, ...], ...]
"""For each kind of host, the GPU of each rank; empty where ranks follow the list."""


class Place(NamedTuple):
    """The mesh of a plan, and the GPUs of its ranks inside hosts."""

    mesh: Meshes
    """(axes, levels)."""
    order: HostOrders = ()


class Fabric(Protocol):
    """A cluster as plans see it: the loads and latencies of its links."""

    @property
    def exchanging(self) -> Mapping[str, Exchange]:
        """Return the groups that send all to all, not round rings, by name."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the fan-out of each level, innermost first."""

    @property
    def link_names(self) -> tuple[str, ...]:
        """Return the names of the links, such as 'gpu0 -> nvlink0'."""

    @property
    def link_gb_s(self) -> tuple[float, ...]:
        """Return the bandwidth of each link per direction, 1e9 bytes/s."""

    @property
    def seats(self) -> tuple[int, ...]:
        """Return the ranks of each kind of host on which their order matters."""

    def __hash__(self) -> int:
        """Return a hash by identity: fabrics are shared, never compared."""

    def placed(self, order: HostOrders) -> Fabric:
        """Return the fabric with the ranks of each host on GPUs in another order."""

    def loads(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return seconds per byte on every link, (meshes, axes, links).

        The time for which a link is busy per byte that every member of every group of
        the axis passes to its ring neighbour, while all groups do so at once.
        """

    def exchange_loads(
        self, meshes: Meshes, axis: int, exchange: Exchange = EVEN
    ) -> NDArray[np.float64]:
        """Return the same for an all-to-all of one axis, (meshes, links).

        The time is per byte that a member sends to all others together.
        """

    def least(self, degrees: NDArray[np.int64]) -> PathCosts:
        """Return a lower bound on the costs of groups of these sizes, on any mesh.

        Column 0 is for all-to-all, column 1 for rings.
        """

    def latency_s(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return the mean hop between ring neighbours, (meshes, axes)."""

    def longest_s(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return the longest hop between any two members, (meshes, axes)."""


@dataclass(frozen=True)
class PathCosts:
    """The cost of the paths that groups send on, shape (meshes, groups).

    Groups of one member pay nothing.
    """

    s_per_byte: NDArray[np.float64]
    """Seconds per byte on the most loaded link: see `Fabric.loads`."""
    latency_s: NDArray[np.float64]
    """Latency of a hop, seconds: the mean one of a ring, else the longest."""

    def take(self, index: Any) -> PathCosts:
        """Return the rows of `index`."""
        return PathCosts(self.s_per_byte[index], self.latency_s[index])

    @staticmethod
    def joined(tables: Sequence[PathCosts]) -> PathCosts:
        """Return the rows of all tables, one after another."""
        return PathCosts(
            np.concatenate([table.s_per_byte for table in tables]),
            np.concatenate([table.latency_s for table in tables]),
        )


def free_paths(meshes: int, groups: int) -> PathCosts:
    """Return costs of zero, for meshes that are not priced yet."""
    # Costs are read group by group, so the columns are contiguous.
    shape = (meshes, groups)
    return PathCosts(np.zeros(shape, order="F"), np.zeros(shape, order="F"))
