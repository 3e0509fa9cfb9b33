"""Plans, outcomes and explanations of serving, as data that converts to JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from meshwright.plans.rule import BrokenRule
from meshwright.results.outcome import Certificate, NearMiss
from meshwright.results.outcome_parts import Conflict, ModelSize
from meshwright.results.priced_plan import StageMemory
from meshwright.results.result import (
    SERVING,
    Result,
    Status,
    answer_fields,
    read_answer,
    refused,
    solved_json,
)
from meshwright.spec.base import NOT_EMPTY, Count, SpecModel
from meshwright.spec.plan_fields import FIELD

JSON_ORDER = (
    *("spec", "status", *SERVING.names, "bound_s", "gap", "solver", "remarks"),
    *("largest", "by_kind", "flips", "tp_against_pp", "degrees", "near_miss", "gpus"),
    *("model", "versions"),
)
"""Names in the JSON of an outcome, in their order."""


class ServingPlan(SpecModel):
    """A complete plan: how a replica is split, and how its requests are grouped."""

    tp: Count
    pp: Count
    dp_replicate: Count = Field(description="Number of replicas.")
    microbatches: Count = Field(description="Groups of a replica's requests.")
    attention_dp: Count = Field(
        1,
        description="Groups of the tensor group that attend for requests of their own.",
    )
    layers: tuple[Count, ...] = Field(description="Layers, by stage.")
    mesh: dict[str, tuple[Count, ...]] = Field(
        description="Factor of an axis at each level, innermost first, by axis."
    )

    def __str__(self) -> str:
        """Return the plan in one line, as `--plan` reads it."""
        names = [name for name in FIELD if name in type(self).model_fields]
        names += ["attention_dp"] if self.attention_dp > 1 else []
        return ",".join(f"{name}={getattr(self, name)}" for name in names)

    @property
    def launch_options(self) -> dict[str, str]:
        """Return the options that start a replica, by program.

        vLLM's ranks of data parallelism attend alone, and its experts are split over
        all of them (vllm docs/serving/data_parallel_deployment.md); SGLang counts
        those ranks within its tensor group (sglang docs/advanced_features,
        dp_dpa_smg_guide.md).
        """
        vllm = {
            "--tensor-parallel-size": self.tp // self.attention_dp,
            "--data-parallel-size": self.attention_dp,
            "--pipeline-parallel-size": self.pp,
        }
        sglang = {"--tp-size": self.tp, "--pp-size": self.pp}
        if self.attention_dp > 1:
            sglang["--dp-size"] = self.attention_dp
        told = {"vLLM": _options(vllm), "SGLang": _options(sglang)}
        if self.attention_dp > 1:
            told["SGLang"] += " --enable-dp-attention --enable-dp-lm-head"
            told["SGLang"] += " --moe-dense-tp-size 1" * (self.tp == self.attention_dp)
        return told


def _options(values: dict[str, int]) -> str:
    """Return options as a command line has them, without those that are 1."""
    return " ".join(f"{name} {value}" for name, value in values.items() if value > 1)


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
    busy_request_s: float | None = Field(
        None,
        description="Time of a request while those after it are prefilled: the batch "
        "over `requests_per_s`.",
    )
    tokens_per_s: float = Field(
        description="Generated tokens; the time of all prefills is counted in."
    )
    requests_per_s: float
    bubble: float = Field(description="Share of a round in which stages wait.")
    ttft_parts: dict[str, float]
    tpot_parts: dict[str, float]
    stages: Annotated[tuple[StageMemory, ...], NOT_EMPTY]

    @property
    def peak_gib(self) -> float:
        """Return the memory of the fullest stage, GiB."""
        return max(stage.total_gib for stage in self.stages)

    @property
    def fit_probability(self) -> float:
        """Return how likely the deployment fits: that of its fullest stage."""
        return min(stage.fit_probability for stage in self.stages)


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


class ServingOutcome(Result):
    """The answer to one spec of serving.

    Example:
        >>> import meshwright as mw
        >>> outcome = mw.solve(mw.load("serve-llama3-8b-1xa100"))
        >>> outcome.best.plan.tp, outcome.best.tokens_per_s > 100
        (1, True)
    """

    title: str = Field("", exclude=True, description="The question in one line.")
    status: Status = Field(
        description="optimal: proven; feasible: a plan, but no proof; infeasible: none "
        "exists; unknown: stopped before either."
    )
    is_stopped: bool = Field(
        False, exclude=True, description="Whether its time ran out before its end."
    )
    best: PricedServing | None = None
    remarks: tuple[str, ...] = Field(
        (), description="Sentences on what engines may refuse of the best plan."
    )
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
    capacity_gib: float = Field(description="Memory of a GPU that a plan may use.")
    gpus: int
    model: ModelSize | None = Field(None, description="The size of the model.")
    versions: dict[str, str] = Field(
        default_factory=dict, description="Versions of Meshwright and OR-Tools."
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the data that `solve --format json` prints.

        The fields of the best plan stand at its top.
        """
        fields = self.model_dump(mode="json", exclude={"best", "certificate"})
        fields["spec"] = self.title
        if self.best is not None and self.certificate is not None:
            fields |= solved_json(
                self.best, self.certificate, SERVING, self.capacity_gib
            )
        if self.model is None:
            del fields["model"]
        return {name: fields[name] for name in JSON_ORDER if name in fields}

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the outcome that was printed as a JSON text.

        `to_dict` of it is the same data again. Fields that are not printed are empty:
        the plan's `objective_parts` are empty, and `capacity_gib` is 0 where no plan
        fits.

        Raises:
            SpecError: the text is no JSON, or is another kind of answer.
        """
        data = read_answer(text, cls.__name__, JSON_ORDER)
        try:
            fields = answer_fields(data, SERVING)
            if "best" in fields:
                fields["best"] = {**fields["best"], "objective_parts": {}}
            return cls.model_validate(fields)
        except ValueError as error:
            raise refused(cls.__name__, error) from None


ServingChanges = Literal[
    "decision", "precision", "machines", "hardware", "safety", "load"
]
"""Kinds of repairs, in the order of what they ask of a person."""


class ServingRepair(SpecModel):
    """An edit of the spec after which a plan exists, and the best plan after it."""

    edit: str
    changes: ServingChanges = Field(
        "decision",
        description="The kind of change, in the order of what it asks of a person: to "
        "leave open what was decided, other numbers, more machines of the same kind, "
        "other hardware, less memory in reserve, to serve less at once.",
    )
    best: PricedServing


class MarginalValue(SpecModel):
    """The best plan after one change of the spec."""

    change: str
    best: PricedServing | None = Field(description="None where no plan fits.")


class ServingExplanation(Result):
    """The answer to why, of a spec of serving.

    Example:
        >>> import meshwright as mw
        >>> told = mw.explain(mw.load("serve-llama3-70b-2x4090-pcie"))
        >>> told.fits, [rule.rule for rule in told.conflict.rules]
        (False, ['memory'])
    """

    title: str = Field(description="The question in one line.")
    fits: bool = Field(description="Whether the plan asked for, or any, fits.")
    outcome: ServingOutcome = Field(
        description="The answer to the spec, with the plan if one was asked about."
    )
    best: ServingOutcome | None = Field(
        None, description="The answer to the spec without the plan asked about."
    )
    gap: dict[str, float] = Field(
        default_factory=dict,
        description="Seconds that the plan takes longer than the best one, by part.",
    )
    marginal_values: tuple[MarginalValue, ...] = ()
    broken_rules: tuple[BrokenRule, ...] = ()
    memory: StageMemory | None = None
    conflict: Conflict | None = None
    repairs: tuple[ServingRepair, ...] = ()
