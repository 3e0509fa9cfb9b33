"""The lattice: every legal skeleton of a job, as numpy columns.

A mesh splits every level of the topology over the axes in every ordered way (the
parallelism matrix of Xie et al. 2022, MLSys). Its product with micro-batch, ZeRO
stage, recompute mode, sequence parallelism and schedule can pass ten million rows,
so rows are kept coarse: without a mesh, priced at the best case of each axis over the
meshes of their degrees. `on_meshes` expands the coarse rows that are worth it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.cost.arrays import Bools, Ints
from meshwright.job import Job
from meshwright.legality import degree_rules, mesh_rules, plan_rules
from meshwright.rule import holding
from meshwright.skeleton import (
    DP_REPLICATE,
    DP_SHARD,
    PP,
    TP,
    Skeletons,
)
from meshwright.spec.divisors import divisors
from meshwright.spec.pins import AXES, RECOMPUTE_MODES, SCHEDULES
from meshwright.spec.spec import Spec
from meshwright.topology.paths import Meshes, Paths, free_paths, price_meshes


@dataclass(frozen=True)
class Lattice:
    """Coarse rows, and the meshes on which each can be placed."""

    rows: Skeletons
    degree: Ints
    """Of each row: the index of its degrees, into `start` and `stop`."""
    meshes: Meshes
    paths: Paths
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
        rows, degree = self.rows.take(np.flatnonzero(keep)), self.degree[keep]
        return Lattice(
            rows, degree, self.meshes, self.paths, self.start, self.stop, self.copies
        )

    def mesh_counts(self, index: Ints) -> Ints:
        """Return on how many meshes each coarse row of `index` can be placed."""
        degree = self.degree[index]
        return self.stop[degree] - self.start[degree]

    def on_meshes(self, index: Ints) -> Skeletons:
        """Return the coarse rows of `index`, each on every mesh of its degrees."""
        repeats = self.mesh_counts(index)
        mesh = _ranges(self.start[self.degree[index]], repeats)
        placed = self.rows.take(np.repeat(index, repeats))
        return placed.on_meshes(self.paths.take(mesh), mesh)


def build_lattice(job: Job) -> Lattice:
    """Return every legal skeleton of a job; empty where the rules leave none."""
    meshes, paths = _legal_meshes(job)
    degree, degrees = _number_degrees(meshes)
    copies = np.bincount(degree, minlength=len(degrees)).astype(np.int64)
    first = _first_of_equal_price(degree, paths)
    meshes, paths, degree = meshes[first], paths.take(first), degree[first]
    start = np.searchsorted(degree, np.arange(len(degrees)))
    stop = np.searchsorted(degree, np.arange(len(degrees)), side="right")
    rows, row_degree = coarse_rows(job.spec, degrees, _best_case(paths, start))
    legal = np.flatnonzero(holding(plan_rules(job.spec), job.spec, rows))
    rows, row_degree = rows.take(legal), row_degree[legal]
    return Lattice(rows, row_degree, meshes, paths, start, stop, copies)


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
    degrees = meshes.prod(axis=2)
    none = np.zeros(len(meshes), dtype=np.int64)
    return Skeletons(
        tp=degrees[:, TP],
        dp_shard=degrees[:, DP_SHARD],
        dp_replicate=degrees[:, DP_REPLICATE],
        pp=degrees[:, PP],
        micro_batch=none,
        microbatches=none,
        zero=none,
        recompute=none,
        sequence_parallel=none.astype(bool),
        schedule=none,
        paths=paths,
        mesh=np.arange(len(meshes)),
    )


def unpriced_rows(meshes: Meshes) -> Skeletons:
    """Return rows with the degrees of meshes, where links do not matter yet."""
    return degree_rows(meshes, free_paths(len(meshes), len(AXES)))


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
    paths = price_meshes(job.fabric, meshes)
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


def _first_of_equal_price(degree: Ints, paths: Paths) -> Ints:
    """Return the first mesh of each degree and price, ordered by degree."""
    code = degree
    for column in (*paths.s_per_byte.T, *paths.latency_s.T):
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
        np.zeros((len(start), len(AXES)), dtype=np.int64),
    )


def coarse_rows(spec: Spec, degrees: Ints, best: Paths) -> tuple[Skeletons, Ints]:
    """Return the degrees times all other choices, and the degree of each row."""
    per_rank = spec.training.global_batch // (
        degrees[:, DP_SHARD] * degrees[:, DP_REPLICATE]
    )
    batches = [divisors(int(sequences)) for sequences in per_rank]
    degree = np.repeat(np.arange(len(degrees)), [len(b) for b in batches])
    micro_batch = np.fromiter(itertools.chain.from_iterable(batches), dtype=np.int64)
    options = np.array(list(_options()), dtype=np.int64)
    row = np.repeat(np.arange(len(degree)), len(options))
    option = np.tile(options, (len(degree), 1))
    zero, recompute, sp, schedule = option.T
    number = degree[row]
    is_sharded = degrees[number, DP_SHARD] > 1
    keep = (is_sharded == (zero > 0)) & ((sp == 0) | (degrees[number, TP] > 1))
    keep &= (schedule == 0) | (degrees[number, PP] > 1)
    row, number = row[keep], number[keep]
    return (
        Skeletons(
            tp=degrees[number, TP],
            dp_shard=degrees[number, DP_SHARD],
            dp_replicate=degrees[number, DP_REPLICATE],
            pp=degrees[number, PP],
            micro_batch=micro_batch[row],
            microbatches=per_rank[number] // micro_batch[row],
            zero=zero[keep],
            recompute=recompute[keep],
            sequence_parallel=sp[keep].astype(bool),
            schedule=schedule[keep],
            paths=best.take(number),
            mesh=np.full(len(row), -1),
        ),
        number,
    )


def _options() -> itertools.product[tuple[int, ...]]:
    """Return all choices of ZeRO stage, recompute, sequence parallelism, schedule."""
    modes, schedules = range(len(RECOMPUTE_MODES)), range(len(SCHEDULES))
    return itertools.product(range(4), modes, range(2), schedules)


def _ranges(start: Ints, length: Ints) -> Ints:
    """Return start, start + 1, ... for `length` entries, one range after another."""
    offset = np.arange(int(length.sum())) - np.repeat(
        np.cumsum(length) - length, length
    )
    return np.repeat(start, length) + offset
