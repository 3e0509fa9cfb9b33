"""What an explanation of serving says, as data; sentences come last."""

from __future__ import annotations

from pydantic import Field

from meshwright.plans.rule import BrokenRule
from meshwright.results.explanation import MOST_REPAIRS, Conflict
from meshwright.results.html_table import Rows
from meshwright.results.outcome import proof_rows
from meshwright.results.priced_plan import StageMemory
from meshwright.results.result import Result
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


class ServingExplanation(Result):
    """The answer to why, of a spec of serving.

    Example:
        >>> import meshwright as mw
        >>> told = mw.explain(mw.load("serve-llama3-70b-2x4090-pcie"))
        >>> told.fits, [rule.rule for rule in told.conflict.rules]
        (False, ['memory'])
    """

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

    def _caption(self) -> str:
        return self.title

    def _rows(self) -> Rows:
        yield "verdict", "fits" if self.fits else "no plan fits"
        if self.outcome.best is not None:
            yield from self.outcome.best.rows()
            yield from proof_rows(self.outcome.status, self.outcome.certificate)
        if self.conflict is not None:
            yield from (("conflict", own.sentence) for own in self.conflict.rules)
        yield from (("repair", own.edit) for own in self.repairs[:MOST_REPAIRS])
