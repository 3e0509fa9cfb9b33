"""Hands deployments to CP-SAT as plain whole numbers."""

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
from meshwright.serving.stages import Stages, pinned, stages_by_count


def make_problem(job: ServingJob, rows: Deployments) -> Problem:
    """Return the problem of choosing among rows, in their order."""
    choices = {
        int(own): _choice(stages, row, job.model.n_layers)
        for index, stages in stages_by_count(job, rows)
        for row, own in enumerate(index)
    }
    layers = pinned(job.spec, int(rows.pp[0]))
    return Problem(
        skeletons=tuple(choices[row] for row in range(len(choices))),
        layers=job.model.n_layers,
        horizon=LARGEST_HORIZON,
        pinned_layers=None if layers is None else tuple(layers.tolist()),
    )


def _choice(stages: Stages, row: int, layers: int) -> SkeletonChoice:
    """Return a row as a sum over stages and a longest pace.

    A round takes W ticks once through all stages, however layers are split, or m times
    its slowest stage: the pace is what that is longer than W, and never below 0.
    """
    groups = int(stages.rows.microbatches[row])
    waited = int(stages.waited(layers)[row])
    once: Ints = stages.before_layer + stages.cycle_layer
    extra: Ints = stages.before_extra + stages.cycle_extra
    return SkeletonChoice(
        stages=tuple(
            StageChoice(
                fill=StageAmount(int(extra[row, e]), int(once[row])),
                pace=StageAmount(
                    fixed=groups * int(stages.cycle_extra[row, e]) - waited,
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
