"""The tasks of a pipeline step by number, and which task waits for which."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

Kind = Literal["F", "B", "W"]
"""Forward; backward, for inputs alone where W stands apart; weight gradients."""

KINDS: tuple[Kind, ...] = ("F", "B", "W")


class Task(NamedTuple):
    """One micro-batch's pass through one chunk of a stage's layers."""

    kind: Kind
    microbatch: int
    chunk: int


@dataclass(frozen=True)
class Tasks:
    """The tasks of a schedule by number: steps of a micro-batch's way, m tasks each.

    It goes down p v chunks and up again, past the last stage to the first and back: a
    task waits for the one m before it. Weight gradients come p v steps after their
    backward, and wait for that.
    """

    stages: int
    microbatches: int
    vpp: int

    @property
    def of_a_kind(self) -> int:
        """Return how many tasks of each kind there are."""
        return self.stages * self.vpp * self.microbatches

    def task(self, number: int) -> Task:
        """Return a task by its number."""
        kind, own = divmod(number, self.of_a_kind)
        step, microbatch = divmod(own, self.microbatches)
        chunk = step // self.stages
        return Task(KINDS[kind], microbatch, self.vpp - 1 - chunk if kind else chunk)

    @property
    def sources(self) -> tuple[int, int, int]:
        """Return how far before a task of each kind that stands which it waits for."""
        return self.microbatches, self.microbatches, self.of_a_kind

    def source(self, number: int) -> int:
        """Return the task that a task waits for; below 0 where there is none."""
        return number - self.sources[number // self.of_a_kind]

    @cached_property
    def first_forwards(self) -> list[int]:
        """Return the forwards of the first stage in order.

        Where interleaved, p divides m, and p micro-batches at a time go through one
        chunk after the other (Narayanan et al. 2021, section 2.2.2; Megatron-LM
        schedules.py: get_schedule_table).
        """
        m = self.microbatches
        group = self.stages if self.vpp > 1 else m
        return [
            chunk * self.stages * m + index
            for first in range(0, m, group)
            for chunk in range(self.vpp)
            for index in range(first, first + group)
        ]

    def forwards(self, stage: int) -> list[int]:
        """Return the forwards of a stage in order."""
        return [number + stage * self.microbatches for number in self.first_forwards]

    def backwards(self, stage: int) -> list[int]:
        """Return the backwards of a stage in order."""
        up = self.of_a_kind + (self.stages - stage - 1) * self.microbatches
        return [number + up for number in self.first_forwards]
