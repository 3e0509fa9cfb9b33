"""What a comparison of plans says, as data; sentences come last."""

from __future__ import annotations

from pydantic import Field

from meshwright.plans.rule import BrokenRule
from meshwright.results.html_table import Rows
from meshwright.results.ledger import Ledger
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.result import Result
from meshwright.spec.base import SpecModel
from meshwright.spec.cluster import Cluster


class Holding(SpecModel):
    """What GPUs hold of one part of memory: split by what, and how often it is there.

    State is counted as if none of it were offloaded, but for `gib`.
    """

    part: str
    gib: tuple[float, ...] = Field(description="On a GPU of each stage.")
    is_offloaded: bool = Field(False, description="Whether its home is the host.")
    divided_by: dict[str, float] = Field(
        description="By how much each axis makes it smaller on a GPU, on average over "
        "stages. What an axis only splits in part it divides by less than its degree."
    )
    copies: float | None = Field(
        None, description="How often the GPUs together hold a byte; None of buffers."
    )


class Compared(SpecModel):
    """One of the plans compared."""

    name: str
    plan: PricedPlan | None = Field(description="None where it does not fit.")
    broken_rules: tuple[BrokenRule, ...] = Field((), description="Where it does not.")
    cluster: Cluster | None = Field(
        None, exclude=True, description="What the plan runs on."
    )
    holdings: tuple[Holding, ...] = Field((), description="Where told in full.")
    collectives: Ledger | None = Field(None, description="Where told in full.")


class Flip(SpecModel):
    """Where the order of the plans turns."""

    at: float
    before: tuple[str, ...] = Field(description="The plans below it, fastest first.")
    after: tuple[str, ...]


class Span(SpecModel):
    """Values between which one of two plans stays the faster one."""

    low: float
    high: float
    winner: str = Field(description="Empty where neither fits.")


class Side(SpecModel):
    """One of two plans at the value where they are weighed up."""

    name: str
    step_s: float
    pays_s: dict[str, float] = Field(
        description="The parts of the step that take longer than in the other plan, by "
        "how much, the largest first."
    )
    sent_gb: float = Field(description="A step, over its busiest link, one way.")


class Rule(SpecModel):
    """Which of two plans is faster where, and what decides it."""

    spans: tuple[Span, ...] = Field(description="Adjacent, of unlike winners.")
    winner: str = Field(description="Of the last span in which one fits.")
    loser: str
    at: float = Field(description="Where the sides are weighed up: the first turn.")
    sides: tuple[Side, ...] = Field(
        description="Winner and loser; none where one of them does not fit there."
    )


class Range(SpecModel):
    """What is looked at of the number that is varied."""

    about: str = Field("", description="Whose it is, such as the name of a level.")
    unit: str = ""
    low: float
    high: float
    value: float | None = Field(None, description="That of the spec.")


class Comparison(Result):
    """Plans of one spec, the fastest first.

    Example:
        >>> import meshwright as mw
        >>> found = mw.compare(mw.load("llama2-13b-8xa100"), ["tp=8", "tp=4,pp=2"])
        >>> [own.name for own in found.plans], found.fits
        (['tp=4,pp=2', 'tp=8'], True)
    """

    title: str
    plans: tuple[Compared, ...]
    vary: str = Field("", description="The path of the number that is varied.")
    range: Range | None = Field(None, description="Of that number.")
    flips: tuple[Flip, ...] = ()
    rules: tuple[Rule, ...] = ()
    note: str = Field("", description="Why nothing is varied, where it should be.")

    @property
    def fits(self) -> bool:
        """Return whether any of the plans does."""
        return any(own.plan is not None for own in self.plans)

    def _caption(self) -> str:
        return self.title

    def _rows(self) -> Rows:
        yield "name", "step", "fullest GPU", "plan"
        for own in self.plans:
            if own.plan is None:
                why = "; ".join(map(str, own.broken_rules))
                yield own.name, "does not fit", "-", why
            else:
                peak = f"{own.plan.peak_gib:.2f} GiB"
                yield own.name, f"{own.plan.step_s:.4g} s", peak, str(own.plan.plan)
