"""The modelled step on a clock: tasks and memory of every stage over time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.plans.plan import Plan
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.cluster import Cluster


class TaskSpan(NamedTuple):
    """When a stage runs a task, seconds from the start of the step."""

    kind: str
    """F, B or W: forward, backward, gradients of weights."""
    microbatch: int
    chunk: int
    start_s: float
    end_s: float


class Held(NamedTuple):
    """Memory of a GPU for micro-batches in flight, from a time on."""

    at_s: float
    activations_gib: float
    logits_gib: float


@dataclass(frozen=True)
class Fold:
    """Micro-batches in the middle of a long step that are not shown one by one."""

    start_s: float
    seconds: float
    microbatches: int


@dataclass(frozen=True)
class StageTimeline:
    """One pipeline stage of the step: all its GPUs do the same."""

    layers: int
    gpu: str
    """Name of its GPUs, where those of stages differ."""
    tasks: tuple[TaskSpan, ...]
    """Tasks in the order in which they run."""
    parts: Mapping[tuple[str, int], Mapping[str, float]]
    """Seconds by part for each kind of task and chunk, in order of execution."""
    folded: Mapping[str, float]
    """Seconds by part of the micro-batches that are not shown."""
    sync: Mapping[str, float]
    """Seconds by part at the end of the step, after all micro-batches."""
    fixed_gib: Mapping[str, float]
    """Memory that does not change over the step, by part."""
    held: tuple[Held, ...]
    usable_gib: float

    @property
    def busy_s(self) -> dict[str, float]:
        """Return the seconds of the whole step by part."""
        busy = dict(self.folded)
        for task in self.tasks:
            for name, seconds in self.parts[task.kind, task.chunk].items():
                busy[name] = busy.get(name, 0.0) + seconds
        for name, seconds in self.sync.items():
            busy[name] = busy.get(name, 0.0) + seconds
        return busy

    @property
    def microbatches_s(self) -> float:
        """Return the seconds of all micro-batches, without the end of the step."""
        return math.fsum(self.busy_s.values()) - math.fsum(self.sync.values())

    @property
    def peak_gib(self) -> float:
        """Return the most memory at any time."""
        moving = max(moment.activations_gib + moment.logits_gib for moment in self.held)
        return math.fsum(self.fixed_gib.values()) + moving


@dataclass(frozen=True)
class Timeline:
    """The step of a plan, by the task graph of its schedule."""

    title: str
    plan: Plan
    step_s: float
    """Step time by the closed form, by which plans are chosen."""
    schedule_s: float
    """Step time by the task graph: the end of this timeline."""
    pipeline_s: float
    """When the last micro-batch ends, and the end of the step begins."""
    context_exchange: str
    """How context parallelism communicates."""
    stages: tuple[StageTimeline, ...]
    fold: Fold | None = None


@dataclass(frozen=True)
class Launch:
    """The files that start a plan, or why there are none."""

    target: str = ""
    version: str = ""
    files: tuple[tuple[str, str], ...] = ()
    """Name and text of every file."""
    refused: str = ""
    """Why the framework cannot be told the plan; empty where it can."""


@dataclass(frozen=True)
class DrawnPlan:
    """A plan, priced, on the clock, and on its cluster."""

    name: str
    priced: PricedPlan
    timeline: Timeline
    capacity_gib: tuple[float, ...]
    """Memory of a GPU, of every stage."""
    cluster: Cluster
    launch: Launch
    note: str = ""
    """A warning to show first, such as that it does not fit."""


@dataclass(frozen=True)
class NearPlan:
    """A plan that is known beside the best, and why it is known."""

    priced: PricedPlan
    why: str
    is_first: bool = False
    """Whether it is the plan that the answer is about."""
