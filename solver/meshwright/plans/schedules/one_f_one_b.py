"""1F1B, and interleaved 1F1B where stages have several chunks."""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.plans.schedules.groups import group_sizes
from meshwright.plans.schedules.schedule import Schedule
from meshwright.plans.schedules.tasks import Tasks


class OneFOneB(Schedule):
    """One forward, one backward, after a warm-up that is longest on the first stage.

    Even stages that take tau per micro-batch take m tau and a bubble of (p - 1) tau
    (Narayanan et al. 2021, section 2.2). The interleaved bubble is (p - 1) tau / v
    (section 2.2.2), for any m >= p whose groups have p micro-batches or more. Fewer
    micro-batches than stages leave p - m of them idle between chunks too.
    """

    name = "1f1b"
    title = "1F1B"

    def in_flight(
        self, after: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
    ) -> Ints:
        """Return the most chunks that a stage holds.

        Stage e of p holds min(m, p - e) (Narayanan et al. 2021, section 2.2).
        Interleaved in groups of G it holds a warm-up of 2 (p - e - 1) + (v - 1) G and
        one more, at most all m v (Megatron-LM schedules.py: get_pp_rank_microbatches).
        """
        group = group_sizes(microbatches, np.where(vpp > 1, stages, 1))
        warm = np.where(vpp > 1, 2 * after + (vpp - 1) * group, after)
        held: Ints = np.minimum(microbatches * vpp, warm + 1)
        return held

    def most_in_flight(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Ints:
        """Return p, interleaved 2 p or a group, and at most all micro-batches.

        (2 (p - 1) + (v - 1) G + 1) / v is between 2 p - 1 and G.
        """
        group = group_sizes(microbatches, np.where(vpp > 1, stages, 1))
        warm = np.where(vpp > 1, np.maximum(2 * stages, group), stages)
        most: Ints = np.minimum(warm, microbatches)
        return most

    def fill_share(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Floats:
        """Return 1 / v, and more with fewer micro-batches than stages.

        They wait for the p - m other stages before each further chunk, v - 1 times, and
        so take p tau + (m - 1) tau / v: all that micro-batch one takes, and a chunk of
        every other.
        """
        few = np.minimum(microbatches, stages)
        spread = (stages - few + (few - 1) / vpp) / np.maximum(stages - 1, 1)
        return np.asarray(np.where(vpp > 1, spread, 1.0))

    def warm_up(self, tasks: Tasks, after: int) -> int:
        """Return the forwards before the first pair.

        Interleaved as in Megatron-LM schedules.py: get_pp_rank_microbatches.
        """
        more = (tasks.vpp - 1) * tasks.group
        return 2 * after + more if tasks.vpp > 1 else after
