"""The answer to one spec: the recommended plan with its proof, or the nearest miss."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.plans.rule import BrokenRule
from meshwright.results.claims import proof_claim
from meshwright.results.outcome_parts import (
    Conflict,
    FrameworkLimits,
    HighestMfu,
    ModelSize,
    NearPlans,
    OpenAnswer,
    PricedLever,
    PublishedPlan,
    Repair,
    Simplicity,
    SolvedModel,
)
from meshwright.results.priced_plan import PricedPlan, StageMemory
from meshwright.results.result import (
    TRAINING,
    Result,
    Status,
    answer_fields,
    plan_fields,
    plan_json,
    read_answer,
    refused,
    solved_json,
)
from meshwright.results.training_run import RunReport
from meshwright.spec.base import SpecModel
from meshwright.spec.cluster import Cluster


class Counts(SpecModel):
    """How many legal skeletons were ruled out, and by what."""

    skeletons: int
    no_memory: int = Field(
        description="Skeletons not bounded out that fit under no split of layers."
    )
    bounded: int = Field(
        description="Skeletons whose lower bound is above the best plan's time, or "
        "whose price is that of another."
    )
    survivors: int = Field(description="Other skeletons, among which CP-SAT chooses.")


class Certificate(SpecModel):
    """The proof of an answer: objective, bound and gap, and how to reproduce it."""

    objective: str = "filling the pipeline + pace of its slowest stage + end of step"
    bound_s: float
    gap: float
    is_of_doubted: bool = Field(
        False,
        description="Whether the bound and the gap are of steps with what is doubted "
        "of them: so are those of the cases of a search.",
    )
    rounding_s: float = Field(
        description="Largest rounding error of the integer times."
    )
    counts: Counts
    seed: int
    left_open: str = Field(
        "", description="Why optimality is not proven, if it is not."
    )
    levels: tuple[str, ...] = Field(
        (), description="The levels of the objective that decided, if not step time."
    )
    tolerance: float = Field(
        0.0,
        description="Share of the fastest step time that may be given up for a simpler "
        "plan.",
    )
    tolerance_from: str = Field("", description="Where the tolerance comes from.")
    is_simplest: bool = Field(
        True, description="Whether no plan within the tolerance is simpler."
    )
    doubt: float = Field(
        0.0,
        description="Share of the step that is doubted for every decision beyond what "
        "was run; the recommended plan is within the tolerance of the least step so "
        "doubted.",
    )


class Rival(SpecModel):
    """A plan that is faster than the proven optimum by the schedule's task graph."""

    plan: Plan
    schedule_s: float


class Band(SpecModel):
    """The error of predicted step times on runs that no fit had seen."""

    runs_of: str = Field(description="GPU and framework, or models, of those runs.")
    runs: int
    sources: int | None = Field(
        None, description="Sources of those runs, where each counts alike."
    )
    median: float = Field(description="Median of |ln(predicted / measured)|.")
    p90: float = Field(description="Its 90th percentile.")
    none_on: tuple[str, ...] = Field(
        (), description="GPUs of the cluster on which none of those runs was."
    )
    is_measured: bool = Field(
        True,
        description="False if the user's runs are too few to leave any out: the "
        "errors are then those expected after calibration.",
    )


class RunnerUp(SpecModel):
    """The next best plan that was met; it is not proven to be the second best."""

    plan: Plan
    step_s: float
    is_simpler: bool = Field(
        description="Whether it is simpler, by the criteria of the objective."
    )


class NearMiss(SpecModel):
    """The plan that comes closest where none fits, and the rules it breaks."""

    description: str
    broken_rules: tuple[BrokenRule, ...]
    memory: StageMemory | None = Field(None, description="Memory of its fullest stage.")
    is_asked: bool = Field(
        False,
        exclude=True,
        description="Whether it is the plan as asked for, whose numbers do not add up.",
    )
    plan: Plan | None = Field(
        None, exclude=True, description="None if not every field of it is known."
    )
    state_gib: float | None = Field(
        None, description="Weights, gradients and optimizer of all GPUs together."
    )


class SafetyChoice(SpecModel):
    """The plan to run at another risk of running out of memory."""

    oom_risk: float
    step_s: float | None = Field(description="None if no plan is that safe.")
    plan: Plan | None = None
    is_proven: bool = Field(
        True, description="Whether it is proven to be the plan to run at this risk."
    )


class KindResult(SpecModel):
    """The fastest plan of one kind, or the nearest miss if no plan of the kind fits."""

    kind: str
    best: PricedPlan | None = None
    is_proven: bool = Field(True, description="Whether no plan of the kind is faster.")
    bound_s: float | None = Field(
        None, description="Where that is not proven: no plan of the kind takes less."
    )
    near_miss: NearMiss | None = None


class PricedArrangement(SpecModel):
    """A way to lay a job over unlike parts, and the step time of its best plan."""

    sentence: str
    step_s: float | None = Field(description="None where no plan fits.")
    doubted_s: float | None = Field(
        None,
        description="Its step with what is doubted of it, where ways are compared by "
        "that: its best plan then has the least.",
    )


JSON_ORDER = (
    *("spec", "status", "open", "claim", *TRAINING.names, "bound_s", "gap", "solver"),
    *("fastest", "simplicity", "published", "highest_mfu", "near", "others"),
    *("arrangements", "by_kind", "safety", "levers", "rival", "band", "runner_up"),
    *("near_miss", "conflict", "repair", "left_open"),
    *("framework_limits", "solved_model", "run"),
    *("gpus", "model", "versions"),
)
"""Names in the JSON of an outcome, in their order."""

ALONE = ("open", "conflict", "repair", "framework_limits", "solved_model")
"""Fields in the JSON of an outcome that an explanation does not repeat."""


class Outcome(Result):
    """The answer to one spec of training.

    Example:
        >>> import meshwright as mw
        >>> outcome = mw.solve(mw.load("llama3-8b-2xa100-pcie"))
        >>> outcome.status, outcome.best.plan.pp, outcome.certificate.gap
        ('optimal', 2, 0.0)
        >>> mw.Outcome.from_json(outcome.to_json()).best == outcome.best
        True
    """

    title: str = Field("", exclude=True, description="The question in one line.")
    status: Status = Field(
        description="optimal: proven; feasible: a plan, but no proof; infeasible: none "
        "exists; unknown: stopped before either."
    )
    is_stopped: bool = Field(
        False,
        exclude=True,
        description="Whether the time limit or an interrupt stopped it.",
    )
    arrangements: tuple[PricedArrangement, ...] = Field(
        (), description="Ways to use unlike parts, the best first."
    )
    open: OpenAnswer | None = Field(
        None,
        exclude=True,
        description="The machines and batch chosen among those left open.",
    )
    best: PricedPlan | None = Field(None, description="The recommended plan.")
    fastest: PricedPlan | None = Field(
        None, description="The fastest plan, if the recommended plan is a simpler one."
    )
    simplicity: Simplicity | None = Field(
        None, description="How the recommended plan is simpler than the fastest."
    )
    published: PublishedPlan | None = Field(
        None, description="The plan that a maker publishes for this job, if one does."
    )
    highest_mfu: HighestMfu | None = Field(
        None,
        description="The highest MFU that was published, if the recommended plan is "
        "claimed to have a higher one.",
    )
    others: tuple[PricedPlan, ...] = Field(
        (), description="The next best plans, if asked for."
    )
    by_kind: tuple[KindResult, ...] = Field(
        (), description="The fastest plan of each kind."
    )
    safety: tuple[SafetyChoice, ...] = Field(
        (), description="The fastest plans at other risks of running out of memory."
    )
    levers: tuple[PricedLever, ...] = Field(
        (),
        description="Switches of the framework that gain on the recommended plan, the "
        "best first.",
    )
    near: NearPlans | None = Field(
        None, description="Every plan near the fastest, if that was asked for."
    )
    rival: Rival | None = None
    band: Band | None = None
    runner_up: RunnerUp | None = None
    near_miss: NearMiss | None = None
    conflict: Conflict | None = Field(
        None,
        exclude=True,
        description="If no plan fits: a smallest set of constraints that no plan keeps "
        "together. None if it was not looked for.",
    )
    repair: Repair | None = Field(
        None,
        exclude=True,
        description="If no plan fits: the edits after which one does, that ask least "
        "of a person. None if none is known.",
    )
    left_open: str = Field(
        "",
        description="The part left undecided, if it is unknown whether a plan exists.",
    )
    certificate: Certificate | None = None
    framework_limits: FrameworkLimits | None = Field(
        None,
        exclude=True,
        description="The cost of each limit of the framework, if asked for.",
    )
    solved_model: SolvedModel | None = Field(
        None, exclude=True, description="The model that chose the plan, if asked for."
    )
    run: RunReport | None = Field(None, description="If the spec describes a run.")
    cluster: Cluster | None = Field(
        None, exclude=True, description="The cluster that the best plan runs on."
    )
    capacity_gib: float = Field(description="Memory of a GPU that a plan may use.")
    gpus: int
    model: ModelSize | None = Field(None, description="The size of the model.")
    versions: dict[str, str] = Field(
        default_factory=dict, description="Versions of Meshwright and OR-Tools."
    )

    @property
    def optimum(self) -> PricedPlan | None:
        """Return the fastest plan: the recommended one, unless that is simpler."""
        return self.fastest or self.best

    def to_dict(self) -> dict[str, Any]:
        """Return the data that `solve --format json` prints.

        The fields of the best plan stand at its top. What there is nothing to say about
        is left out.
        """
        told = self.model_dump(mode="json", exclude={"best", "certificate", "others"})
        beside = {name: _dumped(getattr(self, name)) for name in ALONE}
        solved: dict[str, Any] = {}
        if self.best is not None and self.certificate is not None:
            solved = {
                "claim": proof_claim(self),
                **solved_json(self.best, self.certificate, TRAINING, self.capacity_gib),
                "others": [self._plan_json(other) for other in self.others],
            }
        fields = {
            **told,
            **beside,
            **solved,
            "spec": self.title,
            "fastest": self.fastest and self._plan_json(self.fastest),
            "by_kind": [self._kind_json(kind) for kind in self.by_kind],
            "arrangements": told["arrangements"] or None,
        }
        always = ("rival", "near_miss")
        return {
            name: fields[name]
            for name in JSON_ORDER
            if name in solved or name in always or fields.get(name) not in (None, "")
        }

    def _plan_json(self, plan: PricedPlan) -> dict[str, Any]:
        return plan_json(plan, TRAINING, self.capacity_gib)

    def _kind_json(self, result: KindResult) -> dict[str, Any]:
        best = result.best and self._plan_json(result.best)
        data = {
            "kind": result.kind,
            "best": best,
            "near_miss": _dumped(result.near_miss),
        }
        return data if result.bound_s is None else {**data, "bound_s": result.bound_s}

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the outcome that was printed as a JSON text.

        `to_dict` of it is the same data again. What is not printed has its default:
        `cluster`, whether kinds are proven, and `capacity_gib` where no plan fits,
        which is 0 then.

        Raises:
            SpecError: the text is no JSON, or is another kind of answer.
        """
        data = read_answer(text, cls.__name__, JSON_ORDER)
        try:
            fields = answer_fields(data, TRAINING)
            others = data.get("others") or ()
            fields["others"] = [plan_fields(other, TRAINING) for other in others]
            fields["by_kind"] = [_kind_fields(kind) for kind in data["by_kind"]]
            if data.get("fastest") is not None:
                fields["fastest"] = plan_fields(data["fastest"], TRAINING)
            return cls.model_validate(fields)
        except (ValueError, KeyError, TypeError) as error:
            raise refused(cls.__name__, error) from None


def _kind_fields(data: dict[str, Any]) -> dict[str, Any]:
    best = data["best"]
    return {
        **data,
        "best": best and plan_fields(best, TRAINING),
        "is_proven": data.get("bound_s") is None,
    }


def _dumped(part: SpecModel | None) -> dict[str, Any] | None:
    return None if part is None else part.model_dump(mode="json")
