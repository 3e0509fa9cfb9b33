"""The lattice: every legal skeleton of a job, as numpy columns.

A mesh splits every level of the topology over the axes in every ordered way (the
parallelism matrix of Xie et al. 2022, MLSys). Its product with all other choices can
pass a hundred million rows, so rows are kept coarse: without a mesh, priced at the best
case of each group wherever it may lie. `on_meshes` expands the coarse rows that are
worth it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.coarse import coarse_rows, with_choices
from meshwright.cost.arrays import Bools, Ints, joined, ranges, take
from meshwright.degrees import legal_degrees
from meshwright.job import Job
from meshwright.legality import framework_rules, mesh_rules, plan_rules
from meshwright.meshes import Budget, MeshTable, legal_meshes, price_placed
from meshwright.rule import holding
from meshwright.skeleton import Skeletons
from meshwright.topology.groups import EP, GROUPS
from meshwright.topology.paths import Fabric, Place, free_paths


@dataclass(frozen=True)
class Lattice:
    """Coarse rows, and the meshes on which each can be placed."""

    fabric: Fabric
    rows: Skeletons
    degree: Ints
    """Of each row: the index of its degrees."""
    kin: Ints
    """Of each row: a number shared by those that differ in what they free alone."""
    degrees: Ints
    copies: Ints
    """Of each degree: how many meshes there are before equal prices are merged."""
    table: MeshTable

    @property
    def skeletons(self) -> int:
        """Return the number of legal skeletons, every mesh counted."""
        return int(self.copies[self.degree].sum())

    def take(self, keep: Bools) -> Lattice:
        """Return the lattice with only the coarse rows that are kept."""
        rows = self.rows.take(np.flatnonzero(keep))
        return replace(self, rows=rows, degree=self.degree[keep], kin=self.kin[keep])

    def place(self, rows: Skeletons) -> Place:
        """Return where the ranks of the first row are."""
        return self.table.place(int(rows.mesh[0]))

    def on_meshes(self, index: Ints, budget: Budget) -> tuple[Skeletons, Ints]:
        """Return the coarse rows of `index`, each on every mesh of its degrees.

        With each goes the coarse row that it came from.
        """
        if not len(index):
            nowhere = free_paths(0, len(GROUPS))
            return self.rows.take(index).on_meshes(nowhere, index), index
        asked, number = np.unique(self.degree[index], return_inverse=True)
        placed = [
            self.table.of(degree, self.degrees[degree], budget)
            for degree in asked.tolist()
        ]
        counts = np.array([len(own.meshes) for own in placed], dtype=np.int64)
        first = np.cumsum(counts) - counts
        own = ranges(first[number], counts[number])
        coarse = np.repeat(index, counts[number])
        starts = np.array([own.start for own in placed], dtype=np.int64)
        mesh = own + np.repeat((starts - first)[number], counts[number])
        rows = self.rows.take(coarse)
        if (rows.ep > 1).any():
            meshes = np.concatenate([own.meshes for own in placed])
            orders = [order for one in placed for order in one.orders]
            seated = [orders[row] for row in own.tolist()]
            paths = price_placed(self.fabric, meshes[own], seated, rows.ep)
        else:
            paths = take(joined([own.paths for own in placed]), own)
        return rows.on_meshes(paths, mesh), coarse


def build_lattice(job: Job) -> Lattice:
    """Return every legal skeleton of a job; empty where the rules leave none."""
    degrees, copies = legal_degrees(job)
    if mesh_rules(job.spec, np.empty((0, 0, 0), dtype=np.int64)):
        # What rules on meshes leave of each degree is known by looking at all.
        legal = [len(legal_meshes(job, own)) for own in degrees]
        copies = np.array(legal, dtype=np.int64)
        degrees, copies = degrees[copies > 0], copies[copies > 0]
    rows, degree = coarse_rows(job.spec, degrees)
    # What a framework cannot do plainly, it cannot do in any other way.
    able = np.flatnonzero(holding(framework_rules(job.spec), job.spec, rows))
    rows, own, kin = with_choices(job.spec, rows.take(able))
    degree = degree[able][own]
    legal_rows = np.flatnonzero(holding(plan_rules(job.spec), job.spec, rows))
    rows, degree, kin = rows.take(legal_rows), degree[legal_rows], kin[legal_rows]
    return Lattice(job.fabric, rows, degree, kin, degrees, copies, MeshTable(job))


def in_best_case(job: Job, rows: Skeletons) -> Skeletons:
    """Return coarse rows that pay the least wherever each of their groups may lie."""
    paths = free_paths(len(rows), len(GROUPS))
    for group, degrees in enumerate(rows.group_degrees):
        sizes, number = np.unique(degrees, return_inverse=True)
        least = job.fabric.least(sizes)
        kind = 0 if group == EP else 1
        paths.s_per_byte[:, group] = least.s_per_byte[number, kind]
        paths.latency_s[:, group] = least.latency_s[number, kind]
    return rows.on_meshes(paths, rows.mesh)
