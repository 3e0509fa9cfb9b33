"""The tasks of a pipeline step, by number, and the task that each waits for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from meshwright.spec.microbatch_groups import group_size

Kind = Literal["F", "B", "W"]
"""Forward; backward, only for inputs where W is a task; weight gradients."""

KINDS: tuple[Kind, ...] = ("F", "B", "W")


class Task(NamedTuple):
    """One micro-batch's pass through one chunk of a stage's layers."""

    kind: Kind
    microbatch: int
    chunk: int


@dataclass(frozen=True)
class Tasks:
    """The tasks of a step by number: m tasks for each chunk that a micro-batch passes.

    A micro-batch passes p v chunks forward and the same chunks backward, so that a task
    waits for the task m numbers before it. The tasks of weight gradients come p v m
    numbers after their backwards, and wait for those.
    """

    stages: int
    microbatches: int
    vpp: int

    @property
    def per_kind(self) -> int:
        """Return the number of tasks of each kind."""
        return self.stages * self.vpp * self.microbatches

    @property
    def sources(self) -> tuple[int, int, int]:
        """Return, for each kind, how many numbers before a task its source is."""
        return self.microbatches, self.microbatches, self.per_kind

    @property
    def group(self) -> int:
        """Return how many micro-batches pass a chunk before the next chunk runs."""
        m = self.microbatches
        return group_size(m, self.stages) if self.vpp > 1 else m

    @cached_property
    def first_forwards(self) -> list[int]:
        """Return the forwards of the first stage in order.

        Interleaved, a group of micro-batches at a time passes one chunk after another
        (Narayanan et al. 2021, section 2.2.2; Megatron-LM schedules.py:
        get_schedule_table).
        """
        m, group = self.microbatches, self.group
        return [
            chunk * self.stages * m + index
            for first in range(0, m, group)
            for chunk in range(self.vpp)
            for index in range(first, min(first + group, m))
        ]

    def task(self, number: int) -> Task:
        """Return a task by its number."""
        kind, index = divmod(number, self.per_kind)
        place, microbatch = divmod(index, self.microbatches)
        chunk = place // self.stages
        return Task(KINDS[kind], microbatch, self.vpp - 1 - chunk if kind else chunk)

    def source(self, number: int) -> int:
        """Return the task that a task waits for; negative where there is none."""
        return number - self.sources[number // self.per_kind]

    def forwards(self, stage: int) -> list[int]:
        """Return the forwards of a stage in order."""
        return [number + stage * self.microbatches for number in self.first_forwards]

    def backwards(self, stage: int) -> list[int]:
        """Return the backwards of a stage in order."""
        up = self.per_kind + (self.stages - stage - 1) * self.microbatches
        return [number + up for number in self.first_forwards]
