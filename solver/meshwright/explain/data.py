"""What an explanation says, as data; sentences come last."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, computed_field

from meshwright.ledger.data import Ledger
from meshwright.plan import BrokenRule, Outcome, Plan, PricedPlan, StageMemory
from meshwright.spec.base import SpecModel
from meshwright.spec.cluster import Cluster

Verdict = Literal[
    "fits", "does_not_fit", "optimal", "feasible", "infeasible", "unknown"
]


class Fixed(SpecModel):
    """Something that the user or the hardware has decided."""

    rule: str
    sentence: str


class Conflict(SpecModel):
    """Decisions that cannot hold together, whatever else is decided."""

    rules: tuple[Fixed, ...]
    is_minimal: bool = Field(
        description="Whether each fewer-decisions subset was tried, and has a plan."
    )
    witness: str = Field("", description="The plan that comes closest.")


class Repair(SpecModel):
    """Edits after which a plan exists, and what that plan takes."""

    edits: tuple[str, ...]
    step_s: float
    price: float | None = Field(
        description="More than the best plan of the spec takes, as a share."
    )
    plan: Plan

    @computed_field(description="The repair in one line.")  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """Return the repair in one line."""
        price = "" if self.price is None else f", {self.price:+.1%} to the best plan"
        return f"{' and '.join(self.edits)}: {self.step_s:.4g} s a step{price}"


class Gap(SpecModel):
    """How much longer each part of a step takes than in the best plan, s."""

    terms: dict[str, float]
    step_s: float


class Change(SpecModel):
    """What one other choice or one more unit of something would bring."""

    change: str
    step_s: float | None = Field(description="None where no plan fits.")
    tokens_per_s_per_gpu: float | None = None


class Slack(SpecModel):
    """How far a rule is from being broken."""

    rule: str
    sentence: str
    have: float
    need: float
    unit: str


class Explanation(SpecModel):
    """The answer to why."""

    title: str
    status: Verdict
    fits: bool
    plan: PricedPlan | None = None
    broken_rules: tuple[BrokenRule, ...] = ()
    memory: StageMemory | None = Field(
        None, description="Of the fullest GPU of the plan that comes closest."
    )
    slack: tuple[Slack, ...] = ()
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
    helps: tuple[Change, ...] = Field((), description="One choice left open, each.")
    marginal_values: tuple[Change, ...] = ()
