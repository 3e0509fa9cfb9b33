"""The JSON of a plan: the fields of `PricedPlan`, grouped as they are printed."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.results.priced_plan import LinkLoad, PricedPlan, StageMemory
from meshwright.spec.base import NOT_EMPTY, SpecModel


class PrintedMemory(SpecModel):
    """Memory of the GPUs of a plan."""

    peak_gib: float = Field(description="Of the fullest GPU.")
    capacity_gib: float = Field(description="What a plan may use of a GPU.")
    fit_probability: float = Field(description="How likely the plan fits.")
    stages: Annotated[tuple[StageMemory, ...], NOT_EMPTY]


class PrintedTime(SpecModel):
    """The step of a plan, by its parts."""

    step_s: float
    parts: dict[str, float]
    schedule_s: float = Field(description="Step by the schedule's own task graph.")


class PrintedPlan(SpecModel):
    """A plan with what it takes."""

    step_s: float
    plan: Plan
    time: PrintedTime
    memory: PrintedMemory
    links: tuple[LinkLoad, ...] = Field(description="Of each phase the most loaded.")
    all_links: tuple[LinkLoad, ...]
    link_utilisation: float = Field(description="Of the busiest link, of the step.")
    mfu: float
    tokens_per_s_per_gpu: float

    @classmethod
    def of(cls, priced: PricedPlan, capacity_gib: float) -> Self:
        """Return what is printed of a plan."""
        return cls(
            step_s=priced.step_s,
            plan=priced.plan,
            time=PrintedTime(
                step_s=priced.step_s,
                parts=priced.time_parts,
                schedule_s=priced.schedule_s,
            ),
            memory=PrintedMemory(
                peak_gib=priced.peak_gib,
                capacity_gib=capacity_gib,
                fit_probability=priced.fit_probability,
                stages=priced.stages,
            ),
            links=priced.links,
            all_links=priced.all_links,
            link_utilisation=priced.link_utilisation,
            mfu=priced.mfu,
            tokens_per_s_per_gpu=priced.tokens_per_s_per_gpu,
        )

    @property
    def priced(self) -> PricedPlan:
        """Return the plan as it was priced."""
        return PricedPlan(
            plan=self.plan,
            step_s=self.step_s,
            time_parts=self.time.parts,
            schedule_s=self.time.schedule_s,
            stages=self.memory.stages,
            links=self.links,
            all_links=self.all_links,
            link_utilisation=self.link_utilisation,
            mfu=self.mfu,
            tokens_per_s_per_gpu=self.tokens_per_s_per_gpu,
        )
