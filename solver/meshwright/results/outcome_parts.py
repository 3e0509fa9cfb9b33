"""Parts of the answer to a spec of training, beside the plans themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, get_args

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.results.result import Status
from meshwright.spec.base import SpecModel
from meshwright.spec.objective import Criterion
from meshwright.spec.plan_fields import Value


class NearValue(SpecModel):
    """A value of a decision that some of the plans have."""

    value: Value
    plans: int = Field(description="How many of them have it.")
    loss: float = Field(
        description="What the fastest plan with it takes over the fastest of all."
    )


class NearDecision(SpecModel):
    """One decision, and what it is in the plans."""

    name: str
    values: tuple[NearValue, ...] = Field(description="The fastest first.")

    @property
    def is_shared(self) -> bool:
        """Return whether it is the same in all plans."""
        return len(self.values) == 1


class NearPlan(SpecModel):
    """One of the plans, by the decisions that do not depend on mesh and layers."""

    plan: str = Field(description="As `explain --plan` reads it.")
    step_s: float = Field(
        description="Of its best mesh and split of layers; of those that are known, "
        "where CP-SAT's effort was spent before the best were proven."
    )


class NearPlans(SpecModel):
    """Every plan within a share of the fastest step time, meshes and splits aside."""

    within: float = Field(description="Share of the fastest step time.")
    count: int
    is_proven: bool = Field(description="Whether no other plan is within.")
    decisions: tuple[NearDecision, ...]
    plans: tuple[NearPlan, ...] = Field(description="The fastest first.")


class DecisionCost(SpecModel):
    """What one decision of a plan costs, by all plans that are near the fastest."""

    name: str
    value: Value
    loss: float | None = Field(
        description="What the fastest plan with it takes over the fastest of all; "
        "none where no near plan has it, so that it costs more than `near.within`."
    )
    otherwise: float | None = Field(
        description="The same of the fastest plan with any other value."
    )


Verdict = Literal["solved", "bounded", "none_fits", "undecided"]


class Choice(SpecModel):
    """One way to decide what a spec leaves open, and what is proven of it."""

    number: int = Field(description="Its place among the choices of the spec, from 0.")
    machine: str = Field(description="The topology.")
    count: int = Field(description="How many of it.")
    gpus: int
    global_batch: int
    verdict: Verdict = Field(
        description="solved: its fastest plan is proven; bounded: a lower bound shows "
        "that it is not better; none_fits: it has no plan; undecided: time ran out."
    )
    step_s: float | None = Field(None, description="Of its fastest plan, where solved.")
    bound_s: float = Field(0.0, description="No plan of it takes less.")
    level: str | None = Field(
        None,
        description="The level of the objective that sets it and the chosen apart.",
    )
    loss: float | None = Field(
        None, description="How much worse it is by that level at least, as a share."
    )


class ClosedChoices(SpecModel):
    """How the choices of an open spec were closed."""

    solved: int = Field(description="Choices whose fastest plan is proven.")
    bounded: int = Field(
        description="Choices that a lower bound shows to be no better."
    )
    none_fits: int = Field(description="Choices without a plan.")
    undecided: int = Field(0, description="Choices that time ran out on.")

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> ClosedChoices:
        """Return how choices with these verdicts were closed."""
        counts = Counter(verdicts)
        return cls(**{name: counts[name] for name in get_args(Verdict)})


class NextValue(SpecModel):
    """What another value of an open field would give."""

    field: str = Field(description="cluster.count or training.global_batch.")
    value: int
    is_allowed: bool = Field(description="Whether the spec lets it be chosen.")
    step_s: float | None = Field(description="Of its fastest plan; None without one.")
    level: str | None = Field(None, description="The level that sets the two apart.")
    loss: float | None = Field(
        None, description="How much worse it is than the chosen value, as a share."
    )

    @property
    def binds(self) -> bool:
        """Return whether the answer would be better if the spec allowed the value."""
        return not self.is_allowed and self.loss is not None and self.loss < 0


class OpenAnswer(SpecModel):
    """The choice that a plan was found for, and what became of the others."""

    fields: tuple[str, ...] = Field(description="The fields that the spec leaves open.")
    levels: tuple[str, ...] = Field(description="What the choices are compared by.")
    chosen: Choice | None = Field(description="None where no choice has a plan.")
    choices: tuple[Choice, ...] = Field(description="All, the fewest GPUs first.")
    closed: ClosedChoices = Field(description="How they were closed.")
    impossible: int = Field(
        0, description="Choices that another field of the spec rules out."
    )
    why_impossible: str = Field("", description="What rules out the first of them.")


class LiftedLimit(SpecModel):
    """The best plan without one limit of a framework, or without all of them."""

    limit: str = Field(description="Its name among broken rules; `all` for all.")
    sentence: str
    status: Status = Field(description="What is known of the best plan without it.")
    step_s: float | None = Field(
        None, description="Step time without the limit; None where no plan is known."
    )
    costs: float | None = Field(
        None,
        description="By which share of `step_s` the step is longer under the limit; at "
        "least, where `status` is `feasible`. None where a step time is not known.",
    )
    plan: Plan | None = Field(
        None, description="The best plan without the limit, where it gains anything."
    )

    @property
    def gains(self) -> bool:
        """Return whether a faster plan exists without the limit, or the first one."""
        return self.plan is not None

    @property
    def gains_nothing(self) -> bool:
        """Return whether it is proven that the limit costs nothing."""
        return not self.gains and self.status in ("optimal", "infeasible")


class FrameworkLimits(SpecModel):
    """The cost of each limit of a framework, with the framework's kernels and memory.

    Every limit is lifted alone, and then all of them together.
    """

    framework: str = Field(description="Its title.")
    limits: tuple[LiftedLimit, ...] = Field(description="The costliest first.")
    all_lifted: LiftedLimit
    ideal_step_s: float | None = Field(
        None,
        description="Step time under `framework: ideal`, whose kernels, memory and "
        "efficiency differ too. None where no plan is known.",
    )


class Simplicity(SpecModel):
    """In what the recommended plan is simpler than the fastest, and what that costs."""

    loss: float = Field(description="Of the step time, over that of the fastest plan.")
    criterion: Criterion = Field(description="The first in which the two differ.")
    techniques: tuple[str, ...] = Field(
        description="What the recommended plan has beyond data parallelism."
    )
    fastest_techniques: tuple[str, ...] = Field(description="What the fastest has.")


class ModelSize(SpecModel):
    """Parameters of a model, all of them and those that a token uses."""

    name: str
    params: int = Field(description="All parameters.")
    active_params: int = Field(
        description="Those that one token uses: of routed experts, top_k."
    )

    @property
    def text(self) -> str:
        """Return the size in one line."""
        active = ""
        if self.active_params < self.params:
            active = f", {self.active_params:,} of them for a token"
        return f"{self.name} has {self.params:,} parameters{active}"


class ModelDecision(SpecModel):
    """A decision of the plan, and the values that some row of the model has."""

    name: str
    values: tuple[int | str | bool, ...]


class ModelQuantity(SpecModel):
    """A quantity of the plan, and its range over the rows of the model."""

    name: str
    least: float
    most: float
    unit: str


class ModelConstraint(SpecModel):
    """A constraint of the model."""

    name: str
    sentence: str
    equation: str = ""
    leaves_out: int | None = Field(
        None, description="Rows that this constraint alone leaves out, where it is one."
    )


class SolvedModel(SpecModel):
    """The model that chose the plan.

    Each row is one complete set of decisions; the layers of a row are split over its
    stages by an exact search of its own, whose results are cuts of this model.
    """

    rows: int
    decisions: tuple[ModelDecision, ...]
    quantities: tuple[ModelQuantity, ...]
    constraints: tuple[ModelConstraint, ...]
    objectives: tuple[str, ...] = Field(
        description="What is minimised, the most important first."
    )
    cuts: int = Field(description="Rows whose best split was proven and came back.")
