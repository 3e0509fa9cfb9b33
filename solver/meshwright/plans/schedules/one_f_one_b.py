"""1F1B, and interleaved 1F1B where stages have several chunks."""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Ints
from meshwright.plans.schedules.schedule import Schedule
from meshwright.plans.schedules.tasks import Tasks


class OneFOneB(Schedule):
    """One forward, one backward, after a warm-up that is longest on the first stage.

    Even stages that take tau per micro-batch take m tau and a bubble of (p - 1) tau
    (Narayanan et al. 2021, section 2.2). The interleaved bubble is (p - 1) tau / v, if
    p divides m (section 2.2.2).
    """

    name = "1f1b"
    title = "1F1B"

    def in_flight(
        self, after: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
    ) -> Ints:
        """Return the most chunks that a stage holds.

        Stage e of p holds min(m, p - e) (Narayanan et al. 2021, section 2.2).
        Interleaved it holds a warm-up of 2 (p - e - 1) + (v - 1) p and one more, at
        most all m v (Megatron-LM schedules.py: get_pp_rank_microbatches).
        """
        warm = np.where(vpp > 1, 2 * after + (vpp - 1) * stages, after)
        held: Ints = np.minimum(microbatches * vpp, warm + 1)
        return held

    def most_in_flight(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Ints:
        """Return p, interleaved 2 p, and at most all micro-batches."""
        warm = np.where(vpp > 1, 2, 1) * stages
        most: Ints = np.minimum(warm, microbatches)
        return most

    def warm_up(self, tasks: Tasks, after: int) -> int:
        """Return the forwards before the first pair.

        Interleaved as in Megatron-LM schedules.py: get_pp_rank_microbatches.
        """
        more = (tasks.vpp - 1) * tasks.stages
        return 2 * after + more if tasks.vpp > 1 else after
