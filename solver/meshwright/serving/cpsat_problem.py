"""States a deployment as a pipeline, in whole numbers."""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Ints
from meshwright.search.pipeline import Pipeline, PipelineStage, StageAmount
from meshwright.serving.deployment import Deployments
from meshwright.serving.job import ServingJob
from meshwright.serving.stage_costs import costs_by_stage_count, pinned


def make_pipeline(job: ServingJob, one: Deployments) -> Pipeline:
    """Return a deployment that stands alone as a pipeline: see `bounds`.

    Its fill is one pass through all stages; its pace is the m times of the slowest
    stage less the pass of a round, and at least 0.
    """
    ((_, stages),) = costs_by_stage_count(job, one)
    layers, groups = job.model.n_layers, int(one.microbatches[0])
    cycle = int(stages.cycle_ticks(layers)[0])
    fill_layer: Ints = stages.once_layer + stages.cycle_layer
    fill_extra: Ints = stages.once_extra + stages.cycle_extra
    held = pinned(job.spec, stages.count)
    return Pipeline(
        layers=layers,
        pinned_layers=None if held is None else tuple(held.tolist()),
        stages=tuple(
            PipelineStage(
                fill=StageAmount(int(fill_extra[0, e]), int(fill_layer[0])),
                pace=StageAmount(
                    fixed=groups * int(stages.cycle_extra[0, e]) - cycle,
                    per_layer=groups * int(stages.cycle_layer[0]),
                ),
                sync=StageAmount(0, 0),
                memory=StageAmount(0, int(stages.per_layer[0])),
                capacity=int(np.maximum(stages.room[0, e], 0)),
                fewest_layers=int(stages.least[e]),
                most_layers=int(stages.most[0, e]),
            )
            for e in range(stages.count)
        ),
    )
