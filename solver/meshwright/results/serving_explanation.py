"""An explanation of a serving spec or plan, as data; `report` makes the sentences."""

from __future__ import annotations

from pydantic import Field

from meshwright.plans.rule import BrokenRule
from meshwright.results.outcome_parts import Conflict
from meshwright.results.priced_plan import StageMemory
from meshwright.results.result import Result
from meshwright.results.serving import PricedServing, ServingOutcome
from meshwright.spec.base import SpecModel


class ServingRepair(SpecModel):
    """An edit of the spec after which a plan exists, and the best plan after it."""

    edit: str
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
