"""The answer to one spec: the best plan and its proof, or what comes closest."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.plans.rule import BrokenRule
from meshwright.results.priced_plan import PricedPlan, StageMemory
from meshwright.results.training_run import RunReport
from meshwright.spec.base import SpecModel
from meshwright.spec.cluster import Cluster

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


class Counts(SpecModel):
    """Where every legal skeleton went."""

    skeletons: int
    no_memory: int = Field(
        description="Cannot hold the model at all, of those not bounded out before."
    )
    bounded: int = Field(description="Their lower bound is above the best plan.")
    survivors: int = Field(description="Left to CP-SAT.")


class Certificate(SpecModel):
    """What was proven, about which objective, and how to get it again."""

    objective: str = "filling the pipeline + pace of its slowest stage + end of step"
    bound_s: float
    gap: float
    rounding_s: float = Field(description="Most that integer time may be off.")
    counts: Counts
    seed: int
    left_open: str = Field("", description="Why it is no proof, where it is none.")


class Rival(SpecModel):
    """A plan that the schedule's task graph puts before the proven optimum."""

    plan: Plan
    schedule_s: float


class Band(SpecModel):
    """How far step times were off on runs that no fit had seen."""

    runs_of: str = Field(description="GPU and framework of those runs.")
    runs: int
    median: float = Field(description="Of |ln(predicted / measured)|.")
    p90: float = Field(description="Nine runs in ten lay within.")


class RunnerUp(SpecModel):
    """The plan that comes next, as it was built; it is not proven to be next."""

    plan: Plan
    step_s: float
    is_simpler: bool = Field(description="Whether it would win among equals.")


class NearMiss(SpecModel):
    """The plan that comes closest where none fits, and the rules it breaks."""

    description: str
    broken_rules: tuple[BrokenRule, ...]
    memory: StageMemory | None = Field(None, description="Of its fullest stage.")
    plan: Plan | None = Field(None, exclude=True, description="Where it is complete.")
    state_gib: float | None = Field(
        None, description="Weights, gradients and optimizer of all GPUs together."
    )


class KindResult(SpecModel):
    """The best plan of one kind, or what keeps every such plan out."""

    kind: str
    best: PricedPlan | None = None
    is_proven: bool = Field(True, description="Whether no plan of the kind is faster.")
    near_miss: NearMiss | None = None


class Arranged(SpecModel):
    """A way to lay a job over unlike parts, and the step time of its best plan."""

    sentence: str
    step_s: float | None = Field(description="None where no plan fits.")


class Outcome(SpecModel):
    """The answer to one spec."""

    status: Status
    arrangements: tuple[Arranged, ...] = Field(
        (), description="Ways to use unlike parts, the fastest first."
    )
    best: PricedPlan | None = None
    others: tuple[PricedPlan, ...] = ()
    by_kind: tuple[KindResult, ...] = ()
    rival: Rival | None = None
    band: Band | None = None
    runner_up: RunnerUp | None = None
    near_miss: NearMiss | None = None
    certificate: Certificate | None = None
    run: RunReport | None = Field(None, description="Where the spec asks for one.")
    cluster: Cluster | None = Field(
        None, exclude=True, description="What the best plan runs on."
    )
    capacity_gib: float
    gpus: int
    versions: dict[str, str] = Field(default_factory=dict)
