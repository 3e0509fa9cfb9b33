"""The ledger of a plan's collectives, as data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.spec.base import SpecModel

Phase = Literal["forward", "backward", "recompute", "step end"]


class Entry(SpecModel):
    """One collective that a GPU takes part in, and all of its calls of a step."""

    block: str = Field(description="layer, dense layer, embedding, head or stage.")
    where: str = Field(description="In the block: what is passed on.")
    phase: Phase
    part: str = Field(description="The part of the step time in which it counts.")
    operation: str
    group: str
    ranks: int
    bytes: float = Field(
        description="Of one call: what a gather leaves on each rank and a reduction "
        "takes from it, or what is sent."
    )
    count_per_layer: int = Field(
        description="Calls of one block, per micro-batch or, at the end, per step."
    )
    count_per_step: int = Field(description="Calls of all blocks of the stage.")
    link: str = Field(description="The busiest on the way: it sets the pace.")
    seconds: float = Field(description="Of all calls of a step.")
    exposed_s: float = Field(description="Of these, what no compute hides.")


class StageLedger(SpecModel):
    """What a GPU of some stages takes part in, alike in all of them."""

    stages: tuple[int, ...]
    entries: tuple[Entry, ...]


class Ledger(SpecModel):
    """Every collective of a plan."""

    stages: tuple[StageLedger, ...]

    def of_stage(self, stage: int) -> tuple[Entry, ...]:
        """Return what a GPU of one stage takes part in."""
        return next(own.entries for own in self.stages if stage in own.stages)
