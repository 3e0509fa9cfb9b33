"""ZB-H1: 1F1B that fills bubbles with the gradients of weights (Qi et al. 2023)."""

from __future__ import annotations

from collections import deque

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.plans.schedules.one_f_one_b import OneFOneB
from meshwright.plans.schedules.tasks import Tasks


class ZeroBubbleH1(OneFOneB):
    """1F1B with separate tasks for the backward of inputs (B) and of weights (W).

    Even stages take m tau and a bubble of (p - 1) (F + B - W) if m >= p (Qi et al.
    2023, table 2).
    """

    name = "zb-h1"
    title = "ZB-H1"
    splits_backward = True

    def in_flight(
        self, after: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
    ) -> Ints:
        """Return min(m, p), for every stage.

        Stage e holds e micro-batches between backward and weight gradients (Qi et al.
        2023, section 2.3, with M_W = M_B). The first stage thus holds what it does
        under 1F1B, and every other stage as much as the first.
        """
        held: Ints = np.minimum(microbatches * vpp, stages)
        return held

    def deferred(self, microbatches: Ints, stages: Ints) -> Floats:
        """Return 1 + (min(m, p) - 1) / (p - 1).

        The last stage defers W of its first min(m, p) - 1 micro-batches, so that with
        fewer micro-batches than stages the bubble is (p - 1) (F + B) - (m - 1) W.
        """
        more = (np.minimum(microbatches, stages) - 1) / np.maximum(stages - 1, 1)
        return np.asarray(1 + more)

    def order(self, tasks: Tasks, stage: int) -> list[int]:
        """Return the tasks of 1F1B with weight gradients between them.

        Stage e runs the W of micro-batch i right after the B of micro-batch i + e, and
        its last e W after all else: the shorter the warm-up of a stage, the later W
        starts (Qi et al. 2023, section 2.1 and figure 3, top).
        """
        order: list[int] = []
        waiting: deque[int] = deque()
        for number in super().order(tasks, stage):
            order.append(number)
            if number >= tasks.per_kind:
                waiting.append(number + tasks.per_kind)
                order += [waiting.popleft()] if len(waiting) > stage else []
        return order + list(waiting)
