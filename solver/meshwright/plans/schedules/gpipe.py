"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.plans.schedules.schedule import Schedule
from meshwright.plans.schedules.tasks import Tasks


class GPipe(Schedule):
    """All forwards run before the first backward, so that all activations are held.

    Its time is that of 1F1B: even stages that take tau per micro-batch take m tau and a
    bubble of (p - 1) tau (Huang et al. 2019, section 2.3).
    """

    name = "gpipe"
    title = "GPipe"

    def in_flight(
        self, after: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
    ) -> Ints:
        """Return all micro-batches, for every stage (Huang et al. 2019, 2.3)."""
        return np.asarray(microbatches)

    def most_in_flight(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Ints:
        """Return all micro-batches."""
        return microbatches

    def heads_in_flight(self, microbatches: Ints) -> Ints:
        """Return all micro-batches."""
        return microbatches

    def warm_up(self, tasks: Tasks, after: int) -> int:
        """Return all forwards."""
        return tasks.microbatches

    def rate_s(self, stage_s: Floats, forward_s: Floats) -> float:
        """Return the slowest forward plus the slowest backward of any stages."""
        return float(forward_s.max() + (stage_s - forward_s).max())
