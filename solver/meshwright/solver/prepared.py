"""A job with its lattice and its families of rows: the start of many answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.bounds.families import Kin, kin_of
from meshwright.cost.job import Job
from meshwright.lattice.lattice import Lattice, build_lattice
from meshwright.plans.columns import Bools


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


def prepare(job: Job) -> Prepared:
    """Return a job with its lattice, of which all families are bounded."""
    lattice = build_lattice(job)
    return Prepared(job, lattice, kin_of(job, lattice))
