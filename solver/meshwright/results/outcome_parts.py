"""Parts of the answer to a spec of training, beside the plans themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import Field, computed_field, model_validator

from meshwright.plans.plan import Plan
from meshwright.plans.rule import BrokenRule
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.result import Status
from meshwright.spec.base import SpecModel
from meshwright.spec.goals import Criterion
from meshwright.spec.plan_fields import Value
from meshwright.spec.training import ExpertDispatch, Numbers

Verdict = Literal["solved", "bounded", "none_fits", "undecided"]

Changes = Literal[
    "flag", "plan", "training", "machines", "hardware", "adapters", "safety"
]


class PublishedPlan(SpecModel):
    """The plan that a maker publishes for the model on such GPUs, at its price here."""

    source: str
    gpus: int = Field(description="GPUs that it is published for.")
    plan: str = Field(description="What is published of it, as `--plan` reads it.")
    gradients: Literal["bf16", "fp32"] | None = Field(
        None, description="The precision of its gradients, where that is published."
    )
    expert_dispatch: ExpertDispatch | None = Field(
        None,
        description="How it sends tokens to experts, where the spec does so otherwise.",
    )
    tokens_per_s_per_gpu: float | None = Field(
        None, description="The rate that was measured, where that is published."
    )
    measured_s: float | None = Field(
        None,
        description="Seconds of a step that were measured, where the spec has as many "
        "GPUs and sequences.",
    )
    priced: PricedPlan | None = Field(
        description="The plan on the GPUs of the spec, with gradients and dispatch as "
        "published; what is not published of it is chosen. None if it does not fit."
    )
    broken_rules: tuple[BrokenRule, ...] = Field(
        (), description="The rules that it breaks here, if it does not fit."
    )
    is_for_job: bool = Field(
        False,
        description="Whether GPUs and sequences of each are nearly those of the spec, "
        "so that other degrees or another ZeRO stage are doubted.",
    )
    is_risky: bool = Field(
        False, description="Whether it is less likely to fit than a plan has to be."
    )
    asks_for: tuple[str, ...] = Field(
        (),
        description="What its price takes as published and the spec has not, as "
        "`--set` reads it.",
    )


class HighestMfu(SpecModel):
    """The highest MFU that was published of a GPU, by the FLOPs that we count."""

    gpu: str
    precision: str
    kin: str = Field(description="Kind of the frameworks.")
    has_experts: bool
    runs: int = Field(description="Runs of this kind that were published.")
    mfu: float
    source: str


class NearValue(SpecModel):
    """A value of a decision that some of the plans have."""

    value: Value
    plans: int = Field(description="Number of plans with this value.")
    loss: float = Field(
        description="Extra step time of the fastest plan with this value, as a share."
    )


class NearDecision(SpecModel):
    """One decision, and its values in the plans."""

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
        description="Step time with its best mesh and split of layers; with the best "
        "known ones if CP-SAT's effort was spent before a proof."
    )


class NearPlans(SpecModel):
    """Every plan within a share of the fastest step time, meshes and splits aside."""

    within: float = Field(description="Share of the fastest step time.")
    count: int
    is_proven: bool = Field(description="Whether no other plan is within.")
    decisions: tuple[NearDecision, ...]
    plans: tuple[NearPlan, ...] = Field(description="The fastest first.")


LEVER_EFFECTS: dict[Numbers, str] = {
    "nothing": "the same numbers",
    "rounding": "other rounding",
    "optimizer": "another optimizer",
    "weights": "frozen weights in 4 bits",
    "trained": "fewer weights trained",
}
"""The change of a framework's switch to the numbers of training, in words."""


class PricedLever(SpecModel):
    """A switch that the framework offers, and what it gains on a plan as it is."""

    switch: str = Field(description="Its path below `training`.")
    edit: str = Field(description="The edit of the spec.")
    option: str = Field(description="What the launch, or the training script, says.")
    numbers: Numbers = Field(
        description="What it changes in the numbers of training: the order of sums at "
        "most, the rounding, how the optimizer converges, or the frozen weights."
    )
    source: str = Field(description="Where it was read, with the version.")
    step_s: float
    gain: float = Field(description="More tokens a second, as a share.")
    memory_gib: float = Field(description="Memory of the fullest GPU then.")
    freed_gib: float = Field(description="How much less that is than without it.")
    fits: bool = Field(description="Whether the plan keeps every rule then.")


class DecisionCost(SpecModel):
    """The cost of one decision of a plan, over all plans near the fastest."""

    name: str
    value: Value
    loss: float | None = Field(
        description="Extra step time of the fastest plan with this value, as a "
        "share; none if no near plan has it: it costs more than `near.within`."
    )
    otherwise: float | None = Field(
        description="The same for the fastest plan with any other value."
    )


class Choice(SpecModel):
    """One choice of the numbers that a spec leaves open, and its proven step time."""

    number: int = Field(description="Its place among the choices of the spec, from 0.")
    machine: str = Field(description="The topology.")
    count: int = Field(description="Number of machines.")
    gpus: int
    global_batch: int
    verdict: Verdict = Field(
        description="solved: its best plan is proven; bounded: a lower bound shows "
        "that it is not better; none_fits: it has no plan; undecided: time ran out."
    )
    step_s: float | None = Field(
        None,
        description="Step time of its fastest plan, or of that of the least doubted "
        "step, if solved.",
    )
    doubted_s: float | None = Field(
        None,
        description="The step of that plan with what is doubted of it, if choices are "
        "compared by that.",
    )
    bound_s: float = Field(
        0.0,
        description="Lower bound on what is compared: on its steps, or on its doubted "
        "steps.",
    )
    level: str | None = Field(
        None,
        description="The first level of the objective in which it differs from the "
        "chosen one.",
    )
    loss: float | None = Field(
        None, description="Least loss against the chosen one by that level, as a share."
    )


class ClosedChoices(SpecModel):
    """How the choices of an open spec were closed."""

    solved: int = Field(description="Choices whose best plan is proven.")
    bounded: int = Field(
        description="Choices that a lower bound shows to be no better."
    )
    none_fits: int = Field(description="Choices without a plan.")
    undecided: int = Field(0, description="Choices that were not decided in time.")

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> ClosedChoices:
        """Return how choices with these verdicts were closed."""
        counts = Counter(verdicts)
        return cls(**{name: counts[name] for name in get_args(Verdict)})


class NextValue(SpecModel):
    """Step time and loss at another value of an open field."""

    field: str = Field(description="cluster.count or training.global_batch.")
    value: int
    is_allowed: bool = Field(description="Whether the spec allows it.")
    step_s: float | None = Field(
        description="Step time of its fastest plan; None without one."
    )
    level: str | None = Field(
        None, description="The first level of the objective in which the two differ."
    )
    loss: float | None = Field(
        None, description="How much worse it is than the chosen value, as a share."
    )

    @property
    def binds(self) -> bool:
        """Return whether the answer would be better if the spec allowed the value."""
        return not self.is_allowed and self.loss is not None and self.loss < 0


class OpenAnswer(SpecModel):
    """The chosen values of an open spec, and how the other choices were closed."""

    fields: tuple[str, ...] = Field(description="The fields that the spec leaves open.")
    levels: tuple[str, ...] = Field(
        description="The levels of the objective by which choices are compared."
    )
    chosen: Choice | None = Field(description="None where no choice has a plan.")
    choices: tuple[Choice, ...] = Field(description="All, the fewest GPUs first.")
    closed: ClosedChoices = Field(description="How they were closed.")
    impossible: int = Field(
        0, description="Choices that another field of the spec rules out."
    )
    why_impossible: str = Field(
        "", description="The reason why the first of them is ruled out."
    )


class LiftedLimit(SpecModel):
    """The best plan without one limit of a framework, or without all of them."""

    limit: str = Field(
        description="Name of the limit among broken rules; `all` for all limits."
    )
    sentence: str
    status: Status = Field(description="Status of the solve without the limit.")
    step_s: float | None = Field(
        None, description="Step time without the limit; None where no plan is known."
    )
    costs: float | None = Field(
        None,
        description="How much longer the step is under the limit, as a share of "
        "`step_s`; a lower bound if `status` is `feasible`. None if a step time is "
        "not known.",
    )
    plan: Plan | None = Field(
        None, description="The best plan without the limit, if it is faster."
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
    """How the recommended plan is simpler than the fastest, and what that costs."""

    loss: float = Field(
        description="Extra step time over the fastest plan, as a share."
    )
    criterion: Criterion = Field(
        description="The first criterion in which the two differ."
    )
    techniques: tuple[str, ...] = Field(
        description="Techniques of the recommended plan beyond data parallelism."
    )
    fastest_techniques: tuple[str, ...] = Field(
        description="Techniques of the fastest plan."
    )


class ModelSize(SpecModel):
    """Parameters of a model, all of them and those that a token uses."""

    name: str
    params: int = Field(description="All parameters.")
    active_params: int = Field(
        description="Parameters that one token uses: top_k of the routed experts."
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
        None,
        description="Rows that this constraint excludes by itself; None if not "
        "counted.",
    )


class SolvedModel(SpecModel):
    """The model that chose the plan.

    Each row is one complete set of decisions. A separate exact search splits the layers
    of a row over its stages; its results are cuts of this model.
    """

    rows: int
    decisions: tuple[ModelDecision, ...]
    quantities: tuple[ModelQuantity, ...]
    constraints: tuple[ModelConstraint, ...]
    objectives: tuple[str, ...] = Field(
        description="The minimised quantities, the most important first."
    )
    cuts: int = Field(
        description="Rows whose best split was proven and returned to the model as a "
        "cut."
    )


class Constraint(SpecModel):
    """A decision (pin, limit or capacity), or a rule of the framework."""

    rule: str = Field(description="Its name.")
    sentence: str
    arithmetic: str = Field(
        "", description="The values with which a plan breaks the rule."
    )
    source: str = Field("", description="Where a rule was read.")
    fails_with: str = Field(
        "", description="Error of the framework for a plan that breaks the rule."
    )

    def __str__(self) -> str:
        """Return the constraint in one line."""
        numbers = f" ({self.arithmetic})" if self.arithmetic else ""
        return f"{self.rule}: {self.sentence}{numbers}"


class Conflict(SpecModel):
    """A smallest set of constraints that no plan keeps together."""

    rules: tuple[Constraint, ...] = Field(
        description="First the decisions, then the rules of the framework that make "
        "them conflict."
    )
    is_minimal: bool = Field(
        description="Whether there is a plan once any single decision is dropped."
    )
    witness: str = Field("", description="The plan that comes closest.")


class Repair(SpecModel):
    """Edits of the spec after which a plan exists, and the plan to run then."""

    edits: tuple[str, ...]
    step_s: float
    price: float = Field(
        0.0, description="How much longer the step takes than `against`, as a share."
    )
    against: Literal["the fastest plan", "the fastest repair"] = Field(
        "the fastest plan",
        description="The reference for `price`: the fastest plan, or the fastest "
        "repair if the spec has no plan.",
    )
    plan: Plan
    changes: Changes = Field(
        "plan",
        description="The kind of change, in the order of what it asks of a person: a "
        "switch of the framework that leaves the numbers of training as they are, the "
        "plan, other numbers in training, more machines of the same kind, other "
        "hardware, training adapters alone; less safety costs only runs that fail.",
    )
    note: str = Field("", description="A remark on the edits.")

    @model_validator(mode="before")
    @classmethod
    def _leave_out_the_sentence(cls, data: Any) -> Any:
        """Return the fields without the sentence that JSON has beside them."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if name != "sentence"}

    @computed_field(description="The repair in one line.")  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """Return the repair in one line."""
        note = f" ({self.note})" if self.note else ""
        price = price_text(self.price, self.against)
        return f"{' and '.join(self.edits)}{note}: {self.step_s:.4g} s a step, {price}"


def price_text(price: float, against: str) -> str:
    """Return the price of a repair in words; the fastest one has none."""
    is_fastest = price == 0 and against == "the fastest repair"
    return against if is_fastest else f"{1 + price:.2f} times {against}"


State = Literal["best", "near", "slower", "memory"]
"""State of a dot: it has the best plan; some skeleton may be within the tolerance of
the fastest plan; all skeletons that fit are slower; none fits in memory."""

Fields = Mapping[str, Value]
"""Values of plan fields by name."""


@dataclass(frozen=True)
class Dot:
    """Skeletons that share the fields by which a map tells them apart."""

    state: State
    fields: Fields
    """Plan fields of the skeleton that represents the dot: of those that fit the one
    with the least bound, or else one that needs little memory."""
    techniques: str
    """Techniques of that skeleton, such as 'TP + PP'."""
    skeletons: int
    """Number of skeletons in the dot, on all meshes."""
    step_s: float
    """Lower bound on their step time; the step time of the best plan in its dot. The
    bound ignores memory if none of them fits."""
    is_exact: bool
    """Whether `step_s` is the time of a plan, not a bound."""
    memory_gib: float
    """Memory of the fullest GPU of the representing skeleton, with a split of layers
    that fits, or else with the split that needs the least memory."""


@dataclass(frozen=True)
class Refusal:
    """Degrees that one rule refuses before anything is priced."""

    rule: str
    sentence: str
    count: int
    examples: tuple[Fields, ...]
    """Some of the degrees, or all if they are few."""


@dataclass(frozen=True)
class LatticeMap:
    """The fate of the skeletons of a lattice, as dots."""

    skeletons: int
    """Legal skeletons, on all meshes."""
    dots: tuple[Dot, ...]
    shared: tuple[str, ...]
    """Fields that the skeletons of a dot share; empty if each dot is one skeleton on
    all its meshes."""
    refusals: tuple[Refusal, ...]
    usable_gib: float
    within: float
    """Share of the fastest step time within which a dot is near."""
    has_open_rules: bool
    """Whether limits on links, or rules on splits of layers, are left out of bounds."""
    is_of_parts: bool = False
    """Whether it shows only the best plan's way to use a cluster of unlike parts."""
