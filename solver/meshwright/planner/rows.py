"""The lattice: every legal skeleton of a job, as numpy columns.

A mesh splits every level of the topology over the axes in every ordered way (the
parallelism matrix of Xie et al. 2022, MLSys) that keeps TP groups on as few nodes as
can be. Its product with all other choices can pass a hundred million rows, so skeletons
are kept unplaced: without a mesh, every group of ranks priced on the links that are
best for it alone. `on_meshes` places those that are worth it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.offload import is_never_faster
from meshwright.deadline import NEVER, Deadline
from meshwright.planner.degrees import (
    Key,
    MeshTable,
    OrderSearch,
    has_mesh_rules,
    legal_degrees,
    legal_meshes,
)
from meshwright.planner.unplaced import (
    UnplacedSkeletons,
    list_layouts,
    list_unplaced,
)
from meshwright.plans.columns import (
    Bools,
    Ints,
    joined,
    ranges,
    representatives,
    take,
)
from meshwright.plans.skeletons import Skeletons
from meshwright.rules.legality import framework_rules, plan_rules
from meshwright.spec.plan_fields import KEEPS_ALL
from meshwright.topology.fabric import Fabric, PathCosts, Place, free_paths
from meshwright.topology.groups import GROUPS

FEW = 3_000
"""Placed skeletons that take hardly longer to price than one."""


FEW_DEGREES = 100
"""Degrees whose meshes are listed in no time."""


@dataclass(frozen=True)
class Lattice:
    """Unplaced skeletons, and the meshes on which they can be placed."""

    fabric: Fabric
    unplaced: UnplacedSkeletons
    degrees: Ints
    """(degrees, axes)."""
    copies: Ints
    """Number of meshes of each of the degrees, before equal prices are merged."""
    table: MeshTable

    def __len__(self) -> int:
        """Return the number of unplaced skeletons."""
        return len(self.unplaced)

    @property
    def rows(self) -> Skeletons:
        """Return the columns of the unplaced skeletons; for few, `take` those first."""
        return self.unplaced.rows

    @property
    def degree(self) -> Ints:
        """Return the index of the degrees of each unplaced skeleton."""
        return self.unplaced.degree

    @property
    def legal_degrees(self) -> Ints:
        """Return the index of all degrees that legal skeletons have."""
        has_ways = self.unplaced.legal.counts > 0
        return np.unique(self.unplaced.base_degree[has_ways])

    @property
    def skeletons(self) -> int:
        """Return the number of legal skeletons on every mesh, taken or not."""
        copies = self.copies[self.unplaced.base_degree]
        return int((copies * self.unplaced.legal.counts).sum())

    def among(self, has_degree: Bools) -> Lattice:
        """Return the lattice with only the skeletons of some degrees."""
        return replace(self, unplaced=self.unplaced.among(has_degree))

    def take(self, index: Ints) -> Lattice:
        """Return the lattice with only the unplaced skeletons of `index`."""
        return replace(self, unplaced=self.unplaced.take(index))

    def place(self, rows: Skeletons) -> Place:
        """Return where the ranks of the first placed skeleton are."""
        return self.table.place(int(rows.mesh[0]))

    def key(self, degree: int, ep: int) -> Key:
        """Return the key of the mesh table for an index of degrees and `expert_key`."""
        has_experts = self.table.job.spec.model.moe is not None
        return tuple(self.degrees[degree].tolist()), ep if has_experts else None

    def plainest(self) -> tuple[Skeletons, Ints]:
        """Return the skeleton of each family that frees the least, and all families.

        Where the host updates faster than the GPU, each way to offload is a family.
        """
        unplaced = self.unplaced
        plain, family = unplaced.plainest(unplaced.ways_to_free)
        keeps_all = (plain.offload == KEEPS_ALL).all()
        if not (is_never_faster(self.table.job) and keeps_all):
            plain, family = unplaced.plainest(unplaced.recompute_ways)
        return plain.rows, family

    def on_meshes(
        self,
        index: Ints,
        search: OrderSearch | None,
        keep: Callable[[Skeletons], Bools] | None = None,
    ) -> tuple[Skeletons, Ints]:
        """Return the unplaced skeletons of `index`, each on every mesh of its degrees.

        Comes with which of `index` each placed skeleton is. `keep` says which to go on
        with, given lower bounds on what groups pay. It is asked of the skeleton of each
        family that frees the least memory, and holds for the others.
        """
        if not len(index):
            nowhere = free_paths(0, len(GROUPS))
            kind_paths = (nowhere,) * len(self.table.job.gpu_kinds)
            return self.take(index).rows.on_meshes(nowhere, index, kind_paths), index
        part = self.take(index)
        keys = np.stack([part.degree, part.rows.expert_key], axis=1)
        distinct, which = np.unique(keys, axis=0, return_inverse=True)
        wanted = [(degree, self.key(degree, ep)) for degree, ep in distinct.tolist()]
        priced = self.table.meshes_of(wanted, search)
        counts = np.array([len(group.meshes) for group in priced], dtype=np.int64)
        mesh = ranges((np.cumsum(counts) - counts)[which], counts[which])
        row = np.repeat(np.arange(len(index)), counts[which])
        paths = PathCosts.joined([group.paths for group in priced])
        if keep is not None and len(mesh) > FEW:
            plain, family = part.plainest()
            kept = _keep_on_mesh(plain, family[row], paths, mesh, keep)
            mesh, row = mesh[kept], row[kept]
        starts = np.array([group.start for group in priced], dtype=np.int64)
        kind_paths = take(joined([group.kind_paths for group in priced]), mesh)
        number = ranges(starts, counts)[mesh]
        return part.rows.take(row).on_meshes(paths.take(mesh), number, kind_paths), row


def _keep_on_mesh(
    rows: Skeletons,
    row: Ints,
    paths: PathCosts,
    mesh: Ints,
    keep: Callable[[Skeletons], Bools],
) -> Bools:
    """Return which pairs of row and mesh to keep; `keep` is asked once for each."""
    one, inverse = representatives(mesh * len(rows) + row)
    unplaced = rows.take(row[one])
    placed = unplaced.on_meshes(paths.take(mesh[one]), unplaced.mesh)
    return keep(placed)[inverse]


def build_lattice(
    job: Job,
    is_wanted: Callable[[Skeletons], Bools] | None = None,
    deadline: Deadline = NEVER,
) -> Lattice:
    """Return every legal skeleton of a job; empty where the rules leave none.

    `is_wanted` says which to list: see `list_unplaced`. A lattice that takes no time is
    listed even after the deadline.

    Raises:
        OutOfTime: it is too large to be listed in time.
    """
    degrees, copies = legal_degrees(job, deadline)
    if has_mesh_rules(job):
        # Rules on meshes are tested on every mesh.
        counts = []
        for number, sizes in enumerate(degrees):
            if number > FEW_DEGREES:
                deadline.check()
            counts.append(len(legal_meshes(job, sizes)))
        copies = np.array(counts, dtype=np.int64)
        degrees, copies = degrees[copies > 0], copies[copies > 0]
    # A layout that the framework cannot run plainly, it cannot run otherwise either.
    layouts = list_layouts(job.spec, degrees, framework_rules(job.spec), deadline)
    rules = plan_rules(job.spec)
    unplaced = list_unplaced(job.spec, layouts, rules, is_wanted, deadline)
    return Lattice(job.fabric, unplaced, degrees, copies, MeshTable(job))


def in_best_case(job: Job, rows: Skeletons) -> Skeletons:
    """Return unplaced skeletons with every group on the links that are best for it."""
    return rows.on_meshes(least_paths(job.fabric, rows), rows.mesh)


def least_paths(fabric: Fabric, rows: Skeletons) -> PathCosts:
    """Return the least path costs of every group of each row over all meshes."""
    paths = free_paths(len(rows), len(GROUPS))
    degrees = np.stack(rows.group_degrees)
    one_of_each, number = representatives(degrees.ravel())
    least = fabric.least(degrees.ravel()[one_of_each])
    for group, size in enumerate(number.reshape(degrees.shape)):
        kind = 0 if GROUPS[group] in fabric.exchanging else 1
        paths.s_per_byte[:, group] = least.s_per_byte[size, kind]
        paths.latency_s[:, group] = least.latency_s[size, kind]
    return paths
