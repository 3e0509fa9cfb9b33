"""Which skeletons of a lattice share a dot of its map."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.bounds.families import Families
from meshwright.bounds.known_fits import KnownFits
from meshwright.plans.columns import Ints, distinct
from meshwright.plans.encoding import to_unplaced_row
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import Skeletons
from meshwright.solver.prepared import Prepared
from meshwright.spec.plan_fields import FIELDS

MOST_DOTS = 2_500
"""Dots that a page still draws at once."""

FREEING = ("recompute", "recompute_modules", "recompute_segment", "offload")
"""Fields in which the skeletons of a family differ."""

SHARED = (
    tuple(own.name for own in FIELDS if own.name not in FREEING),
    ("tp", "pp", "cp", "ep", "dp_replicate", "dp_shard", "zero"),
    ("tp", "pp", "cp", "ep", "zero"),
    ("tp", "pp", "ep", "zero"),
)
"""Fields that the skeletons of a dot share: the first with few enough dots is taken."""


@dataclass(frozen=True)
class DotGroups:
    """Families in groups, each of which is a dot."""

    families: Families
    group: Ints
    """The group of each family."""
    first: Ints
    """A family of each group."""
    rows: Skeletons
    """The first skeleton of each family."""
    shared: tuple[str, ...]

    @classmethod
    def of(cls, prepared: Prepared) -> DotGroups:
        """Return the first grouping with few enough dots, or else the coarsest."""
        lattice, families = prepared.lattice, prepared.families
        if len(lattice) <= MOST_DOTS:
            each = np.arange(len(lattice))
            lower = np.repeat(families.lower, families.count)
            fits = KnownFits(prepared.job, len(each))
            alone = Families(each, np.ones_like(each), lower, each, fits)
            return cls(alone, each, each, lattice.rows, ())
        rows = lattice.take(families.start).rows
        for shared in SHARED:
            first, group = distinct([getattr(rows, name) for name in shared], few=0)
            if len(first) <= MOST_DOTS:
                break
        return cls(families, group, first, rows, shared)

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.first)

    def number_of(self, plan: Plan) -> int | None:
        """Return the group of a plan, if the lattice has it."""
        row = to_unplaced_row(plan)
        names = self.shared or tuple(field.name for field in FIELDS)
        mine = self.rows.take(self.first)
        same = [getattr(mine, name) == getattr(row, name)[0] for name in names]
        found = np.flatnonzero(np.all(same, axis=0))
        return int(found[0]) if len(found) else None

    def of_skeletons(self, index: Ints) -> Ints:
        """Return the groups of some unplaced skeletons."""
        family = np.searchsorted(self.families.start, index, side="right") - 1
        return self.group[family]
