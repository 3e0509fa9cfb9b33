"""The JSON of a solved spec: the fields of the best plan stand at its top."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from meshwright.plans.plan import Plan
from meshwright.results.claims import proof_claim
from meshwright.results.outcome import (
    Certificate,
    Counts,
    KindResult,
    NearMiss,
    Outcome,
    Rival,
    SafetyChoice,
)
from meshwright.results.outcome_parts import (
    FrameworkLimits,
    ModelSize,
    NearPlans,
    OpenAnswer,
    Simplicity,
    SolvedModel,
)
from meshwright.results.priced_plan import LinkLoad, PricedPlan, StageMemory
from meshwright.results.result import Status, require_all_or_none
from meshwright.results.training_run import RunReport
from meshwright.spec.base import NOT_EMPTY, SpecModel
from meshwright.spec.run_before import Familiarity


class PrintedMemory(SpecModel):
    """Memory of the GPUs of a plan."""

    peak_gib: float = Field(description="Memory of the fullest GPU.")
    capacity_gib: float = Field(description="Memory of a GPU that a plan may use.")
    fit_probability: float = Field(description="Probability that the plan fits.")
    stages: Annotated[tuple[StageMemory, ...], NOT_EMPTY]


class PrintedTime(SpecModel):
    """The step of a plan, by its parts."""

    step_s: float
    parts: dict[str, float]
    schedule_s: float = Field(
        description="Step time by the task graph of the schedule."
    )


class PrintedPlan(SpecModel):
    """A plan with its time, memory and link loads."""

    step_s: float
    plan: Plan
    time: PrintedTime
    memory: PrintedMemory
    links: tuple[LinkLoad, ...] = Field(
        description="The most loaded link of each phase."
    )
    all_links: tuple[LinkLoad, ...]
    link_utilisation: float = Field(
        description="Share of the step for which the busiest link is busy."
    )
    mfu: float
    tokens_per_s_per_gpu: float
    familiarity: Familiarity | None = Field(
        None, description="How near the plan is to what was run, where runs are known."
    )

    @classmethod
    def of(cls, priced: PricedPlan, capacity_gib: float) -> Self:
        """Return a plan in the form that is printed."""
        return cls(
            step_s=priced.step_s,
            plan=priced.plan,
            time=PrintedTime(
                step_s=priced.step_s,
                parts=priced.time_parts,
                schedule_s=priced.schedule_s,
            ),
            memory=PrintedMemory(
                peak_gib=priced.peak_gib,
                capacity_gib=capacity_gib,
                fit_probability=priced.fit_probability,
                stages=priced.stages,
            ),
            links=priced.links,
            all_links=priced.all_links,
            link_utilisation=priced.link_utilisation,
            mfu=priced.mfu,
            tokens_per_s_per_gpu=priced.tokens_per_s_per_gpu,
            familiarity=priced.familiarity,
        )

    @property
    def priced(self) -> PricedPlan:
        """Return the plan as it was priced."""
        return PricedPlan(
            plan=self.plan,
            step_s=self.step_s,
            time_parts=self.time.parts,
            schedule_s=self.time.schedule_s,
            stages=self.memory.stages,
            links=self.links,
            all_links=self.all_links,
            link_utilisation=self.link_utilisation,
            mfu=self.mfu,
            tokens_per_s_per_gpu=self.tokens_per_s_per_gpu,
            familiarity=self.familiarity,
        )


class PrintedCertificate(SpecModel):
    """The certificate without the bound and the gap, which stand beside it."""

    objective: str
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
        description="Largest share of the fastest step time that may be given up for "
        "a simpler plan.",
    )
    tolerance_from: str = Field("", description="Where the tolerance comes from.")
    is_simplest: bool = Field(
        True, description="Whether no plan within the tolerance is simpler."
    )
    doubt: float = Field(
        0.0,
        description="Share of the step that is doubted for every decision beyond what "
        "was run.",
    )


class PrintedKind(SpecModel):
    """The fastest plan of one kind, or the nearest miss if none fits."""

    kind: str
    best: PrintedPlan | None
    near_miss: NearMiss | None
    bound_s: float | None = Field(
        None,
        description="Only where the plan is not proven to be the fastest of its kind: "
        "none of the kind takes less.",
    )


class PrintedOutcome(SpecModel):
    """The answer to one spec of training; without the plan's fields if no plan fits.

    `solve --format json` prints it.
    """

    spec: str = Field(description="The question in one line.")
    status: Status
    open: OpenAnswer | None = Field(
        None, description="The machines and batch chosen among those left open."
    )
    claim: str = Field(
        "",
        description="The proven claims about the recommended and the fastest plan.",
    )
    step_s: float | None = None
    plan: Plan | None = None
    time: PrintedTime | None = None
    memory: PrintedMemory | None = None
    links: tuple[LinkLoad, ...] | None = Field(
        None, description="The most loaded link of each phase."
    )
    all_links: tuple[LinkLoad, ...] | None = None
    link_utilisation: float | None = Field(
        None, description="Share of the step for which the busiest link is busy."
    )
    mfu: float | None = None
    tokens_per_s_per_gpu: float | None = None
    familiarity: Familiarity | None = Field(
        None, description="How near the plan is to what was run, where runs are known."
    )
    bound_s: float | None = Field(
        None, description="Proven lower bound on the step time of every plan."
    )
    gap: float | None = None
    solver: PrintedCertificate | None = None
    fastest: PrintedPlan | None = Field(
        None, description="The fastest plan, if this one is simpler."
    )
    simplicity: Simplicity | None = Field(
        None, description="How this plan is simpler than the fastest."
    )
    near: NearPlans | None = Field(
        None, description="Every plan near the fastest, with `--near`."
    )
    others: tuple[PrintedPlan, ...] | None = Field(
        None, description="The next best plans, if they were asked for."
    )
    by_kind: tuple[PrintedKind, ...]
    safety: tuple[SafetyChoice, ...] = Field(
        (), description="The fastest plans at other risks of running out of memory."
    )
    rival: Rival | None
    near_miss: NearMiss | None
    left_open: str = Field(
        "", description="The part left undecided, if the status is unknown."
    )
    framework_limits: FrameworkLimits | None = Field(
        None, description="The cost of each limit of the framework, with `--ideal`."
    )
    solved_model: SolvedModel | None = Field(
        None, description="The model that chose the plan, with `--show-model`."
    )
    run: RunReport | None = Field(
        None, description="The report on the run, if the spec asks for one."
    )
    gpus: int
    model: ModelSize | None = Field(None, description="The size of the model.")
    versions: dict[str, str]

    @model_validator(mode="after")
    def _check_plan(self) -> Self:
        always = [name for name in PLAN_FIELDS if name != "familiarity"]
        require_all_or_none(self, (*always, "bound_s", "gap", "solver"))
        return self


PLAN_FIELDS = tuple(PrintedPlan.model_fields)


def printed_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return the JSON data of an outcome."""
    capacity_gib = outcome.capacity_gib
    fields: dict[str, Any] = {"spec": outcome.title, "status": outcome.status}
    best, certificate = outcome.best, outcome.certificate
    if best is not None and certificate is not None:
        fields |= dict(PrintedPlan.of(best, capacity_gib))
        fields |= {"bound_s": certificate.bound_s, "gap": certificate.gap}
        fields["claim"] = proof_claim(outcome)
        rest = certificate.model_dump(exclude={"bound_s", "gap"})
        fields["solver"] = PrintedCertificate.model_validate(rest)
        others = (PrintedPlan.of(plan, capacity_gib) for plan in outcome.others)
        fields["others"] = tuple(others)
    if outcome.near is not None:
        fields["near"] = outcome.near
    if outcome.fastest is not None:
        fields["fastest"] = PrintedPlan.of(outcome.fastest, capacity_gib)
        fields["simplicity"] = outcome.simplicity
    if outcome.framework_limits is not None:
        fields["framework_limits"] = outcome.framework_limits
    if outcome.left_open:
        fields["left_open"] = outcome.left_open
    if outcome.solved_model is not None:
        fields["solved_model"] = outcome.solved_model
    if outcome.open is not None:
        fields["open"] = outcome.open
    if outcome.model is not None:
        fields["model"] = outcome.model
    if outcome.run is not None:
        fields["run"] = outcome.run
    printed = PrintedOutcome(
        by_kind=tuple(_kind(kind, capacity_gib) for kind in outcome.by_kind),
        safety=outcome.safety,
        rival=outcome.rival,
        near_miss=outcome.near_miss,
        gpus=outcome.gpus,
        versions=outcome.versions,
        **fields,
    )
    data = printed.model_dump(mode="json")
    for kind in data["by_kind"]:
        if kind["bound_s"] is None:
            del kind["bound_s"]
    return {
        name: value for name, value in data.items() if name in printed.model_fields_set
    }


def _kind(result: KindResult, capacity_gib: float) -> PrintedKind:
    best = PrintedPlan.of(result.best, capacity_gib) if result.best else None
    return PrintedKind(
        kind=result.kind,
        best=best,
        near_miss=result.near_miss,
        bound_s=result.bound_s,
    )


def outcome_fields(printed: PrintedOutcome) -> dict[str, Any]:
    """Return the fields of the outcome that was printed."""
    memory, others = printed.memory, printed.others or ()
    kinds = (
        KindResult(
            kind=kind.kind,
            best=kind.best.priced if kind.best else None,
            near_miss=kind.near_miss,
            is_proven=kind.bound_s is None,
            bound_s=kind.bound_s,
        )
        for kind in printed.by_kind
    )
    return {
        "title": printed.spec,
        "status": printed.status,
        "best": _best(printed),
        "fastest": printed.fastest.priced if printed.fastest else None,
        "simplicity": printed.simplicity,
        "near": printed.near,
        "open": printed.open,
        "others": tuple(other.priced for other in others),
        "by_kind": tuple(kinds),
        "safety": printed.safety,
        "rival": printed.rival,
        "near_miss": printed.near_miss,
        "left_open": printed.left_open,
        "certificate": _certificate(printed),
        "framework_limits": printed.framework_limits,
        "solved_model": printed.solved_model,
        "run": printed.run,
        "capacity_gib": memory.capacity_gib if memory else 0.0,
        "gpus": printed.gpus,
        "model": printed.model,
        "versions": printed.versions,
    }


def _best(printed: PrintedOutcome) -> PricedPlan | None:
    if printed.plan is None:
        return None
    fields = {name: getattr(printed, name) for name in PLAN_FIELDS}
    return PrintedPlan.model_validate(fields).priced


def _certificate(printed: PrintedOutcome) -> Certificate | None:
    if printed.solver is None:
        return None
    return Certificate.model_validate(
        {**dict(printed.solver), "bound_s": printed.bound_s, "gap": printed.gap}
    )
