"""Pipeline schedules: chunks in flight, and the time of a whole step in closed form.

`cost.schedule_tasks` computes the same schedules on their task graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.plans.schedules import by_schedule


def in_flight(schedule: Ints, microbatches: Ints, vpp: Ints, stages: int) -> Ints:
    """Return the most chunks of activations that stages hold, (rows, stages)."""
    after = np.arange(stages - 1, -1, -1)
    columns = (schedule[:, None], microbatches[:, None], vpp[:, None])
    return in_flight_before(after, *columns, stages)


def in_flight_before(
    after: Ints, schedule: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
) -> Ints:
    """Return the same for stages with `after` stages behind them, in any shape.

    A chunk is one micro-batch's activations of 1/vpp of the stage's layers.
    """
    columns = (after, microbatches, vpp, stages)
    held: Ints = by_schedule(schedule, lambda rules: rules.in_flight(*columns))
    return held


def heads_in_flight(schedule: Ints, microbatches: Ints) -> Ints:
    """Return the micro-batches whose logits the last stage holds, (rows,)."""
    heads: Ints = by_schedule(
        schedule, lambda rules: rules.heads_in_flight(microbatches)
    )
    return heads


def most_in_flight(schedule: Ints, microbatches: Ints, vpp: Ints, stages: Ints) -> Ints:
    """Return the most micro-batches in flight on any stage, all chunks together."""
    columns = (microbatches, vpp, stages)
    most: Ints = by_schedule(schedule, lambda rules: rules.most_in_flight(*columns))
    return most


def sends(stages: int, vpp: Ints | int) -> tuple[Ints, Ints]:
    """Return how often each stage sends a micro-batch on, and its gradients back.

    Each does so once per chunk, except that the last stage sends nothing after its last
    chunk and the first stage sends no gradients of its first. The shape is (stages,),
    or (rows, stages) if `vpp` is (rows, 1).
    """
    index = np.arange(stages)
    chunks = (vpp if stages > 1 else 1) * np.ones(stages, dtype=np.int64)
    return chunks - (index == stages - 1), chunks - (index == 0)


@dataclass(frozen=True)
class StepWeights:
    """How often the seconds of a stage count in the step, (rows,).

    With tau = F + B + W, the seconds of a stage's forward, backward for inputs and
    backward for weights of one micro-batch, the step takes

        sum of (fill_share tau - deferred W) + max of (pace_count tau + deferred W)

    over the stages: both linear in the stage's layers and recomputed layers.
    """

    fill_share: Floats
    pace_count: Floats
    deferred: Floats

    def fill_s(self, tau_s: Floats, weight_s: Floats) -> Floats:
        """Return the seconds that a stage adds to the fill."""
        return self.fill_share * tau_s - self.deferred * weight_s

    def pace_s(self, tau_s: Floats, weight_s: Floats) -> Floats:
        """Return the seconds that a stage adds to the pace."""
        return self.pace_count * tau_s + self.deferred * weight_s


def step_weights(
    schedule: Ints, microbatches: Ints, vpp: Ints, stages: Ints
) -> StepWeights:
    """Return how often the seconds of a stage count in the step.

    Even stages take m tau and a bubble of (p - 1) tau / v, less what is deferred; see
    the schedules in `plans/schedules/`.
    """
    columns = (microbatches, vpp, stages)
    fill_share = by_schedule(schedule, lambda rules: rules.fill_share(*columns))
    return StepWeights(
        fill_share=fill_share,
        pace_count=microbatches - fill_share,
        deferred=by_schedule(
            schedule, lambda rules: rules.deferred(microbatches, stages)
        ),
    )


def closed_form_s(
    tau_s: Floats, weight_s: Floats, schedule: Ints, microbatches: Ints, vpp: Ints
) -> Floats:
    """Return the pipeline's seconds from those of each stage, (rows, stages).

    `tau_s` is all seconds of a stage per micro-batch, `weight_s` those of its weight
    gradients, which ZB-H1 defers. Against the longest path of the task graph the result

    - is exact for even stages; under ZB-H1 only if W is not above F or B, else it is
      too low, since no more than min(F, B, W) fills a bubble;
    - for uneven stages with equal shares of F, B and W is exact for GPipe, and an upper
      bound for 1F1B, for ZB-H1 with m >= p, and, rare cases aside, for interleaved;
    - for stages with different shares can be on either side; for GPipe it is never too
      high, since the slowest forward and the slowest backward count separately.

    `GAPS` in tests/cost/test_schedule.py holds the measured gaps.
    """
    stages = np.array(tau_s.shape[1])
    column = (schedule[:, None], microbatches[:, None], vpp[:, None])
    weights = step_weights(*column, stages)
    fill = weights.fill_s(tau_s, weight_s).sum(axis=1)
    result: Floats = fill + weights.pace_s(tau_s, weight_s).max(axis=1)
    return result
