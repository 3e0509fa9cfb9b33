"""What a pipeline schedule declares about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.schedules.tasks import Tasks


class Schedule(ABC):
    """A pipeline schedule of p stages, m micro-batches, and v chunks a stage.

    What it holds and how long it takes are formulas over columns of skeletons. The
    order of its tasks is a list for each stage, which is walked to check the formulas.
    """

    name: str
    """As users write it."""
    title: str
    """As reports print it."""
    splits_backward = False
    """Whether the gradients of weights are tasks apart from those of inputs."""

    @abstractmethod
    def in_flight(
        self, after: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
    ) -> Ints:
        """Return the chunks that the stage before the last `after` holds at most.

        A chunk is one micro-batch's activations of 1/v of the stage's layers, held from
        its forward until its weight gradients.
        """

    @abstractmethod
    def most_in_flight(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Ints:
        """Return micro-batches that no stage passes, all its chunks counted together.

        It need not be tight: it only lets rows be seen to fit without their stages.
        """

    def heads_in_flight(self, microbatches: Ints) -> Ints:
        """Return the micro-batches whose logits the last stage holds."""
        return np.ones_like(microbatches)

    def fill_share(self, vpp: Ints, stages: Ints) -> Floats:
        """Return which share of its time a stage adds to filling the pipeline."""
        return np.asarray(1 / vpp)

    def deferred(self, microbatches: Ints, stages: Ints) -> Floats:
        """Return how many W's of a stage the closed form takes from fill to pace.

        W is a stage's time of weight gradients per micro-batch; see
        `cost.schedule.StepWeights`.
        """
        return np.zeros(np.shape(microbatches))

    @abstractmethod
    def warm_up(self, tasks: Tasks, after: int) -> int:
        """Return the forwards before the first backward, `after` stages from last."""

    def order(self, tasks: Tasks, stage: int) -> list[int]:
        """Return a stage's tasks: warm-up forwards, pairs, the last backwards."""
        forwards, backwards = tasks.forwards(stage), tasks.backwards(stage)
        warm = min(len(forwards), self.warm_up(tasks, tasks.stages - stage - 1))
        order = forwards[:warm]
        for pair in zip(forwards[warm:], backwards, strict=False):
            order += pair
        return order + backwards[len(forwards) - warm :]

    def rate_s(self, stage_s: Floats, forward_s: Floats) -> float:
        """Return seconds per micro-batch of a full pipeline, from those of stages.

        Args:
            stage_s: seconds of each stage per micro-batch.
            forward_s: those of its forward among them.
        """
        return float(stage_s.max())
