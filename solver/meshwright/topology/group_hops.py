"""Who sends to whom in the groups of a mesh."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray


def mesh_groups(mesh: NDArray[np.int64], axis: int) -> NDArray[np.int64]:
    """Return the ranks of every group of an axis, shape (groups, members).

    `mesh` is (axes, levels). Ranks count through the innermost level first and,
    within a level, through the first axis.
    """
    axes, levels = mesh.shape
    shape = [int(mesh[a, level]) for level in range(levels) for a in range(axes)]
    ranks = np.arange(math.prod(shape)).reshape(shape[::-1])
    of_axis = [ranks.ndim - 1 - (level * axes + axis) for level in range(levels)]
    rest = [dim for dim in range(ranks.ndim) if dim not in of_axis]
    members = int(np.prod(mesh[axis]))
    return ranks.transpose(*rest, *reversed(of_axis)).reshape(-1, members)


def hops_of(
    mesh: NDArray[np.int64], axis: int, is_exchange: bool
) -> list[tuple[int, int]]:
    """Return sender and receiver of every hop in the groups of one axis."""
    return (exchanges if is_exchange else rings)(mesh_groups(mesh, axis))


def rings(groups: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the hops of rings: every member sends to the next one, cyclically."""
    return [
        pair
        for group in groups.tolist()
        for pair in zip(group, [*group[1:], group[0]], strict=True)
    ]


def exchanges(groups: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the hops of all-to-all: every member sends to every other one."""
    return [
        pair for group in groups.tolist() for pair in itertools.permutations(group, 2)
    ]
