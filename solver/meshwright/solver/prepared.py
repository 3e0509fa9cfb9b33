"""A job with its lattice and its families of rows: the start of many answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.bounds.families import Kin, kin_of
from meshwright.cost.job import Job, make_job
from meshwright.lattice.lattice import Lattice, build_lattice
from meshwright.lattice.mesh_table import MeshTable, has_mesh_rules
from meshwright.plans.columns import Bools
from meshwright.spec.spec import Spec


@dataclass(frozen=True)
class Prepared:
    """What is the same for the best plan of all, of a kind, and of a degree."""

    job: Job
    lattice: Lattice
    kin: Kin
    """The families of the lattice, with what each takes at least."""

    def among(self, rows: Bools) -> Prepared:
        """Return the part that some coarse rows make up, which are whole families.

        Rows of one family have the same degrees.
        """
        part = self.lattice.take(np.flatnonzero(rows))
        return Prepared(self.job, part, self.kin.among(rows))

    def on_better_hardware(self, spec: Spec, speedup: float) -> Prepared | None:
        """Return the same start for a spec with more memory, or with faster links.

        No bound on a family looks at memory. Links that are `speedup` times as fast
        shorten no step by more than that factor: if its compute were that much faster
        too, the whole step would be, and slower compute never helps. So the bounds
        over `speedup` hold. Rules that look at links may allow other skeletons; under
        those the answer is None.
        """
        if has_mesh_rules(self.job):
            return None
        job = make_job(spec, self.job.efficiency)
        lattice = replace(self.lattice, fabric=job.fabric, table=MeshTable(job))
        return Prepared(job, lattice, replace(self.kin, floor=self.kin.floor / speedup))


def prepare(job: Job) -> Prepared:
    """Return a job with its lattice, of which all families are bounded."""
    lattice = build_lattice(job)
    return Prepared(job, lattice, kin_of(job, lattice))
