"""Plans and outcomes of serving, as frozen data that converts to JSON and back."""

from __future__ import annotations

from pydantic import Field

from meshwright.results.outcome import Certificate, NearMiss, Status
from meshwright.results.priced_plan import StageMemory
from meshwright.spec.base import Count, SpecModel


class ServingPlan(SpecModel):
    """A complete plan: how a replica is split, and how its requests are grouped."""

    tp: Count
    pp: Count
    dp_replicate: Count = Field(description="Number of replicas.")
    microbatches: Count = Field(description="Groups of a replica's requests.")
    layers: tuple[Count, ...] = Field(description="Layers, by stage.")
    mesh: dict[str, tuple[Count, ...]] = Field(
        description="Factor of an axis at each level, innermost first, by axis."
    )

    def __str__(self) -> str:
        """Return the plan in one line, in the words of `--pin`."""
        names = ("tp", "pp", "dp_replicate", "microbatches")
        return " ".join(f"{name}={getattr(self, name)}" for name in names)


class PricedServing(SpecModel):
    """A plan with its latency, throughput and memory, computed by the checker."""

    plan: ServingPlan
    objective_s: float = Field(
        description="The minimised quantity; see the certificate."
    )
    objective_parts: dict[str, float]
    ttft_s: float = Field(description="Time of a prompt's prefill, alone.")
    tpot_s: float = Field(description="Time per token with all requests in flight.")
    request_s: float = Field(description="Time of a request while none is prefilled.")
    tokens_per_s: float = Field(
        description="Generated tokens; the time of all prefills is counted in."
    )
    requests_per_s: float
    bubble: float = Field(description="Share of a round in which stages wait.")
    ttft_parts: dict[str, float]
    tpot_parts: dict[str, float]
    stages: tuple[StageMemory, ...]

    @property
    def peak_gib(self) -> float:
        """Return the memory of the fullest stage, GiB."""
        return max(stage.total_gib for stage in self.stages)


class Largest(SpecModel):
    """The largest batch and the longest context that fit with the plan."""

    batch: int = Field(description="Requests in flight, at the spec's context.")
    context: int = Field(description="Tokens of a request, at the spec's batch.")
    tokens_per_s: float = Field(description="Throughput at the largest batch.")


class ServingKind(SpecModel):
    """The best plan of one kind, or the nearest miss if no plan of the kind fits."""

    kind: str
    best: PricedServing | None = None
    near_miss: NearMiss | None = None


class KindCrossover(SpecModel):
    """A batch size from which on another kind of plan is best."""

    batch: int
    kind: str
    plan: ServingPlan


class DegreeChoice(SpecModel):
    """The best plan at one degree of an axis, or why none fits."""

    axis: str
    degree: int
    objective_s: float | None = None
    because: str = Field(description="The part that grows most, or the broken rule.")


class ServingOutcome(SpecModel):
    """The answer to one serving spec."""

    status: Status
    best: PricedServing | None = None
    largest: Largest | None = None
    by_kind: tuple[ServingKind, ...] = ()
    flips: tuple[KindCrossover, ...] = ()
    tp_against_pp: tuple[KindCrossover, ...] = Field(
        (),
        description="The same among plans with only tensor or only pipeline "
        "parallelism.",
    )
    degrees: tuple[DegreeChoice, ...] = ()
    near_miss: NearMiss | None = None
    certificate: Certificate | None = None
    capacity_gib: float
    gpus: int
    versions: dict[str, str] = Field(default_factory=dict)
