"""The ledger of a plan's collectives, as data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.spec.base import SpecModel

Phase = Literal["forward", "backward", "recompute", "step end"]


class LedgerEntry(SpecModel):
    """One collective that a GPU takes part in, with all its calls in a step."""

    block: str = Field(description="layer, dense layer, embedding, head or stage.")
    where: str = Field(description="Where in the block it is called, or what it sends.")
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
    exposed_s: float = Field(description="The part of it that no compute hides.")


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
