"""Hands deployments to CP-SAT as plain whole numbers."""

from __future__ import annotations

import numpy as np

from meshwright.cpsat.problem import (
    LARGEST_HORIZON,
    Problem,
    SkeletonChoice,
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
                layer=int(once[row]),
                recompute=0,
                pace_layer=groups * int(stages.cycle_layer[row]),
                pace_recompute=0,
                sync_layer=0,
                least=int(stages.least[e]),
                most=int(stages.most[row, e]),
                extra=int(extra[row, e]),
                pace_extra=groups * int(stages.cycle_extra[row, e]) - waited,
                sync=0,
                room=int(np.maximum(stages.room[row, e], 0)),
                per_layer=int(stages.per_layer[row]),
                freed=0,
            )
            for e in range(stages.count)
        ),
    )
