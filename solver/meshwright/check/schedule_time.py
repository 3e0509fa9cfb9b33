"""The step time of a plan on the task graph of its schedule."""

from __future__ import annotations

import numpy as np

from meshwright.check.scored import Scored
from meshwright.cost.schedule_tasks import longest_path_s
from meshwright.plans.columns import total
from meshwright.plans.plan import Plan
from meshwright.plans.schedules.table import schedule_named

MOST_TASKS = 16_000
"""Most tasks of a schedule's graph that are computed one by one."""


def schedule_seconds(scored: Scored) -> float:
    """Return the step time by the longest path through the schedule's tasks.

    Micro-batches beyond `MOST_TASKS` are added at the rate of a full pipeline.
    """
    times, plan = scored.times, scored.plan
    seconds, forward = total(times.seconds), times.forward_s
    microbatches = _exact_microbatches(plan)
    path = longest_path_s(
        forward.tolist(),
        (seconds - forward - times.weight_s).tolist(),
        times.weight_s.tolist(),
        microbatches,
        int(scored.rows.schedule[0]),
        plan.vpp,
        _chunk_parts(plan),
    )
    rate_s = schedule_named(plan.schedule).rate_s(seconds, forward)
    sync = float(total(times.sync).max())
    return path + (plan.microbatches - microbatches) * rate_s + sync


def _chunk_parts(plan: Plan) -> list[list[float]]:
    """Return how often each chunk's layers are in those of its stage.

    A plan that is no more than a near miss may have chunks without layers.
    """
    layers = np.array(plan.chunk_layers).reshape(plan.vpp, plan.pp).T
    whole, empty = layers.sum(axis=1, keepdims=True), np.full(layers.shape, np.inf)
    parts: list[list[float]] = np.divide(
        whole, layers, out=empty, where=layers > 0
    ).tolist()
    return parts


def _exact_microbatches(plan: Plan) -> int:
    """Return how many micro-batches are computed task by task, in whole rounds."""
    rounds = max(MOST_TASKS // (3 * plan.vpp * plan.pp**2), 2)
    return min(plan.microbatches, rounds * plan.pp)
