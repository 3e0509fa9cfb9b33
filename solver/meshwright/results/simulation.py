"""Steps as data: simulated, drawn over time, and beside a trace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.result import Result
from meshwright.spec.base import SpecModel
from meshwright.spec.cluster import Cluster


class Disturbance(SpecModel):
    """Differences in speed between GPUs, and between steps."""

    jitter: float = Field(
        ge=0,
        description="Standard deviation of a GPU's compute time of one task, as a "
        "share.",
    )
    slow_gpus: float = Field(ge=0, le=1, description="Share of GPUs that are slow.")
    slowdown: float = Field(
        ge=0, description="Extra compute time of a slow GPU, as a share."
    )


class Spread(SpecModel):
    """A quantity over all samples."""

    mean: float
    least: float
    median: float
    p90: float
    p99: float
    most: float


class Histogram(SpecModel):
    """How many samples lie in each of some bins of equal width."""

    edges: tuple[float, ...] = Field(
        description="Edges of the bins: one more than there are counts."
    )
    counts: tuple[int, ...]


class Losses(SpecModel):
    """The mean seconds of a step, by their cause."""

    undisturbed_s: float = Field(description="Step time of the schedule's task graph.")
    pipeline_s: float = Field(
        description="Extra time because GPUs of one pipeline wait for each other."
    )
    replicas_s: float = Field(
        description="Extra time to wait for the slowest data-parallel pipeline."
    )


class SimulatedStage(SpecModel):
    """One pipeline stage over a step."""

    idle: float = Field(description="Mean share of the step in which it waits.")
    peak_gib: float
    usable_gib: float
    memory: tuple[tuple[float, float], ...] = Field(
        description="Memory of a GPU over the undisturbed step: pairs of seconds and "
        "GiB."
    )


class FailedRuns(SpecModel):
    """Runs of some useful days with failures at random."""

    days: float = Field(description="Days of training without any losses.")
    mtbf_hours: float = Field(description="Mean time between failures of the job.")
    interval_s: float = Field(description="Seconds between checkpoints.")
    failures: Spread
    goodput: Spread = Field(description="Useful share of the time.")
    expected_goodput: float = Field(
        description="Useful share of the time by Daly's formula."
    )


class Simulation(Result):
    """The steps of a plan, simulated.

    Example:
        >>> import meshwright as mw
        >>> told = mw.simulate(mw.load("llama2-13b-8xa100"), jitter=0, slow_gpus=0)
        >>> round(told.step_s.median - told.schedule_s, 9)
        0.0
    """

    title: str = Field(description="The question in one line.")
    plan: Plan
    samples: int = Field(description="Steps that were simulated.")
    seed: int = Field(description="Seed of the random numbers.")
    disturbance: Disturbance
    lockstep_gpus: int = Field(
        description="GPUs of a stage that wait for each other in every task."
    )
    replicas: int = Field(description="Pipelines that wait only at the end of a step.")
    closed_form_s: float = Field(description="The step time that plans are chosen by.")
    schedule_s: float = Field(description="Step time of the task graph, undisturbed.")
    step_s: Spread
    histogram: Histogram
    bubble: Spread = Field(
        description="Share of a step for which the busiest stage of a pipeline is idle."
    )
    losses: Losses
    stages: tuple[SimulatedStage, ...]
    runs: FailedRuns | None = Field(
        None,
        description="Given if the spec has failure rates and says how state is saved.",
    )


class PhaseTimes(SpecModel):
    """One phase of the step, as modelled and as measured.

    Phases of a step do not overlap: time in which several run counts for the first of
    them, and time in which none runs is idle. They add up to the step.
    """

    phase: str
    modelled_s: float
    measured_s: float
    busy_s: float = Field(
        description="Measured, with what hides behind the phases before it."
    )


class KernelKind(SpecModel):
    """Measured work of one kind, in one step."""

    kind: str
    phase: str
    count: float = Field(description="Kernels, or operators on a CPU.")
    seconds: float = Field(description="Their durations, added up.")
    names: tuple[str, ...] = Field(description="Those that take longest.")


class TraceComparison(Result):
    """Which part of the model is off, by a profiler's trace of one rank."""

    title: str
    stage: int = Field(description="The pipeline stage of the modelled trace.")
    stages: int
    steps: int = Field(description="Steps in the measured trace; times are their mean.")
    is_gpu: bool = Field(description="Whether the measured trace has kernels of a GPU.")
    modelled_s: float
    measured_s: float
    phases: tuple[PhaseTimes, ...]
    kernels: tuple[KernelKind, ...]
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> PhaseTimes:
        """Return the phase that is furthest off."""
        return max(
            self.phases, key=lambda phase: abs(phase.measured_s - phase.modelled_s)
        )


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
class LaunchFiles:
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
    launch: LaunchFiles
    note: str = ""
    """A warning to show first, such as that it does not fit."""


@dataclass(frozen=True)
class KnownPlan:
    """A plan that is known beside the best, and why it is known."""

    priced: PricedPlan
    why: str
    is_first: bool = False
    """Whether it is the plan that the answer is about."""
