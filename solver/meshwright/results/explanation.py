"""An explanation of a spec or a plan, as data; `report` makes the sentences."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.plans.rule import BrokenRule
from meshwright.results.comparison import Ledger
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import (
    Conflict,
    Constraint,
    DecisionCost,
    NearPlans,
    NextValue,
    OpenAnswer,
    PricedLever,
    Repair,
)
from meshwright.results.priced_plan import PricedPlan, StageMemory
from meshwright.results.result import Result
from meshwright.spec.base import SpecModel
from meshwright.spec.cluster import Cluster

Verdict = Literal[
    "fits", "does_not_fit", "optimal", "feasible", "infeasible", "unknown"
]

Origin = Literal["given", "follows", "chosen"]


class Rank(SpecModel):
    """The rank of a plan among all skeletons that fit; 1 is the fastest.

    It is known to lie between two numbers.
    """

    first: int = Field(description="The best rank that is possible.")
    last: int = Field(description="The worst rank that is possible.")
    of: int = Field(description="Skeletons that fit, on their best mesh and split.")
    beaten: float = Field(description="Least share of them that are slower.")


class JudgedField(SpecModel):
    """A field of the plan that is judged, and who decided it."""

    name: str
    value: str = Field(description="As `--plan` reads it.")
    origin: Origin = Field(
        description="Whether the spec or the plan asked about gives it, it follows "
        "from other fields, or Meshwright chose it."
    )


class NearestPlan(SpecModel):
    """The plan that fits and differs in the fewest fields from what was asked for."""

    text: str = Field(description="The plan as `--plan` reads it.")
    changes: tuple[str, ...] = Field(description="Edits of the fields asked for.")
    kept: tuple[str, ...] = Field((), description="The fields that are as asked for.")
    step_s: float
    price: float = Field(
        description="How much longer the step takes than `against`, as a share."
    )
    against: Literal["the fastest plan", "the fastest repair"] = "the fastest plan"
    plan: Plan


class GapToBest(SpecModel):
    """How much longer a plan's step takes than that of the fastest plan."""

    terms: dict[str, float] = Field(description="Seconds by part of the step.")
    step_s: float = Field(description="Seconds of the whole step.")


class Shares(SpecModel):
    """How much of a layer each GPU has, and how much of the model each stage."""

    heads: float
    kv_heads: float
    d_ff: float = Field(description="Inner width of the MLP, or of an expert.")
    experts: float = Field(description="Routed experts; 0 where there are none.")
    layers: tuple[int, int] = Field(description="Fewest and most layers of a stage.")
    bubble: float = Field(description="Share of the step that is bubble.")


class OtherDegree(SpecModel):
    """The best plan at another degree of an axis, with all else chosen anew."""

    degree: int
    plan: Plan | None = Field(None, description="None where no plan fits.")
    step_s: float | None = None
    doubted_s: float | None = Field(
        None, description="The doubted step, where plans are compared by it."
    )
    beyond: tuple[str, ...] = Field(
        (), description="Decisions of the plan beyond the nearest known runs."
    )
    bound_s: float | None = Field(
        None,
        description="Where the plan was constructed, and is not proven to be the "
        "best: no plan with the degree takes less, doubts included where compared.",
    )
    gap: GapToBest | None = None
    shares: Shares | None = None
    links: dict[str, str] = Field(
        default_factory=dict, description="The most loaded link, by part of the step."
    )
    rules: tuple[Constraint, ...] = Field(
        (),
        description="If no plan fits: the constraints that conflict with the degree.",
    )


class AxisDegrees(SpecModel):
    """The degree of one axis, and the best plans at its other degrees."""

    axis: Literal["tp", "pp", "cp", "dp"]
    degree: int
    is_pinned: bool
    link: str = Field(
        "", description="The most loaded link of the groups of this axis."
    )
    others: tuple[OtherDegree, ...]


class DegreeReasons(SpecModel):
    """The reasons for the degrees of the recommended plan, or of the fastest."""

    shares: Shares
    axes: tuple[AxisDegrees, ...]
    tolerance: float | None = Field(
        None,
        description="Share of the least doubted step within which the plan is the "
        "simplest, and was recommended; null where it is the fastest.",
    )


class Change(SpecModel):
    """The speed of the fastest plan after one change of the spec."""

    change: str
    beside: tuple[str, ...] = Field(
        (),
        description="Degrees that the plan left open, and micro-batches, which follow "
        "from the batch, that change with it.",
    )
    step_s: float | None = Field(description="None where no plan fits.")
    tokens_per_s_per_gpu: float | None = None
    is_proven: bool = Field(
        True,
        description="Whether no plan is faster then. Of over 10^9 skeletons only those "
        "with the same TP and PP are asked after a change of machines or training.",
    )

    @property
    def whole(self) -> str:
        """Return the change with the degrees that change with it."""
        return ", with ".join(filter(None, (self.change, ", ".join(self.beside))))


class Slack(SpecModel):
    """How far a plan is from breaking a rule; rules without numbers just hold."""

    rule: str
    sentence: str
    have: float | None = None
    need: float | None = None
    unit: str = ""
    where: str = Field(
        "", description="The stage or link that is closest to its capacity."
    )


class Explanation(Result):
    """The answer to why.

    Example:
        >>> import meshwright as mw
        >>> told = mw.explain(mw.load("llama3-8b-2x4090-pcie"))
        >>> told.fits, told.conflict.rules[0].rule
        (False, 'memory')
        >>> mw.Explanation.from_json(told.to_json()).repairs == told.repairs
        True
    """

    title: str = Field(description="The question in one line.")
    status: Verdict = Field(
        description="Whether the judged plan fits, or the status of the spec's solve."
    )
    fits: bool = Field(description="Whether the plan asked for, or any, fits.")
    is_stopped: bool = Field(
        False, description="Whether it was interrupted: parts of it are missing then."
    )
    left_open: str = Field(
        "", description="Why parts of the explanation are missing, if some are."
    )
    plan: PricedPlan | None = None
    judged: tuple[JudgedField, ...] = Field(
        (),
        description="The fields of the plan that is judged, or else of the closest "
        "plan. If the numbers asked for contradict each other, the values that "
        "follow from them.",
    )
    broken_rules: tuple[BrokenRule, ...] = ()
    memory: StageMemory | None = Field(
        None, description="The fullest GPU of the plan that comes closest."
    )
    slack: tuple[Slack, ...] = ()
    standing: Rank | None = Field(
        None,
        description="Rank of the plan; only for a plan that fits, and where there are "
        "few enough skeletons to price all.",
    )
    gap: GapToBest | None = Field(
        None, description="Extra time over the fastest plan; only for a plan that fits."
    )
    conflict: Conflict | None = None
    conflict_alone: Conflict | None = Field(
        None,
        description="The conflict in the spec without the plan asked about, if no "
        "other plan fits either; the repairs then repair that spec.",
    )
    repairs: tuple[Repair, ...] = ()
    nearest_plan: NearestPlan | None = Field(
        None, description="Only for a plan that does not fit, while another plan does."
    )
    levers: tuple[PricedLever, ...] = Field(
        (), description="Switches of the framework that gain on the plan, best first."
    )
    best: Outcome | None = Field(
        None, description="The answer to the spec without the plan asked about."
    )
    collectives: Ledger | None = Field(
        None, description="Ledger of the plan, or of the closest one, if asked for."
    )
    cluster: Cluster | None = Field(
        None,
        exclude=True,
        description="The cluster of the plan, or of the closest one.",
    )
    nearest: Plan | None = Field(
        None, exclude=True, description="The plan that comes closest if none fits."
    )
    degrees: DegreeReasons | None = Field(
        None, description="Why the plan has its degrees and no others."
    )
    helps: tuple[Change, ...] = Field(
        (), description="The gain from leaving single fields of the plan open."
    )
    binding: tuple[Change, ...] = Field(
        (), description="The decisions without which the fastest plan would be faster."
    )
    marginal_values: tuple[Change, ...] = ()
    near: NearPlans | None = Field(
        None, description="All plans near the fastest; only for a plan that fits."
    )
    decisions: tuple[DecisionCost, ...] = Field(
        (), description="The cost of each decision of the plan, over the near plans."
    )
    open: OpenAnswer | None = Field(
        None, description="The choice among open numbers; only if the spec has some."
    )
    next_values: tuple[NextValue, ...] = Field(
        (), description="Neighbours of the chosen values of open numbers."
    )

    @property
    def best_of_degrees(self) -> PricedPlan:
        """Return the plan whose degrees are explained."""
        assert self.best
        is_recommended = self.degrees and self.degrees.tolerance is not None
        best = self.best.best if is_recommended else self.best.optimum
        assert best
        return best

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON data, with open numbers only if the spec has some."""
        data = super().to_dict()
        told = ["open", "next_values"] if self.open is None else []
        told += [] if self.left_open else ["left_open"]
        return {name: value for name, value in data.items() if name not in told}
