"""Meshes of given degrees: listed, priced and tested when they are first asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwright.cost.arrays import Floats, Ints, take
from meshwright.degrees import factorisations, mesh_rows
from meshwright.job import Job
from meshwright.legality import mesh_rules
from meshwright.rule import holding
from meshwright.topology.groups import price_groups
from meshwright.topology.paths import Meshes, Paths


def enumerate_meshes(sizes: Sequence[int], degrees: Ints) -> Meshes:
    """Return every mesh of a cluster with given degrees, (meshes, axes, levels)."""
    left, meshes = degrees[None, :], np.ones((1, len(degrees), 0), dtype=np.int64)
    for size in sizes[:-1]:
        options = factorisations(size)
        options = options[(degrees % options == 0).all(axis=1)]
        row, option = np.nonzero((left[:, None] % options[None] == 0).all(axis=2))
        left = left[row] // options[option]
        meshes = np.concatenate([meshes[row], options[option][:, :, None]], axis=2)
    # What is left is for the last level, if it has that many.
    whole = left.prod(axis=1) == sizes[-1]
    return np.concatenate([meshes[whole], left[whole][:, :, None]], axis=2)


class Placed(NamedTuple):
    """The meshes of some degrees, one of each price."""

    start: int
    """Number of the first one; the others follow."""
    meshes: Meshes
    paths: Paths
    """What groups pay on each mesh, but for those of experts."""


class MeshTable:
    """The meshes that the rules allow, of the degrees that were asked for so far."""

    def __init__(self, job: Job) -> None:
        """Start with no meshes."""
        self._job = job
        self._known: dict[tuple[int, ...], Placed] = {}
        self._in_order: list[Placed] = []

    def of(self, degrees: Ints) -> Placed:
        """Return the meshes of some degrees."""
        key = tuple(degrees.tolist())
        if key not in self._known:
            last = self._in_order[-1] if self._in_order else None
            start = last.start + len(last.meshes) if last else 0
            meshes, paths = legal_meshes(self._job, degrees)
            first = _first_of_equal_price(meshes, paths, bool(self._job.spec.model.moe))
            self._known[key] = Placed(start, meshes[first], take(paths, first))
            self._in_order.append(self._known[key])
        return self._known[key]

    def mesh(self, number: int) -> Ints:
        """Return a mesh by its number, (axes, levels)."""
        starts = [placed.start for placed in self._in_order]
        placed = self._in_order[bisect_right(starts, number) - 1]
        result: Ints = placed.meshes[number - placed.start]
        return result


def legal_meshes(job: Job, degrees: Ints) -> tuple[Meshes, Paths]:
    """Return the meshes of some degrees that the rules allow, and their prices."""
    meshes = enumerate_meshes(job.fabric.sizes, degrees)
    ep = np.ones(len(meshes), dtype=np.int64) if job.spec.model.moe else None
    paths = price_groups(job.fabric, meshes, ep)
    rules = mesh_rules(job.spec, meshes)
    legal = np.flatnonzero(holding(rules, job.spec, mesh_rows(meshes, paths)))
    return meshes[legal], take(paths, legal)


def _first_of_equal_price(meshes: Meshes, paths: Paths, has_experts: bool) -> Ints:
    """Return the first mesh of each price, in order.

    Where experts lie depends on what tp, cp and data parallelism leave them.
    """
    columns: list[Floats | Ints] = [paths.s_per_byte, paths.latency_s]
    if has_experts:
        columns += [meshes[:, :3].prod(axis=1), meshes[:, 3]]
    first: dict[bytes, int] = {}
    for number, row in enumerate(np.concatenate(columns, axis=1)):
        first.setdefault(row.tobytes(), number)
    return np.array(list(first.values()), dtype=np.int64)
