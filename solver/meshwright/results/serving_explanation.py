"""What an explanation of serving says, as data; sentences come last."""

from __future__ import annotations

from pydantic import Field

from meshwright.plans.rule import BrokenRule
from meshwright.results.explanation import Conflict
from meshwright.results.priced_plan import StageMemory
from meshwright.results.serving import PricedServing, ServingOutcome
from meshwright.spec.base import SpecModel


class ServingRepair(SpecModel):
    """An edit after which a plan exists, and what that plan gives."""

    edit: str
    best: PricedServing


class Worth(SpecModel):
    """What one other thing would bring."""

    change: str
    best: PricedServing | None = Field(description="None where no plan fits.")


class ServingExplanation(SpecModel):
    """The answer to why."""

    title: str
    fits: bool
    outcome: ServingOutcome = Field(description="Of what was asked.")
    best: ServingOutcome | None = Field(
        None, description="Of the spec without the plan that was asked about."
    )
    gap: dict[str, float] = Field(
        default_factory=dict,
        description="What the plan takes longer than the best one, s by part.",
    )
    marginal_values: tuple[Worth, ...] = ()
    broken_rules: tuple[BrokenRule, ...] = ()
    memory: StageMemory | None = None
    conflict: Conflict | None = None
    repairs: tuple[ServingRepair, ...] = ()
