"""A plan with the time, memory and link loads that it takes."""

from __future__ import annotations

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.results.html_table import Rows
from meshwright.spec.base import SpecModel


class LinkLoad(SpecModel):
    """What a link carries of a phase in one step, one way."""

    link: str
    phase: str
    gb: float
    seconds: float
    utilisation: float = Field(description="Of the step.")


class StageMemory(SpecModel):
    """Memory of one GPU of a stage."""

    total_gib: float
    parts: dict[str, float]
    host_gib: float = Field(0.0, description="Offloaded by this GPU to its host.")
    usable_gib: float = Field(description="What a plan may use of this GPU.")


class PricedPlan(SpecModel):
    """A plan with what it takes, as the checker re-scored it in floats."""

    plan: Plan
    step_s: float
    time_parts: dict[str, float]
    schedule_s: float = Field(description="Step by the schedule's own task graph.")
    stages: tuple[StageMemory, ...]
    links: tuple[LinkLoad, ...] = Field(description="Of each phase the most loaded.")
    all_links: tuple[LinkLoad, ...]
    link_utilisation: float = Field(description="Of the busiest link, of the step.")
    mfu: float
    tokens_per_s_per_gpu: float

    @property
    def peak_gib(self) -> float:
        """Return the memory of the fullest stage, GiB."""
        return max(stage.total_gib for stage in self.stages)

    def rows(self) -> Rows:
        """Yield what a table for notebooks says of the plan."""
        yield "plan", str(self.plan)
        yield "step", f"{self.step_s:.4g} s, MFU {self.mfu:.1%}"
        fullest = max(self.stages, key=lambda stage: stage.total_gib)
        told = f"{fullest.total_gib:.2f} of {fullest.usable_gib:.2f} GiB"
        yield "fullest GPU", told
