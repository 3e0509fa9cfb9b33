"""ZB-H1: 1F1B that fills bubbles with the gradients of weights (Qi et al. 2023)."""

from __future__ import annotations

from collections import deque

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.schedules.one_f_one_b import OneFOneB
from meshwright.schedules.tasks import Tasks


class ZeroBubbleH1(OneFOneB):
    """1F1B whose backward for inputs (B) and gradients of weights (W) stand apart.

    Even stages take m tau and a bubble of (p - 1) (F + B - W) (Qi et al. 2023, table
    2), where m >= p.
    """

    name = "zb-h1"
    title = "ZB-H1"
    splits_backward = True

    def in_flight(
        self, after: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
    ) -> Ints:
        """Return min(m, p), for every stage.

        Stage e holds e of them between backward and weight gradients (Qi et al. 2023,
        section 2.3, at an M_W as large as M_B). The peak over all stages is that of
        1F1B, the peak of every stage but the first is not.
        """
        held: Ints = np.minimum(microbatches * vpp, stages)
        return held

    def deferred(self, microbatches: Ints, stages: Ints) -> Floats:
        """Return 1 + (min(m, p) - 1) / (p - 1).

        The last stage puts off W of its first min(m, p) - 1 micro-batches and no more,
        so that the bubble with fewer micro-batches than stages is
        (p - 1) (F + B) - (m - 1) W.
        """
        put_off = (np.minimum(microbatches, stages) - 1) / np.maximum(stages - 1, 1)
        return np.asarray(1 + put_off)

    def order(self, tasks: Tasks, stage: int) -> list[int]:
        """Return the tasks of 1F1B with weight gradients between them.

        Stage e runs the W of micro-batch i right after the B of micro-batch i + e, and
        its last e after all else: W starts the later the fewer micro-batches warm the
        stage up (Qi et al. 2023, section 2.1 and figure 3, top).
        """
        order: list[int] = []
        waiting: deque[int] = deque()
        for number in super().order(tasks, stage):
            order.append(number)
            if number >= tasks.of_a_kind:
                waiting.append(number + tasks.of_a_kind)
                order += [waiting.popleft()] if len(waiting) > stage else []
        return order + list(waiting)
