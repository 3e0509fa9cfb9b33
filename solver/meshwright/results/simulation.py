"""Simulated steps of a plan, as data."""

from __future__ import annotations

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.results.result import Result
from meshwright.spec.base import SpecModel


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
    """The mean seconds of a step, by what causes them."""

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
