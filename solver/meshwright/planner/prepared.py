"""A job with its lattice and the bounds of its families, shared by many answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.cost.job import Job, make_job
from meshwright.deadline import NEVER, Deadline
from meshwright.planner.families import Families, find_families
from meshwright.planner.integer_costs import TICK_S
from meshwright.planner.mesh_table import MeshTable, has_mesh_rules
from meshwright.planner.rows import Lattice, build_lattice
from meshwright.plans.columns import Bools
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.spec import Spec, with_risk


@dataclass(frozen=True)
class Prepared:
    """A job, its lattice and the bounds of its families, shared by several solves."""

    job: Job
    lattice: Lattice
    families: Families
    """The families of the lattice, each with its lower bound."""

    def among(self, has_degree: Bools) -> Prepared:
        """Return the part of the lattice that has some of the degrees."""
        families = self.families.among(self.lattice, has_degree)
        return Prepared(self.job, self.lattice.among(has_degree), families)

    @cached_property
    def where_state_fits(self) -> Prepared:
        """Return the same without families that do not fit with their state alone.

        A search of the others finds the same plans; it counts fewer skeletons that do
        not fit in memory.
        """
        families = self.families.where_state_fits(self.lattice)
        return replace(self, families=families)

    def at_risk(self, oom_risk: float) -> Prepared:
        """Return the same where plans may run out of memory with another probability.

        Neither skeletons nor bounds of families depend on the usable memory.
        """
        job = replace(self.job, spec=with_risk(self.job.spec, oom_risk))
        return replace(self, job=job) if self._covers(job) else prepare(job)

    def against(self, known_s: float) -> Prepared:
        """Return the same, its families that may beat a step time bounded again.

        That is worth it after `on_better_hardware`, whose bounds are loose.
        """
        most = known_s / TICK_S
        families = self.families.bounded_again(self.job, self.lattice, most)
        return replace(self, families=families)

    def on_better_hardware(self, spec: Spec, speedup: float) -> Prepared | None:
        """Return the same for a spec with more memory, or with faster links.

        No bound of a family depends on memory. Links that are `speedup` times as fast
        shorten no step by more than that factor: if compute were that much faster too,
        the whole step would be, and slower compute never helps. So the bounds divided
        by `speedup` hold. Rules on meshes may then allow other skeletons; with a
        rule on meshes the answer is None, and so it is for more memory than prepared.
        """
        job = make_job(spec, self.job.efficiency)
        if has_mesh_rules(self.job) or not self._covers(job):
            return None
        lattice = replace(self.lattice, fabric=job.fabric, table=MeshTable(job))
        families = replace(self.families, lower=self.families.lower / speedup)
        return Prepared(job, lattice, families)

    def _covers(self, job: Job) -> bool:
        return self.families.fits.covers(job)


def prepare(
    job: Job,
    most_gib: float = 0.0,
    *,
    where_state_fits: bool = False,
    is_wanted: Callable[[Skeletons], Bools] | None = None,
    deadline: Deadline = NEVER,
) -> Prepared:
    """Return a job with its lattice and the bounds of its families.

    `most_gib` is the most usable memory with which the same will be asked again. See
    `Prepared.where_state_fits` for leaving families out at once, and `build_lattice`
    for leaving skeletons out.

    Raises:
        OutOfTime: the lattice is too large to be listed in time.
    """
    lattice = build_lattice(job, is_wanted, deadline)
    families = find_families(
        job, lattice, where_state_fits=where_state_fits, deadline=deadline
    )
    if most_gib > job.spec.usable_gib:
        limits = job.spec.limits.model_copy(update={"memory_gib": most_gib})
        roomy = replace(job, spec=job.spec.model_copy(update={"limits": limits}))
        families = families.fitting_on(roomy)
    return Prepared(job, lattice, families)
