"""What `limits.max_link_utilisation` asks of rows: a step slow enough for every link.

A link may be busy for a share of the step. So a step is at least as long as the seconds
of its busiest link over that share, and where even the slowest split is too fast for
that, a row has no plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from meshwright.bounds.integer_costs import TICK_S
from meshwright.bounds.lower import most_ticks, next_tick
from meshwright.bounds.stages import Stages, has_one_split
from meshwright.bounds.upper import real_split
from meshwright.cost.job import Job
from meshwright.cost.links import group_bytes, link_loads
from meshwright.lattice.lattice import Lattice
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.skeletons import Skeletons

NOISE = 1e-9
"""Share of a link's seconds that float arithmetic may be off by; generous."""


@dataclass(frozen=True)
class LinkLimit:
    """For which share of a step links may be busy, and where rows lie."""

    job: Job
    lattice: Lattice
    share: float
    _known: dict[int, Floats] = field(default_factory=dict)
    """What was told of meshes, by their number."""

    def keeps(
        self, stages: Stages, layers: Ints, recomputed: Ints, ticks: Floats
    ) -> Bools:
        """Return which splits, of so many ticks, leave every link idle enough."""
        busy = self._busy_ticks(stages, layers, recomputed).busiest
        return np.asarray(busy.max(axis=1) <= self.share * ticks)

    def least_ticks(self, stages: Stages) -> Floats:
        """Return ticks of the fastest step that may keep the limit; infinite if none.

        Some stage has N layers, no fewer than an even share, and none has more. Its
        links are as busy as those of the least busy stage with N layers, or more; and
        those of every stage as with its fewest layers, or more. Recomputation adds to
        either. The first is concave in N for each link, and the most ticks of such a
        split are linear: what is too busy at both ends of N's range is so between them.
        """
        even = np.full(stages.extra.shape, -(-stages.layers // stages.count))
        is_even = has_one_split(stages.costs.rows)[:, None]
        most = stages.full_cap.max(axis=1, keepdims=True).astype(np.int64)
        fullest = np.where(is_even, even, np.minimum(most, stages.layers))
        at_least = np.where(is_even, even, stages.least)
        alone, some, full = (
            self._busy_ticks(stages, layers, np.zeros_like(layers))
            for layers in (at_least, even, fullest)
        )
        slow, slowest = (
            self.share * (1 + NOISE) * most_ticks(stages, layers[:, 0])[:, None]
            for layers in (even, fullest)
        )
        is_over = (some.idlest > slow) & (full.idlest > slowest)
        is_over |= alone.busiest > slowest
        needed = np.maximum(alone.busiest, some.idlest).max(axis=1) / self.share
        return np.where(is_over.any(axis=1), np.inf, next_tick(needed))

    def _busy_ticks(self, stages: Stages, layers: Ints, recomputed: Ints) -> _Busy:
        """Return for how long links are busy per step with splits, (rows, stages)."""
        rows = stages.costs.rows
        split = real_split(self.job, rows, layers, recomputed)
        passed = group_bytes(self.job, rows, split)
        shape = (len(rows), len(self.job.fabric.link_names))
        busy = _Busy(np.empty(shape), np.empty(shape))
        for mesh in np.unique(rows.mesh).tolist():
            own = np.flatnonzero(rows.mesh == mesh)
            ticks = passed[own] @ self._loads(rows.take(own[:1])) / TICK_S
            busy.busiest[own] = ticks.max(axis=1)
            busy.idlest[own] = ticks.min(axis=1)
        return busy

    def _loads(self, one: Skeletons) -> Floats:
        """Return seconds per byte of each group on each link, for the mesh of a row."""
        mesh = int(one.mesh[0])
        if mesh not in self._known:
            loads = link_loads(self.job, one, self.lattice.place(one))
            self._known[mesh] = loads
        return self._known[mesh]


@dataclass(frozen=True)
class _Busy:
    """Ticks per step that links are busy, (rows, links), over the stages of a row."""

    busiest: Floats
    idlest: Floats
