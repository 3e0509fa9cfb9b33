"""States the choice among deployments as whole numbers for CP-SAT."""

from __future__ import annotations

import numpy as np

from meshwright.cpsat.problem import (
    LARGEST_HORIZON,
    Problem,
    SkeletonChoice,
    StageAmount,
    StageChoice,
)
from meshwright.plans.columns import Ints
from meshwright.serving.deployment import Deployments
from meshwright.serving.job import ServingJob
from meshwright.serving.stage_costs import StageCosts, costs_by_stage_count, pinned


def make_problem(job: ServingJob, rows: Deployments) -> Problem:
    """Return the problem of choosing among rows, in their order."""
    choices = {
        int(row): _choice(stages, at, job.model.n_layers)
        for index, stages in costs_by_stage_count(job, rows)
        for at, row in enumerate(index)
    }
    layers = pinned(job.spec, int(rows.pp[0]))
    return Problem(
        skeletons=tuple(choices[row] for row in range(len(choices))),
        layers=job.model.n_layers,
        horizon=LARGEST_HORIZON,
        pinned_layers=None if layers is None else tuple(layers.tolist()),
    )


def _choice(stages: StageCosts, row: int, layers: int) -> SkeletonChoice:
    """Return a deployment as a skeleton: see `bounds` for its objective.

    Its fill is one pass through all stages; its pace is the m times of the slowest
    stage less the pass of a round, and at least 0.
    """
    groups = int(stages.rows.microbatches[row])
    cycle = int(stages.cycle_ticks(layers)[row])
    fill_layer: Ints = stages.once_layer + stages.cycle_layer
    fill_extra: Ints = stages.once_extra + stages.cycle_extra
    return SkeletonChoice(
        stages=tuple(
            StageChoice(
                fill=StageAmount(int(fill_extra[row, e]), int(fill_layer[row])),
                pace=StageAmount(
                    fixed=groups * int(stages.cycle_extra[row, e]) - cycle,
                    per_layer=groups * int(stages.cycle_layer[row]),
                ),
                sync=StageAmount(0, 0),
                memory=StageAmount(0, int(stages.per_layer[row])),
                capacity=int(np.maximum(stages.room[row, e], 0)),
                fewest_layers=int(stages.least[e]),
                most_layers=int(stages.most[row, e]),
            )
            for e in range(stages.count)
        ),
    )
