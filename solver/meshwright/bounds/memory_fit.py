"""Scaled costs of a job's rows, and which of them have room for the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from meshwright.bounds.integer_costs import (
    Scaled,
    capacity_chunks,
    free,
    with_memory,
    with_time,
)
from meshwright.bounds.stages import (
    Stages,
    even_fits,
    fits,
    on_kinds,
    quick_fits,
    stages_of,
)
from meshwright.cost.job import Job
from meshwright.cost.price import price_memory, price_time
from meshwright.lattice.lattice import Lattice, in_best_case
from meshwright.plans.columns import Bools, Floats, Ints, representatives
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.plan_fields import SCHEDULES


def scale_job(job: Job, rows: Skeletons) -> Scaled:
    """Return the scaled costs of rows, the least where they are not on meshes."""
    return timed(job, scale_room(job, rows))


def timed(job: Job, costs: Scaled, alike: Ints | None = None) -> Scaled:
    """Return costs with the times of their rows, the least where not on meshes.

    Rows that share a number in `alike` differ in schedule and chunks alone, which no
    price depends on.
    """
    rows, which = costs.rows, np.arange(len(costs))
    if alike is not None:
        own, which = representatives(alike)
        rows = rows.take(own)
    if not job.kinds:
        seen = rows if rows.is_placed else in_best_case(job, rows)
        return _folded(job, with_time(costs, price_time(job, seen), which))
    each = [
        price_time(kind, _seen_by(job, k, rows)) for k, kind in enumerate(job.kinds)
    ]
    return Scaled.least([_folded(job, with_time(costs, own, which)) for own in each])


def _seen_by(job: Job, kind: int, rows: Skeletons) -> Skeletons:
    """Return rows with what groups pay between GPUs of one kind, at least."""
    if rows.kind_paths:
        return rows.on_meshes(rows.kind_paths[kind], rows.mesh)
    return in_best_case(job.kinds[kind], rows)


def _folded(job: Job, costs: Scaled) -> Scaled:
    """Return costs with recomputation in every layer, where pins ask for it."""
    if not job.spec.pins.recomputes_all_layers:
        return costs
    none = np.zeros(len(costs), dtype=np.int64)
    return replace(
        costs,
        layer=costs.layer + costs.recompute,
        pace_layer=costs.pace_layer + costs.pace_recompute,
        activations=costs.activations - costs.freed,
        recompute=none,
        pace_recompute=none,
        freed=none,
    )


def scale_room(job: Job, rows: Skeletons) -> Scaled:
    """Return the scaled costs of rows as if nothing took time."""
    return _folded(job, with_memory(free(rows), price_memory(job, rows)))


class Memory:
    """What the coarse rows of a lattice hold, priced once for those that are alike."""

    def __init__(self, job: Job, lattice: Lattice) -> None:
        """Price it."""
        own, self.which = representatives(lattice.choices.alike)
        """Of each coarse row: a number shared by those that are alike."""
        self._job, self._lattice = job, lattice
        self._costs = scale_room(job, lattice.rows.take(own))

    def of(self, index: Ints) -> Scaled:
        """Return the scaled costs of coarse rows as if nothing took time."""
        return self._costs.shared(self._lattice.rows.take(index), self.which[index])

    def fits(self) -> Bools:
        """Return which rows can hold the model, looking at every stage where needed."""
        rows, model = self._lattice.rows, self._job.spec.model
        if self._job.kinds:
            every = self.of(np.arange(len(rows)))
            return by_stages(self._job, every, fits).astype(bool)
        capacities = _capacities(self._job)
        # The quick test does not tell chunks apart, if there are any.
        kind = (self.which * len(SCHEDULES) + rows.schedule) * 2 + (rows.vpp > 1)
        own, inverse = representatives(kind)
        can, cannot = quick_fits(self.of(own), model, *capacities)
        result, is_open = can[inverse], ~(can | cannot)[inverse]
        even = np.flatnonzero(is_open & (rows.vpp > 1))
        result[even] = even_fits(self.of(even), model, *capacities)
        others = np.flatnonzero(is_open & (rows.vpp == 1))
        result[others] = by_stages(self._job, self.of(others), fits)
        return result


def by_stages(
    job: Job, costs: Scaled, measure: Callable[[Stages], Floats | Bools]
) -> Floats:
    """Return a measure of every row, worked out per number of stages."""
    result = np.empty(len(costs))
    for index, stages in stages_by_count(job, costs):
        result[index] = measure(stages)
    return result


def stages_by_count(job: Job, costs: Scaled) -> list[tuple[Ints, Stages]]:
    """Return the rows with each number of stages, and their stages."""
    parts = by_count(costs)
    return [(index, _stages(job, own, int(own.rows.pp[0]))) for index, own in parts]


def by_count(costs: Scaled) -> list[tuple[Ints, Scaled]]:
    """Return the rows with each number of stages, and their costs."""
    counts = costs.rows.pp
    if len(counts) and (counts == counts[0]).all():
        return [(np.arange(len(counts)), costs)]
    order = np.argsort(counts, kind="stable")
    # Columns are copied once; those of each number of stages are a part of them.
    together = costs.take(order)
    _, starts = np.unique(together.rows.pp, return_index=True)
    edges = pairwise([*starts.tolist(), len(order)])
    parts = [slice(start, end) for start, end in edges]
    return [(order[own], together.take(own)) for own in parts]


def _stages(job: Job, costs: Scaled, count: int) -> Stages:
    """Return the stages of rows, each on the kind of GPU that it lies on."""
    if not job.kinds:
        return stages_of(costs, job.spec.model, *_capacities(job))
    # What rows hold is the same for all kinds, before they have times.
    each = costs.kinds or (costs,) * len(job.kinds)
    kinds = [
        stages_of(own, kind.spec.model, *_capacities(kind))
        for kind, own in zip(job.kinds, each, strict=True)
    ]
    return on_kinds(kinds, costs, job.kind_of_stage(count))


def _capacities(job: Job) -> tuple[int, int]:
    """Return the chunks of a GPU, and those of its share of a host."""
    own_gib = job.spec.usable_host_gib / job.spec.cluster.gpus_per_host
    return capacity_chunks(job.spec.usable_gib), capacity_chunks(own_gib)
