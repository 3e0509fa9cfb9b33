"""Plans and outcomes: what Meshwright answers, frozen, JSON both ways."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.economics.data import RunReport
from meshwright.spec.base import Count, CountOrNone, Flag, SpecModel
from meshwright.spec.cluster import Cluster
from meshwright.spec.gpu import Precision

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


class Stage(SpecModel):
    """One pipeline stage."""

    layers: Count
    recompute_layers: CountOrNone
    gpu: str = Field("", description="Its GPUs, where those of stages differ.")


class Plan(SpecModel):
    """One complete decision, in torchtitan's names."""

    tp: Count
    pp: Count
    vpp: Count = 1
    cp: Count = 1
    ep: Count = 1
    dp_replicate: Count
    dp_shard: Count
    micro_batch: Count = Field(description="Sequences per micro-batch.")
    microbatches: Count = Field(description="Micro-batches per step.")
    zero: CountOrNone = Field(le=3)
    sequence_parallel: Flag
    recompute: Literal["none", "selective", "full"]
    schedule: Literal["1f1b", "gpipe", "zb-h1"]
    offload: Literal["none", "optimizer", "gradients", "parameters"] = "none"
    precision: Precision = "bf16"
    stages: tuple[Stage, ...]
    mesh: dict[str, tuple[Count, ...]] = Field(
        description="Of each axis, its factor at each level, innermost first."
    )
    seats: tuple[tuple[CountOrNone, ...], ...] = Field(
        (),
        description="Of each kind of host, the GPU of each of its ranks, by its place "
        "among the host's GPUs; empty where ranks sit in that order.",
    )

    @property
    def world_size(self) -> int:
        """Return the number of GPUs; experts are folded into the other axes."""
        return self.tp * self.cp * self.dp_replicate * self.dp_shard * self.pp

    def __str__(self) -> str:
        """Return the plan in one line, in the words of `--pin`."""
        parts = [f"{name}={getattr(self, name)}" for name in ("tp", "pp")]
        extra = [name for name in ("vpp", "cp", "ep") if getattr(self, name) > 1]
        parts += [f"{name}={getattr(self, name)}" for name in extra]
        parts += [f"dp={self.dp_replicate}x{self.dp_shard}", f"zero={self.zero}"]
        parts.append(f"micro_batch={self.micro_batch}x{self.microbatches}")
        parts.append(f"recompute={self.recompute}")
        if self.schedule != "1f1b":
            parts.append(f"schedule={self.schedule}")
        if self.offload != "none":
            parts.append(f"offload={self.offload}")
        if self.precision != "bf16":
            parts.append(self.precision)
        return " ".join(parts)


class LinkLoad(SpecModel):
    """What a link carries of a phase in one step, one way."""

    link: str
    phase: str
    gb: float
    seconds: float
    utilisation: float = Field(description="Of the step.")


class StageMemory(SpecModel):
    """Memory of one GPU of a stage."""

    total_gib: float
    parts: dict[str, float]
    host_gib: float = Field(0.0, description="Offloaded by this GPU to its host.")
    usable_gib: float = Field(description="What a plan may use of this GPU.")


class PricedPlan(SpecModel):
    """A plan with what it takes, as the checker re-scored it in floats."""

    plan: Plan
    step_s: float
    time_parts: dict[str, float]
    schedule_s: float = Field(description="Step by the schedule's own task graph.")
    stages: tuple[StageMemory, ...]
    links: tuple[LinkLoad, ...] = Field(description="Of each phase the most loaded.")
    all_links: tuple[LinkLoad, ...]
    link_utilisation: float = Field(description="Of the busiest link, of the step.")
    mfu: float
    tokens_per_s_per_gpu: float

    @property
    def peak_gib(self) -> float:
        """Return the memory of the fullest stage, GiB."""
        return max(stage.total_gib for stage in self.stages)


class BrokenRule(SpecModel):
    """A rule that a plan or every plan breaks, with its numbers."""

    rule: str
    sentence: str
    have: float | None = None
    need: float | None = None
    unit: str = ""
    where: str = Field("", description="The stage or link where it is broken most.")


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
