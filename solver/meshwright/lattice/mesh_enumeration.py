"""Enumerates the meshes of given degrees: every mesh, or one of each price."""

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
"""Keys per fabric whose meshes are cached; a thousand take 4 MiB on three levels."""

MOST_FABRICS = 4

AT_ONCE = 64
"""Keys enumerated at once: more save little time, and take memory."""

Key = tuple[tuple[int, ...], ExpertDegree]
"""Degrees of the axes, and the expert-parallel degree if the model has experts."""


def enumerate_meshes(sizes: Sequence[int], degrees: Ints) -> Meshes:
    """Return every mesh of a cluster with given degrees, (meshes, axes, levels)."""
    return _every_mesh(sizes, degrees[None])[0]


def _every_mesh(sizes: Sequence[int], degrees: Ints) -> tuple[Meshes, Ints]:
    """Return every mesh of any of the degrees, and the index of its degrees."""
    number = np.arange(len(degrees))
    left, meshes = degrees, np.ones((*degrees.shape, 0), dtype=np.int64)
    for size in sizes[:-1]:
        options = factorisations(size)
        row, option = np.nonzero((left[:, None] % options[None] == 0).all(axis=2))
        left, number = left[row] // options[option], number[row]
        meshes = np.concatenate([meshes[row], options[option][:, :, None]], axis=2)
    # The last level takes what is left, if that is its size.
    whole = left.prod(axis=1) == sizes[-1]
    every = np.concatenate([meshes[whole], left[whole][:, :, None]], axis=2)
    return every, number[whole]


def listed(fabric: Fabric, keys: Sequence[Key]) -> list[tuple[Meshes, PathCosts]]:
    """Return one mesh of each price for each key, where GPU orders do not matter.

    Specs on one fabric share the cache, and so do repeated solves of one spec.
    """
    known = _known(fabric)
    # Another thread may clear the cache in the meantime.
    found = {key: meshes for key in keys if (meshes := known.get(key)) is not None}
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
    """Return the cache of one fabric."""
    return {}


def _listed(fabric: Fabric, keys: list[Key]) -> list[tuple[Meshes, PathCosts]]:
    """Return one mesh of each price for each key; all keys have experts, or none."""
    meshes, number = _every_mesh(fabric.sizes, np.array([sizes for sizes, _ in keys]))
    shares = np.array([share or 1 for _, share in keys])
    paths = price_groups(fabric, meshes, None if keys[0][1] is None else shares[number])
    first = first_of_equal([number[:, None], paths.s_per_byte, paths.latency_s])
    edges = np.searchsorted(number[first], np.arange(len(keys) + 1))
    parts = (first[start:end] for start, end in pairwise(edges.tolist()))
    return [(meshes[part], paths.take(part)) for part in parts]


def first_of_equal(columns: Iterable[Ints | np.ndarray]) -> Ints:
    """Return the first of each set of equal rows, in order; columns are (rows, any)."""
    first: dict[bytes, int] = {}
    for index, row in enumerate(np.concatenate(list(columns), axis=1)):
        first.setdefault(row.tobytes(), index)
    return np.array(list(first.values()), dtype=np.int64)
