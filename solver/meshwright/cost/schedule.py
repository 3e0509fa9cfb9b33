"""Pipeline schedules: chunks in flight, and the time of a whole step in closed form.

`cost.tasks` walks the same schedules task by task.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.schedules.table import by_schedule


def in_flight(schedule: Ints, microbatches: Ints, vpp: Ints, stages: int) -> Ints:
    """Return the chunks of activations that stages hold at most, (rows, stages)."""
    after = np.arange(stages - 1, -1, -1)
    columns = (schedule[:, None], microbatches[:, None], vpp[:, None])
    return in_flight_before(after, *columns, stages)


def in_flight_before(
    after: Ints, schedule: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
) -> Ints:
    """Return the same of the stage before the last `after` ones, columns of any shape.

    A chunk is one micro-batch's activations of 1/vpp of the stage's layers.
    """
    columns = (after, microbatches, vpp, stages)
    held: Ints = by_schedule(schedule, lambda own: own.in_flight(*columns))
    return held


def heads_in_flight(schedule: Ints, microbatches: Ints) -> Ints:
    """Return the micro-batches whose logits the last stage holds, (rows,)."""
    heads: Ints = by_schedule(schedule, lambda own: own.heads_in_flight(microbatches))
    return heads


def most_in_flight(schedule: Ints, microbatches: Ints, vpp: Ints, stages: Ints) -> Ints:
    """Return micro-batches that no stage passes, its chunks counted together."""
    columns = (microbatches, vpp, stages)
    most: Ints = by_schedule(schedule, lambda own: own.most_in_flight(*columns))
    return most


def sends(stages: int, vpp: Ints | int) -> tuple[Ints, Ints]:
    """Return how often each stage sends a micro-batch on, and its gradients back.

    Once per chunk, but the last stage has nobody for its last chunk, and the first
    nobody for the gradients of its first. Shape (stages,), or (rows, stages) where
    `vpp` is (rows, 1).
    """
    index = np.arange(stages)
    chunks = (vpp if stages > 1 else 1) * np.ones(stages, dtype=np.int64)
    return chunks - (index == stages - 1), chunks - (index == 0)


@dataclass(frozen=True)
class StepWeights:
    """How often a stage's seconds count in the step, (rows,).

    With tau = F + B + W, the seconds of a stage's forward, backward for inputs and
    backward for weights of one micro-batch, the step takes

        sum of (fill_share tau - deferred W) + max of (pace_count tau + deferred W)

    over the stages: both linear in the stage's layers and recomputed layers.
    """

    fill_share: Floats
    pace_count: Floats
    deferred: Floats

    def fill_s(self, tau_s: Floats, weight_s: Floats) -> Floats:
        """Return what a stage adds to the fill, (rows,) or (rows, stages)."""
        return self.fill_share * tau_s - self.deferred * weight_s

    def pace_s(self, tau_s: Floats, weight_s: Floats) -> Floats:
        """Return what a stage adds to the pace."""
        return self.pace_count * tau_s + self.deferred * weight_s


def step_weights(
    schedule: Ints, microbatches: Ints, vpp: Ints, stages: Ints
) -> StepWeights:
    """Return how often a stage's seconds count in the step.

    Even stages take m tau and a bubble of (p - 1) tau / v, less what is deferred: see
    each schedule of `schedules/`.
    """
    fill_share = by_schedule(schedule, lambda own: own.fill_share(vpp, stages))
    return StepWeights(
        fill_share=fill_share,
        pace_count=microbatches - fill_share,
        deferred=by_schedule(schedule, lambda own: own.deferred(microbatches, stages)),
    )


def closed_form_s(
    tau_s: Floats, weight_s: Floats, schedule: Ints, microbatches: Ints, vpp: Ints
) -> Floats:
    """Return the pipeline's seconds from those of each stage, (rows, stages).

    `tau_s` is all of a stage's seconds per micro-batch, `weight_s` those of its weight
    gradients, which ZB-H1 puts off. Exact for even stages; under ZB-H1 where W is not
    above F or B, else below, since no more than min(F, B, W) fills a bubble. Where
    stages are uneven but alike in their shares of F, B and W, exact for GPipe, an upper
    bound for 1F1B and, with m >= p, ZB-H1, and for all but rare cases interleaved.
    Where shares differ, `tasks.longest_path_s` can be on either side; GPipe's is never
    below, for its slowest forward and its slowest backward count on their own.
    Measured gaps: tests/cost/test_schedule.py: GAPS.
    """
    stages = np.array(tau_s.shape[1])
    column = (schedule[:, None], microbatches[:, None], vpp[:, None])
    weights = step_weights(*column, stages)
    fill = weights.fill_s(tau_s, weight_s).sum(axis=1)
    result: Floats = fill + weights.pace_s(tau_s, weight_s).max(axis=1)
    return result
