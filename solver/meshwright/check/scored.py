"""A plan as columns of length one, with its prices: what the checker adds up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.links import link_seconds
from meshwright.cost.price import (
    Prices,
    StageTimes,
    price,
    stage_times,
    step_parts,
    times_on_kinds,
)
from meshwright.plans.columns import Floats
from meshwright.plans.encoding import to_row, to_split
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import Skeletons
from meshwright.plans.split import Split
from meshwright.topology.fabric import Place
from meshwright.topology.groups import price_groups_by_gpu_kind


@dataclass(frozen=True)
class Scored:
    """A plan as columns of length one, with its prices and split."""

    job: Job
    plan: Plan
    place: Place
    prices: Prices
    split: Split
    times: StageTimes

    @property
    def rows(self) -> Skeletons:
        """Return the plan as one row."""
        return self.prices.rows

    @cached_property
    def link_s(self) -> Floats:
        """Return how long each group keeps each link busy, (stages, groups, links)."""
        return link_seconds(self.job, self.rows, self.split, self.place)

    @property
    def busy_s(self) -> Floats:
        """Return the same for all groups together, (stages, links)."""
        return np.asarray(self.link_s.sum(axis=1))


def rows_by_kind(
    job: Job, rows: Skeletons, place: Place
) -> list[tuple[Job, Skeletons]]:
    """Return, for each kind of GPU that stages lie on, the job and the row on it."""
    if not job.gpu_kinds:
        return [(job, rows)]
    fabrics = [kind.fabric for kind in job.gpu_kinds]
    by_kind = price_groups_by_gpu_kind(fabrics, place.mesh[None], rows.paths, rows.ep)
    placed = (rows.on_meshes(paths, rows.mesh) for paths in by_kind)
    return list(zip(job.gpu_kinds, placed, strict=True))


def score(job: Job, plan: Plan) -> Scored:
    """Return a plan with all that its price is added up from."""
    rows, place = to_row(job.fabric, plan)
    prices, split = price(job, rows), to_split(plan)
    if not job.gpu_kinds:
        times = stage_times(rows, prices.time, split)
        return Scored(job, plan, place, prices, split, times)
    by_kind = [
        stage_times(row, price(kind, row).time, split)
        for kind, row in rows_by_kind(job, rows, place)
    ]
    times = times_on_kinds(by_kind, job.gpu_kind_of_stage(plan.pp))
    return Scored(job, plan, place, prices, split, times)


def seconds_by_part(scored: Scored) -> dict[str, float]:
    """Return the step time of a scored plan by part."""
    return step_parts(scored.rows, scored.times)
