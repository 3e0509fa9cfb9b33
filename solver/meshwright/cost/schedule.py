"""Pipeline schedules: chunks in flight, and the time of a whole step in closed form.

`cost.tasks` walks the same schedules task by task.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.plans.skeletons import GPIPE, ZERO_BUBBLE_H1


def in_flight(schedule: Ints, microbatches: Ints, vpp: Ints, stages: int) -> Ints:
    """Return the chunks of activations that stages hold at most, (rows, stages)."""
    after = np.arange(stages - 1, -1, -1)
    columns = (schedule[:, None], microbatches[:, None], vpp[:, None])
    return in_flight_before(after, *columns, stages)


def in_flight_before(
    after: Ints, schedule: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
) -> Ints:
    """Return the same of the stage before the last `after` ones, columns of any shape.

    A chunk is one micro-batch's activations of 1/vpp of the stage's layers, held from
    its forward until its weight gradients. Stage e of p holds

    - 1F1B: min(m, p - e) (Narayanan et al. 2021, section 2.2);
    - GPipe: all m (Huang et al. 2019, section 2.3);
    - interleaved: a warm-up of 2 (p - e - 1) + (v - 1) p and one more, of m v chunks
      in all (Megatron-LM schedules.py: get_pp_rank_microbatches);
    - ZB-H1: min(m, p) on every stage, e of them between backward and weight gradients
      (Qi et al. 2023, section 2.3, at an M_W as large as M_B). The peak over all
      stages is that of 1F1B, the peak of every stage but the first is not.
    """
    warm = np.where(vpp > 1, 2 * after + (vpp - 1) * stages, after)
    warm = np.where(schedule == ZERO_BUBBLE_H1, stages - 1, warm)
    held: Ints = np.minimum(microbatches * vpp, warm + 1)
    return np.where(schedule == GPIPE, microbatches, held)


def heads_in_flight(schedule: Ints, microbatches: Ints) -> Ints:
    """Return the micro-batches whose logits the last stage holds, (rows,).

    Only GPipe runs all forwards before the first backward.
    """
    return np.where(schedule == GPIPE, microbatches, 1)


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

    Even stages take m tau and a bubble of

    - 1F1B and GPipe: (p - 1) tau (Narayanan et al. 2021, section 2.2);
    - interleaved: (p - 1) tau / v, where p divides m (there, section 2.2.2);
    - ZB-H1: (p - 1) (F + B - W) (Qi et al. 2023, table 2), where m >= p. The last
      stage puts off W of its first min(m, p) - 1 micro-batches and no more, so that
      with fewer micro-batches it is (p - 1) (F + B) - (m - 1) W.
    """
    fill_share = 1 / vpp
    put_off = (np.minimum(microbatches, stages) - 1) / np.maximum(stages - 1, 1)
    return StepWeights(
        fill_share=fill_share,
        pace_count=microbatches - fill_share,
        deferred=np.where(schedule == ZERO_BUBBLE_H1, 1 + put_off, 0.0),
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
