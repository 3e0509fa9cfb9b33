"""The base class of pipeline schedules."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.plans.schedules.tasks import Tasks


class Schedule(ABC):
    """A pipeline schedule of p stages, m micro-batches, and v chunks a stage.

    Memory and time are formulas over columns of skeletons. The order of tasks is a list
    per stage, from which the task graph is built that checks the formulas.
    """

    name: str
    """Name that users write."""
    title: str
    """Name that reports print."""
    splits_backward = False
    """Whether gradients of weights are tasks separate from those of inputs."""

    @abstractmethod
    def in_flight(
        self, after: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
    ) -> Ints:
        """Return the most chunks that a stage with `after` stages behind it holds.

        A chunk is one micro-batch's activations of 1/v of the stage's layers, held from
        its forward until its weight gradients.
        """

    @abstractmethod
    def most_in_flight(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Ints:
        """Return an upper bound on the micro-batches of a stage, all chunks together.

        It need not be tight: it only shows that skeletons fit without their stages.
        """

    def heads_in_flight(self, microbatches: Ints) -> Ints:
        """Return the micro-batches whose logits the last stage holds."""
        return np.ones_like(microbatches)

    def fill_share(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Floats:
        """Return the share of its time that a stage adds to filling the pipeline."""
        return np.ones(np.shape(vpp))

    def deferred(self, microbatches: Ints, stages: Ints) -> Floats:
        """Return how many W of a stage the closed form moves from fill to pace.

        W is the time of a stage's weight gradients per micro-batch; see
        `cost.schedule.StepWeights`.
        """
        return np.zeros(np.shape(microbatches))

    @abstractmethod
    def warm_up(self, tasks: Tasks, after: int) -> int:
        """Return the forwards of a stage before its first backward."""

    def order(self, tasks: Tasks, stage: int) -> list[int]:
        """Return a stage's tasks: warm-up forwards, pairs, the last backwards."""
        forwards, backwards = tasks.forwards(stage), tasks.backwards(stage)
        warm = min(len(forwards), self.warm_up(tasks, tasks.stages - stage - 1))
        order = forwards[:warm]
        for pair in zip(forwards[warm:], backwards, strict=False):
            order += pair
        return order + backwards[len(forwards) - warm :]

    def rate_s(self, stage_s: Floats, forward_s: Floats) -> float:
        """Return the seconds per micro-batch of a full pipeline.

        Args:
            stage_s: seconds of each stage per micro-batch.
            forward_s: the part of them in the forward.
        """
        return float(stage_s.max())
