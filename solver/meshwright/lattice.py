"""The lattice: every legal skeleton of a job, as numpy columns.

A mesh splits every level of the topology over the axes in every ordered way (the
parallelism matrix of Xie et al. 2022, MLSys). Its product with all other choices can
pass ten million rows, so rows are kept coarse: without a mesh, priced at the best case
of each axis over the meshes of their degrees. `on_meshes` expands the coarse rows that
are worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.coarse import coarse_rows
from meshwright.cost.arrays import Bools, Ints
from meshwright.job import Job
from meshwright.legality import degree_rules, mesh_rules, plan_rules
from meshwright.rule import holding
from meshwright.skeleton import Skeletons
from meshwright.spec.divisors import divisors
from meshwright.spec.pins import AXES
from meshwright.topology.groups import (
    EP,
    EXPERT_REPLICATE,
    EXPERT_SHARD,
    GROUPS,
    price_groups,
)
from meshwright.topology.paths import Fabric, Meshes, Paths, free_paths


@dataclass(frozen=True)
class Lattice:
    """Coarse rows, and the meshes on which each can be placed."""

    fabric: Fabric
    rows: Skeletons
    degree: Ints
    """Of each row: the index of its degrees, into `start` and `stop`."""
    meshes: Meshes
    paths: Paths
    """What groups pay on each mesh, but for those of experts."""
    start: Ints
    stop: Ints
    """The meshes of each degree: rows start to stop of `meshes` and `paths`."""
    copies: Ints
    """Of each degree: how many meshes there are before equal prices are merged."""

    @property
    def skeletons(self) -> int:
        """Return the number of legal skeletons, every mesh counted."""
        return int(self.copies[self.degree].sum())

    def take(self, keep: Bools) -> Lattice:
        """Return the lattice with only the coarse rows that are kept."""
        rows = self.rows.take(np.flatnonzero(keep))
        return replace(self, rows=rows, degree=self.degree[keep])

    def mesh_counts(self, index: Ints) -> Ints:
        """Return on how many meshes each coarse row of `index` can be placed."""
        degree = self.degree[index]
        return self.stop[degree] - self.start[degree]

    def on_meshes(self, index: Ints) -> Skeletons:
        """Return the coarse rows of `index`, each on every mesh of its degrees."""
        repeats = self.mesh_counts(index)
        mesh = _ranges(self.start[self.degree[index]], repeats)
        placed = self.rows.take(np.repeat(index, repeats))
        paths = self.paths.take(mesh)
        if (placed.ep > 1).any():
            paths = price_groups(self.fabric, self.meshes[mesh], placed.ep)
        return placed.on_meshes(paths, mesh)


def build_lattice(job: Job) -> Lattice:
    """Return every legal skeleton of a job; empty where the rules leave none."""
    meshes, paths = _legal_meshes(job)
    degree, degrees = _number_degrees(meshes)
    copies = np.bincount(degree, minlength=len(degrees)).astype(np.int64)
    first = _first_of_equal_price(degree, meshes, paths, bool(job.spec.model.moe))
    meshes, paths, degree = meshes[first], paths.take(first), degree[first]
    start = np.searchsorted(degree, np.arange(len(degrees)))
    stop = np.searchsorted(degree, np.arange(len(degrees)), side="right")
    rows, row_degree = coarse_rows(job.spec, degrees)
    legal = np.flatnonzero(holding(plan_rules(job.spec), job.spec, rows))
    rows, row_degree = rows.take(legal), row_degree[legal]
    best = _best_case(paths, start).take(row_degree)
    rows = rows.on_meshes(_with_experts(job, rows, best), rows.mesh)
    return Lattice(job.fabric, rows, row_degree, meshes, paths, start, stop, copies)


def enumerate_meshes(
    sizes: Sequence[int], keep: Callable[[Meshes], Bools] | None = None
) -> Meshes:
    """Return every mesh of a cluster, (meshes, axes, levels).

    Every level's fan-out is factorised over the axes in every ordered way; the
    innermost axes take the largest factors first, so that low indices are the meshes
    that people would write. `keep` is asked after each level, about the levels so far.
    """
    meshes = np.ones((1, len(AXES), 0), dtype=np.int64)
    for size in sizes:
        options = _factorisations(size, len(AXES))
        grown = np.repeat(meshes, len(options), axis=0)
        added = np.tile(options, (len(meshes), 1))[:, :, None]
        meshes = np.concatenate([grown, added], axis=2)
        if keep is not None:
            meshes = meshes[keep(meshes)]
    return meshes


def _factorisations(size: int, parts: int) -> Ints:
    """Return the ordered factorisations of a number, (options, parts)."""
    if parts == 1:
        return np.array([[size]], dtype=np.int64)
    rows = [
        [divisor, *rest]
        for divisor in reversed(divisors(size))
        for rest in _factorisations(size // divisor, parts - 1).tolist()
    ]
    return np.array(rows, dtype=np.int64)


def degree_rows(meshes: Meshes, paths: Paths) -> Skeletons:
    """Return rows with the degrees of meshes, for rules on degrees and meshes."""
    degrees = dict(zip(AXES, meshes.prod(axis=2).T, strict=True))
    none = np.zeros(len(meshes), dtype=np.int64)
    return Skeletons(
        **degrees,
        ep=none + 1,
        vpp=none + 1,
        micro_batch=none,
        microbatches=none,
        zero=none,
        recompute=none,
        sequence_parallel=none.astype(bool),
        schedule=none,
        offload=none,
        precision=none,
        paths=paths,
        mesh=np.arange(len(meshes)),
    )


def unpriced_rows(meshes: Meshes) -> Skeletons:
    """Return rows with the degrees of meshes, where links do not matter yet."""
    return degree_rows(meshes, free_paths(len(meshes), len(GROUPS)))


def promising_meshes(job: Job) -> Meshes:
    """Return the meshes of a cluster without those that no further level can mend."""
    spec = job.spec
    inherited = [rule for rule in degree_rules(spec) if rule.is_inherited]
    return enumerate_meshes(
        job.fabric.sizes, lambda grown: holding(inherited, spec, unpriced_rows(grown))
    )


def _legal_meshes(job: Job) -> tuple[Meshes, Paths]:
    """Return the meshes that the rules allow; only legal degrees are priced."""
    spec, meshes = job.spec, promising_meshes(job)
    meshes = meshes[holding(degree_rules(spec), spec, unpriced_rows(meshes))]
    ep = np.ones(len(meshes), dtype=np.int64) if spec.model.moe else None
    paths = price_groups(job.fabric, meshes, ep)
    on_mesh = mesh_rules(spec, meshes)
    legal = np.flatnonzero(holding(on_mesh, spec, degree_rows(meshes, paths)))
    return meshes[legal], paths.take(legal)


def _number_degrees(meshes: Meshes) -> tuple[Ints, Ints]:
    """Return for each mesh the index of its degrees, and the distinct degrees."""
    degrees = meshes.prod(axis=2)
    bases = degrees.max(axis=0, initial=1) + 1
    code = np.ravel_multi_index(tuple(degrees.T), tuple(bases))
    _, first, number = np.unique(code, return_index=True, return_inverse=True)
    return number, degrees[first]


def _first_of_equal_price(
    degree: Ints, meshes: Meshes, paths: Paths, has_experts: bool
) -> Ints:
    """Return the first mesh of each degree and price, ordered by degree.

    Where experts lie depends on what tp, cp and data parallelism leave them.
    """
    columns = [*paths.s_per_byte.T, *paths.latency_s.T]
    if has_experts:
        columns += [*meshes[:, :3].prod(axis=1).T, *meshes[:, 3].T]
    code = degree
    for column in columns:
        if len(column) and (column == column[0]).all():
            continue
        values, number = np.unique(column, return_inverse=True)
        code = code * len(values) + number
    _, first = np.unique(code, return_index=True)
    return first[np.lexsort((first, degree[first]))]


def _best_case(paths: Paths, start: Ints) -> Paths:
    """Return, per degree, the least that each axis pays over the degree's meshes."""
    if not len(start):
        return paths
    return Paths(
        np.minimum.reduceat(paths.s_per_byte, start),
        np.minimum.reduceat(paths.latency_s, start),
    )


def _with_experts(job: Job, rows: Skeletons, best: Paths) -> Paths:
    """Return the best cases with those of expert groups, wherever they may lie."""
    if job.spec.model.moe is None:
        return best
    columns = {
        EP: (rows.ep, 0),
        EXPERT_SHARD: (rows.expert_shards, 1),
        EXPERT_REPLICATE: (rows.expert_copies // rows.expert_shards, 1),
    }
    for column, (degrees, kind) in columns.items():
        sizes, number = np.unique(degrees, return_inverse=True)
        least = job.fabric.least(sizes)
        best.s_per_byte[:, column] = least.s_per_byte[number, kind]
        best.latency_s[:, column] = least.latency_s[number, kind]
    return best


def _ranges(start: Ints, length: Ints) -> Ints:
    """Return start, start + 1, ... for `length` entries, one range after another."""
    offset = np.arange(int(length.sum())) - np.repeat(
        np.cumsum(length) - length, length
    )
    return np.repeat(start, length) + offset
