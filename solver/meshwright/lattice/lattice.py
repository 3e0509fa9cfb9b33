"""The lattice: every legal skeleton of a job, as numpy columns.

A mesh splits every level of the topology over the axes in every ordered way (the
parallelism matrix of Xie et al. 2022, MLSys). Its product with all other choices can
pass a hundred million rows, so rows are kept coarse: without a mesh, priced at the best
case of each group wherever it may lie. `on_meshes` expands the coarse rows that are
worth it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost.job import Job
from meshwright.lattice.degrees import legal_degrees
from meshwright.lattice.mesh_enumeration import Key
from meshwright.lattice.mesh_table import (
    Budget,
    MeshTable,
    has_mesh_rules,
    legal_meshes,
)
from meshwright.lattice.unplaced_choices import (
    Choices,
    coarse_rows,
    whole_chunks,
    with_choices,
)
from meshwright.plans.columns import Bools, Ints, joined, ranges, representatives, take
from meshwright.plans.skeletons import Skeletons
from meshwright.rules.legality import framework_rules, plan_rules
from meshwright.topology.fabric import Fabric, PathCosts, Place, free_paths
from meshwright.topology.groups import EP, GROUPS, TP

FEW = 3_000
"""Rows on meshes that take hardly longer to price than one."""


@dataclass(frozen=True)
class Lattice:
    """Coarse rows, and the meshes on which each can be placed."""

    fabric: Fabric
    choices: Choices
    degrees: Ints
    copies: Ints
    """Of each degree: how many meshes there are before equal prices are merged."""
    table: MeshTable

    def __len__(self) -> int:
        """Return the number of coarse rows."""
        return len(self.choices)

    @property
    def rows(self) -> Skeletons:
        """Return the coarse rows: of many, better take a part first."""
        return self.choices.rows

    @property
    def degree(self) -> Ints:
        """Return of each row the index of its degrees."""
        return self.choices.degree

    @property
    def skeletons(self) -> int:
        """Return the number of legal skeletons, every mesh counted."""
        return int(self.copies[self.degree].sum())

    def take(self, index: Ints) -> Lattice:
        """Return the lattice with only the coarse rows of `index`."""
        return replace(self, choices=self.choices.take(index))

    def place(self, rows: Skeletons) -> Place:
        """Return where the ranks of the first row are."""
        return self.table.place(int(rows.mesh[0]))

    def key(self, degree: int, ep: int) -> Key:
        """Return what the meshes of rows with some degrees and ep depend on."""
        has_experts = self.table.job.spec.model.moe is not None
        return tuple(self.degrees[degree].tolist()), ep if has_experts else None

    def on_meshes(
        self,
        index: Ints,
        budget: Budget,
        keep: Callable[[Skeletons], Bools] | None = None,
    ) -> tuple[Skeletons, Ints]:
        """Return the coarse rows of `index`, each on every mesh of its degrees.

        With each goes which of `index` it came from. `keep` says which to go on with,
        from rows whose other groups pay their least: see `_by_tensor_price`.
        """
        if not len(index):
            nowhere = free_paths(0, len(GROUPS))
            seen = (nowhere,) * len(self.table.job.kinds)
            return self.take(index).rows.on_meshes(nowhere, index, seen), index
        coarse = self.take(index)
        keys = np.stack([coarse.degree, coarse.rows.ep], axis=1)
        asked, number = np.unique(keys, axis=0, return_inverse=True)
        wanted = [(degree, self.key(degree, ep)) for degree, ep in asked.tolist()]
        placed = self.table.of(wanted, budget)
        counts = np.array([len(own.meshes) for own in placed], dtype=np.int64)
        own = ranges((np.cumsum(counts) - counts)[number], counts[number])
        row = np.repeat(np.arange(len(index)), counts[number])
        paths = PathCosts.joined([own.paths for own in placed])
        if keep is not None and len(own) > FEW:
            degree = np.repeat(np.arange(len(placed)), counts)
            kept = _by_tensor_price(coarse.rows, row, paths, degree, own, keep)
            own, row = own[kept], row[kept]
        starts = np.array([own.start for own in placed], dtype=np.int64)
        seen = take(joined([one.kind_paths for one in placed]), own)
        mesh = ranges(starts, counts)[own]
        return coarse.rows.take(row).on_meshes(paths.take(own), mesh, seen), row


def _by_tensor_price(
    rows: Skeletons,
    row: Ints,
    paths: PathCosts,
    degree: Ints,
    own: Ints,
    keep: Callable[[Skeletons], Bools],
) -> Bools:
    """Return which of the given rows on meshes to keep, by what tensor groups pay.

    Those talk the most. `keep` is asked once for each row and price, with all other
    groups at their least on meshes of that price, so that nothing costs more than on
    the mesh itself.
    """
    price = paths.s_per_byte[:, TP] + 1j * paths.latency_s[:, TP]
    prices, number = np.unique(price, return_inverse=True)
    alike = number + len(prices) * degree
    one, inverse = representatives(alike[own] + (alike.max() + 1) * row)
    least = _least_of(paths, alike).take(own[one])
    asked = rows.take(row[one])
    return keep(asked.on_meshes(least, asked.mesh))[inverse]


def build_lattice(job: Job) -> Lattice:
    """Return every legal skeleton of a job; empty where the rules leave none."""
    degrees, copies = legal_degrees(job)
    if has_mesh_rules(job):
        # What rules on meshes leave of each degree is known by looking at all.
        legal = [len(legal_meshes(job, own)) for own in degrees]
        copies = np.array(legal, dtype=np.int64)
        degrees, copies = degrees[copies > 0], copies[copies > 0]
    # What a framework cannot do plainly, it cannot do in any other way.
    layouts = coarse_rows(job.spec, degrees, framework_rules(job.spec))
    chunks = whole_chunks(job.spec, layouts.rows)
    choices = with_choices(job.spec, layouts, plan_rules(job.spec), chunks)
    return Lattice(job.fabric, choices, degrees, copies, MeshTable(job))


def _least_of(paths: PathCosts, alike: Ints) -> PathCosts:
    """Return the least that each group pays on all meshes that are alike."""
    order = np.argsort(alike, kind="stable")
    start = np.flatnonzero(np.diff(alike[order], prepend=-1))
    number = np.empty_like(alike)
    number[order] = np.repeat(np.arange(len(start)), np.diff(start, append=len(order)))
    least = PathCosts(
        np.minimum.reduceat(paths.s_per_byte[order], start),
        np.minimum.reduceat(paths.latency_s[order], start),
    )
    return least.take(number)


def in_best_case(job: Job, rows: Skeletons) -> Skeletons:
    """Return coarse rows that pay the least wherever each of their groups may lie."""
    return rows.on_meshes(least_paths(job.fabric, rows), rows.mesh)


def least_paths(fabric: Fabric, rows: Skeletons) -> PathCosts:
    """Return what every group of each row pays at least, wherever it may lie."""
    paths = free_paths(len(rows), len(GROUPS))
    degrees = np.stack(rows.group_degrees)
    own, number = representatives(degrees.ravel())
    least = fabric.least(degrees.ravel()[own])
    for group, size in enumerate(number.reshape(degrees.shape)):
        kind = 0 if group == EP else 1
        paths.s_per_byte[:, group] = least.s_per_byte[size, kind]
        paths.latency_s[:, group] = least.latency_s[size, kind]
    return paths
