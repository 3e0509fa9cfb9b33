"""Lists the meshes of many degrees at once: every one, or one of each price."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from meshwright.lattice.degrees import factorisations
from meshwright.placement.order_costs import ExpertDegree
from meshwright.plans.columns import Ints
from meshwright.topology.fabric import Fabric, Meshes, PathCosts
from meshwright.topology.groups import price_groups

MOST_LISTED = 10_000
"""Degrees on a fabric whose meshes are kept; a thousand are 4 MiB on three levels."""

MOST_FABRICS = 4

AT_ONCE = 64
"""Degrees whose meshes are listed at once: more save little time, and take memory."""

Key = tuple[tuple[int, ...], ExpertDegree]
"""Degrees of the axes, and among how many GPUs experts are shared out."""


def enumerate_meshes(sizes: Sequence[int], degrees: Ints) -> Meshes:
    """Return every mesh of a cluster with given degrees, (meshes, axes, levels)."""
    return _every_mesh(sizes, degrees[None])[0]


def _every_mesh(sizes: Sequence[int], degrees: Ints) -> tuple[Meshes, Ints]:
    """Return every mesh with any of some degrees, and which of them it has."""
    number = np.arange(len(degrees))
    left, meshes = degrees, np.ones((*degrees.shape, 0), dtype=np.int64)
    for size in sizes[:-1]:
        options = factorisations(size)
        row, option = np.nonzero((left[:, None] % options[None] == 0).all(axis=2))
        left, number = left[row] // options[option], number[row]
        meshes = np.concatenate([meshes[row], options[option][:, :, None]], axis=2)
    # What is left is for the last level, if it has that many.
    whole = left.prod(axis=1) == sizes[-1]
    every = np.concatenate([meshes[whole], left[whole][:, :, None]], axis=2)
    return every, number[whole]


def listed(fabric: Fabric, keys: Sequence[Key]) -> list[tuple[Meshes, PathCosts]]:
    """Return one mesh of each price, where the order of GPUs is no matter.

    Many specs on one fabric, and solves of one spec with changes, share them.
    """
    known = _known(fabric)
    # Other threads may forget what is known in the meantime.
    found = {key: own for key in keys if (own := known.get(key)) is not None}
    new = [key for key in dict.fromkeys(keys) if key not in found]
    for start in range(0, len(new), AT_ONCE):
        part = new[start : start + AT_ONCE]
        found.update(zip(part, _listed(fabric, part), strict=True))
    if len(known) + len(new) > MOST_LISTED:
        known.clear()
    known.update((key, found[key]) for key in new)
    return [found[key] for key in keys]


@lru_cache(maxsize=MOST_FABRICS)
def _known(fabric: Fabric) -> dict[Key, tuple[Meshes, PathCosts]]:
    """Return what was listed on a fabric so far."""
    return {}


def _listed(fabric: Fabric, keys: list[Key]) -> list[tuple[Meshes, PathCosts]]:
    """Return one mesh of each price for each key; either all have experts or none."""
    meshes, number = _every_mesh(fabric.sizes, np.array([own for own, _ in keys]))
    shares = np.array([share or 1 for _, share in keys])
    paths = price_groups(fabric, meshes, None if keys[0][1] is None else shares[number])
    first = first_of_equal([number[:, None], paths.s_per_byte, paths.latency_s])
    edges = np.searchsorted(number[first], np.arange(len(keys) + 1))
    parts = (first[start:end] for start, end in pairwise(edges.tolist()))
    return [(meshes[own], paths.take(own)) for own in parts]


def first_of_equal(columns: Iterable[Ints | np.ndarray]) -> Ints:
    """Return the first row of each kind, in order; columns are (rows, any)."""
    first: dict[bytes, int] = {}
    for index, row in enumerate(np.concatenate(list(columns), axis=1)):
        first.setdefault(row.tobytes(), index)
    return np.array(list(first.values()), dtype=np.int64)
