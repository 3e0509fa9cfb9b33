"""States a candidate as a pipeline, in whole numbers."""

from __future__ import annotations

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.links import busy_seconds
from meshwright.frameworks.base.framework import ALL_LAYERS, ONE_NUMBER
from meshwright.planner.candidates import Candidates
from meshwright.planner.integer_costs import ticks_up
from meshwright.planner.lower_bounds import slowest_split_ticks
from meshwright.planner.memory_fit import stages_by_pp
from meshwright.planner.pipeline import (
    LARGEST_HORIZON,
    Pairs,
    Pipeline,
    PipelineStage,
    StageAmount,
)
from meshwright.planner.rows import Lattice
from meshwright.planner.rule_clauses import with_user_rules
from meshwright.planner.stages import Stages, recomputes
from meshwright.planner.upper_bounds import (
    construct_pinned_split,
    with_all_recomputed,
)


def constructed_split(job: Job, candidates: Candidates, row: int) -> Pairs:
    """Return the layers and recomputed layers of a candidate's constructed split."""
    one = candidates.take(np.array([row]))
    ((_, stages),) = stages_by_pp(job, one.costs)
    layers, recomputed = construct_pinned_split(job.spec.pins, stages)
    return tuple(zip(layers[0].tolist(), recomputed[0].tolist(), strict=True))


def make_pipeline(job: Job, lattice: Lattice, one: Candidates) -> Pipeline:
    """Return a candidate that stands alone as a pipeline, in whole numbers."""
    ((_, stages),) = stages_by_pp(job, one.costs)
    most = float(slowest_split_ticks(stages, stages.layers)[0])
    has_plan = bool(np.isfinite(one.upper[0]))
    row, costs, pins = 0, stages.costs, job.spec.pins
    placed = costs.rows.take(np.array([row]))
    uses = _link_uses(job, lattice, stages, row)
    scope = int(costs.recompute_scope[row])
    pipeline = Pipeline(
        layers=job.spec.model.n_layers,
        horizon=int(min(most, LARGEST_HORIZON)),
        pinned_layers=pins.layers,
        pinned_recompute=pins.stage_recompute,
        link_share=job.spec.limits.max_link_utilisation,
        hint=constructed_split(job, one, 0) if has_plan else None,
        is_recomputing=bool(recomputes(costs)[row]),
        recomputes_all=scope == ALL_LAYERS,
        same_in_chunks=int(costs.rows.vpp[row]) if scope == ONE_NUMBER else 0,
        stages=tuple(
            PipelineStage(
                fill=StageAmount(
                    fixed=int(stages.extra[row, e]),
                    per_layer=int(stages.layer[row, e]),
                    per_recomputed=int(stages.recompute[row, e]),
                ),
                pace=StageAmount(
                    fixed=int(stages.pace_extra[row, e]),
                    per_layer=int(stages.pace_layer[row, e]),
                    per_recomputed=int(stages.pace_recompute[row, e]),
                ),
                sync=StageAmount(
                    fixed=int(stages.sync[row, e]),
                    per_layer=int(stages.sync_layer[row, e]),
                ),
                memory=StageAmount(
                    fixed=0,
                    per_layer=int(stages.per_layer[row, e]),
                    per_recomputed=-int(stages.freed[row, e]),
                ),
                capacity=int(stages.layer_capacity[row, e]),
                fewest_layers=int(stages.least[row, e]),
                most_layers=int(stages.full_cap[row, e]),
                links=uses[e] if uses else (),
            )
            for e in range(stages.count)
        ),
    )
    return with_user_rules(pipeline, job, lattice, placed)


def _link_uses(
    job: Job, lattice: Lattice, stages: Stages, row: int
) -> list[tuple[StageAmount, ...]]:
    """Return how each stage loads each link, where links are limited.

    The load is affine in layers and recomputed layers, so that three points give it.
    """
    if job.spec.limits.max_link_utilisation is None:
        return []
    rows = stages.costs.rows.take(np.full(3, row))
    points = np.repeat(np.array([[0, 0], [1, 0], [0, 1]])[..., None], stages.count, 2)
    split = with_all_recomputed(job, rows, points[:, 0], points[:, 1])
    base, *more = busy_seconds(job, rows, split, lattice.place(rows))
    per_layer, per_recomputed = (point - base for point in more)
    return [
        tuple(
            StageAmount(
                *(
                    ticks_up(float(use[e, link]))
                    for use in (base, per_layer, per_recomputed)
                )
            )
            for link in np.flatnonzero(base[e] + per_layer[e] > 0)
        )
        for e in range(stages.count)
    ]
