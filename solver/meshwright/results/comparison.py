"""A comparison of plans, as data; `report` makes the sentences."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.plans.rule import BrokenRule
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.result import Result
from meshwright.spec.base import SpecModel
from meshwright.spec.cluster import Cluster

Phase = Literal["forward", "backward", "recompute", "step end"]


class LedgerEntry(SpecModel):
    """One collective that a GPU takes part in, with all its calls in a step."""

    block: str = Field(description="layer, dense layer, embedding, head or stage.")
    where: str = Field(
        description="Where in the block it is called, or the data it sends."
    )
    phase: Phase
    part: str = Field(description="The part of the step time that it adds to.")
    operation: str
    group: str
    ranks: int
    bytes: float = Field(
        description="Bytes of one call: on each rank after a gather or before a "
        "reduction, or the message that is sent."
    )
    count_per_layer: int = Field(
        description="Calls in one block: per micro-batch, or per step at its end."
    )
    count_per_step: int = Field(description="Calls in all blocks of the stage.")
    link: str = Field(
        description="The most loaded link on the way, which sets the pace."
    )
    seconds: float = Field(description="Time of all calls in a step.")
    exposed_s: float = Field(description="Time that no compute hides.")


class StageLedger(SpecModel):
    """The collectives of a GPU, for stages in which they are the same."""

    stages: tuple[int, ...]
    entries: tuple[LedgerEntry, ...]


class Ledger(SpecModel):
    """Every collective of a plan."""

    stages: tuple[StageLedger, ...]

    def of_stage(self, stage: int) -> tuple[LedgerEntry, ...]:
        """Return the collectives of a GPU of one stage."""
        return next(one.entries for one in self.stages if stage in one.stages)


class PartSharding(SpecModel):
    """How one part of memory is sharded over the GPUs.

    `divided_by` and `copies` are those of the plan without offload.
    """

    part: str
    gib: tuple[float, ...] = Field(description="GiB on a GPU, by stage.")
    is_offloaded: bool = Field(
        False, description="Whether the part is kept on the host."
    )
    divided_by: dict[str, float] = Field(
        description="By how much an axis shrinks the part on a GPU, by axis and on "
        "average over stages. It is less than the degree where the axis shards only "
        "some of the part."
    )
    copies: float | None = Field(
        None, description="How many GPUs hold the same byte; None for buffers."
    )


class ComparedPlan(SpecModel):
    """One of the plans of a comparison."""

    name: str
    plan: PricedPlan | None = Field(description="None if the plan does not fit.")
    broken_rules: tuple[BrokenRule, ...] = Field(
        (), description="The rules that it breaks if it does not fit."
    )
    cluster: Cluster | None = Field(
        None, exclude=True, description="The cluster that the plan runs on."
    )
    holdings: tuple[PartSharding, ...] = Field(
        (), description="How memory is sharded; only in full comparisons."
    )
    collectives: Ledger | None = Field(None, description="Only in full comparisons.")


class Crossover(SpecModel):
    """A value of the varied number at which the order of the plans changes."""

    at: float
    before: tuple[str, ...] = Field(description="The order below, fastest first.")
    after: tuple[str, ...] = Field(description="The order above, fastest first.")


class WinnerSpan(SpecModel):
    """A range of the varied number in which the same one of two plans is faster."""

    low: float
    high: float
    winner: str = Field(description="The faster plan; empty where neither fits.")


class Side(SpecModel):
    """One of two plans, at the value at which they are compared in detail."""

    name: str
    step_s: float
    pays_s: dict[str, float] = Field(
        description="The parts of the step that take longer than in the other plan, "
        "with the difference, the largest first."
    )
    sent_gb: float = Field(
        description="GB per step on the busiest link of the plan, one way."
    )


class HeadToHead(SpecModel):
    """Which of two plans is faster where, and what decides it."""

    spans: tuple[WinnerSpan, ...] = Field(
        description="Adjacent ranges, each with another winner than the one before."
    )
    winner: str = Field(
        description="The faster plan in the last range in which either of them fits."
    )
    loser: str
    at: float = Field(
        description="The value at which the sides are compared: the first crossover, "
        "if there is one."
    )
    sides: tuple[Side, ...] = Field(
        description="Winner and loser; empty where one of them does not fit there."
    )


class VariedRange(SpecModel):
    """The range over which a number of the spec is varied."""

    about: str = Field(
        "", description="The thing that has the number, such as the name of a level."
    )
    unit: str = ""
    low: float
    high: float
    value: float | None = Field(None, description="The value in the spec.")


class Comparison(Result):
    """Plans of one spec, the fastest first.

    Example:
        >>> import meshwright as mw
        >>> found = mw.compare(mw.load("llama2-13b-8xa100"), ["tp=8", "tp=4,pp=2"])
        >>> [plan.name for plan in found.plans], found.fits
        (['tp=4,pp=2', 'tp=8'], True)
    """

    title: str = Field(description="The question in one line.")
    plans: tuple[ComparedPlan, ...]
    vary: str = Field("", description="The path of the number that is varied.")
    range: VariedRange | None = Field(None, description="The range of that number.")
    flips: tuple[Crossover, ...] = Field((), description="Where the order changes.")
    rules: tuple[HeadToHead, ...] = Field(
        (), description="For pairs of plans, which is faster where."
    )
    note: str = Field("", description="Why no number is varied, if one was to be.")

    @property
    def fits(self) -> bool:
        """Return whether any of the plans fits."""
        return any(compared.plan is not None for compared in self.plans)
