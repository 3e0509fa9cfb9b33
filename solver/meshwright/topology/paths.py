"""The price of a mesh: what the concurrent groups of each axis pay on the links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Meshes = NDArray[np.int64]
"""Shape (meshes, axes, levels): the factor of each axis at each level."""


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

    def loads(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return seconds per byte on every link, (meshes, axes, links).

        That is the time a link needs for each byte that every member of every group
        of the axis passes to its ring neighbour, all groups at once.
        """

    def latency_s(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return the longest hop between ring neighbours, (meshes, axes)."""


@dataclass(frozen=True)
class Paths:
    """Per mesh and axis, shape (meshes, axes); 0 where the axis has one member."""

    s_per_byte: NDArray[np.float64]
    """Of the most loaded link, see `Fabric.loads`."""
    latency_s: NDArray[np.float64]
    link: NDArray[np.int64]
    """The most loaded link, among the fabric's `link_names`."""

    def take(self, index: NDArray[np.int64]) -> Paths:
        """Return the rows of `index`."""
        return Paths(self.s_per_byte[index], self.latency_s[index], self.link[index])


def price_meshes(fabric: Fabric, meshes: Meshes) -> Paths:
    """Return what rings of each axis pay on each mesh."""
    loads = fabric.loads(meshes)
    return Paths(loads.max(axis=2), fabric.latency_s(meshes), loads.argmax(axis=2))


def free_paths(meshes: int, axes: int) -> Paths:
    """Return paths that cost nothing, where prices do not matter yet."""
    zeros = np.zeros((meshes, axes))
    return Paths(zeros, zeros, zeros.astype(np.int64))
