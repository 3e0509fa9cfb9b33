"""What an explanation says, as data; sentences come last."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, computed_field, model_validator

from meshwright.plans.plan import Plan
from meshwright.plans.rule import BrokenRule
from meshwright.results.html_table import Rows
from meshwright.results.ledger import Ledger
from meshwright.results.outcome import Outcome, proof_rows
from meshwright.results.priced_plan import PricedPlan, StageMemory
from meshwright.results.result import Result
from meshwright.spec.base import SpecModel
from meshwright.spec.cluster import Cluster

Verdict = Literal[
    "fits", "does_not_fit", "optimal", "feasible", "infeasible", "unknown"
]


MOST_REPAIRS = 3
"""Repairs in a table for notebooks."""


class Fixed(SpecModel):
    """Something that the user or the hardware has decided."""

    rule: str
    sentence: str


class Conflict(SpecModel):
    """Decisions that cannot hold together, whatever else is decided."""

    rules: tuple[Fixed, ...] = Field(
        description="Decisions first, then rules of the framework that they lean on."
    )
    is_minimal: bool = Field(
        description="Whether without any one of them there is a plan."
    )
    witness: str = Field("", description="The plan that comes closest.")


class Repair(SpecModel):
    """Edits after which a plan exists, and what that plan takes."""

    edits: tuple[str, ...]
    step_s: float
    price: float = Field(0.0, description="More than `against` takes, as a share.")
    against: Literal["the best plan", "the fastest repair"] = Field(
        "the best plan", description="The second where the spec has no plan at all."
    )
    plan: Plan
    changes: Literal["plan", "training", "hardware"] = Field(
        "plan", description="What it takes: a plan is changed for nothing."
    )
    note: str = Field("", description="What else is to know of the edits.")

    @model_validator(mode="before")
    @classmethod
    def _leave_out_the_sentence(cls, data: Any) -> Any:
        """Return the fields without the sentence that JSON has beside them."""
        if not isinstance(data, dict):
            return data
        return {name: own for name, own in data.items() if name != "sentence"}

    @computed_field(description="The repair in one line.")  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """Return the repair in one line."""
        note = f" ({self.note})" if self.note else ""
        price = f"{1 + self.price:.2f} times {self.against}"
        return f"{' and '.join(self.edits)}{note}: {self.step_s:.4g} s a step, {price}"


class Gap(SpecModel):
    """How much longer each part of a step takes than in the best plan, s."""

    terms: dict[str, float]
    step_s: float


class Shares(SpecModel):
    """What the degrees of a plan leave each GPU of a layer, and each stage."""

    heads: float
    kv_heads: float
    d_ff: float = Field(description="Inner width of the MLP, or of an expert.")
    experts: float = Field(description="Routed experts; 0 where there are none.")
    layers: tuple[int, int] = Field(description="Of a stage, at least and at most.")
    bubble: float = Field(description="Of the step.")


class OtherDegree(SpecModel):
    """The best plan with another degree of an axis, all else chosen anew."""

    degree: int
    plan: Plan | None = Field(None, description="None where no plan fits.")
    step_s: float | None = None
    gap: Gap | None = Field(None, description="To the best plan.")
    shares: Shares | None = None
    links: dict[str, str] = Field(
        default_factory=dict, description="Of each part of the step, its fullest link."
    )
    rules: tuple[Fixed, ...] = Field(
        (), description="Where none fits: what clashes with the degree."
    )


class AxisDegrees(SpecModel):
    """The degree of one axis in the best plan, and what others would take."""

    axis: Literal["tp", "pp", "cp", "dp"]
    degree: int
    is_pinned: bool
    link: str = Field("", description="The fullest link of its groups.")
    others: tuple[OtherDegree, ...]


class Degrees(SpecModel):
    """What sets the degrees of the best plan."""

    shares: Shares
    axes: tuple[AxisDegrees, ...]


class Change(SpecModel):
    """What one other choice or one more unit of something would bring."""

    change: str
    step_s: float | None = Field(description="None where no plan fits.")
    tokens_per_s_per_gpu: float | None = None


class Slack(SpecModel):
    """How far a rule is from being broken; one without numbers holds or does not."""

    rule: str
    sentence: str
    have: float | None = None
    need: float | None = None
    unit: str = ""
    where: str = Field("", description="The stage or link that has least left.")


class Standing(SpecModel):
    """Where a plan stands among all ways to split the job that fit, 1 the fastest."""

    first: int = Field(description="No better rank than this.")
    last: int = Field(description="No worse rank than this.")
    of: int = Field(description="Ways that fit, each on its best mesh and split.")
    beaten: float = Field(description="The share of them that are slower, at least.")


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

    title: str
    status: Verdict
    fits: bool
    is_stopped: bool = Field(
        False, description="Whether it was stopped before all of it was worked out."
    )
    plan: PricedPlan | None = None
    broken_rules: tuple[BrokenRule, ...] = ()
    memory: StageMemory | None = Field(
        None, description="Of the fullest GPU of the plan that comes closest."
    )
    slack: tuple[Slack, ...] = ()
    standing: Standing | None = Field(None, description="Of a plan that fits.")
    gap: Gap | None = Field(None, description="Of a plan that fits, to the best one.")
    conflict: Conflict | None = None
    repairs: tuple[Repair, ...] = ()
    best: Outcome | None = Field(None, description="Of the spec without the plan.")
    collectives: Ledger | None = Field(
        None, description="Of the plan, or the nearest one, where it is asked for."
    )
    cluster: Cluster | None = Field(
        None, exclude=True, description="What the plan runs on, or the nearest one."
    )
    nearest: Plan | None = Field(
        None, exclude=True, description="The plan that comes closest where none fits."
    )
    degrees: Degrees | None = Field(
        None, description="Of the best plan: why these and no others."
    )
    helps: tuple[Change, ...] = Field((), description="One choice left open, each.")
    binding: tuple[Change, ...] = Field(
        (), description="What each decision that holds the best plan back costs."
    )
    marginal_values: tuple[Change, ...] = ()

    def _caption(self) -> str:
        return self.title

    def _rows(self) -> Rows:
        yield "verdict", self.status.replace("_", " ")
        if self.plan is not None:
            yield from self.plan.rows()
        best = self.best
        if best is not None and best.best is not None and best.best != self.plan:
            told = f"{best.best.step_s:.4g} s, {best.best.plan}"
            yield "best plan", told
        if best is not None:
            yield from proof_rows(best.status, best.certificate)
        if self.conflict is not None:
            yield from (("conflict", own.sentence) for own in self.conflict.rules)
        yield from (("repair", own.sentence) for own in self.repairs[:MOST_REPAIRS])
