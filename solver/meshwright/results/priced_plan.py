"""A plan with its time, memory and link loads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.spec.base import NOT_EMPTY, SpecModel
from meshwright.spec.run_before import Familiarity


class LinkLoad(SpecModel):
    """The load of a link from one phase, in one step and one way."""

    link: str
    phase: str
    gb: float
    seconds: float
    utilisation: float = Field(description="Share of the step.")


class StageMemory(SpecModel):
    """Memory of one GPU of a stage."""

    total_gib: float
    parts: dict[str, float]
    host_gib: float = Field(
        0.0, description="Memory that this GPU offloads to its host."
    )
    usable_gib: float = Field(description="Memory of this GPU that a plan may use.")
    fit_probability: float = Field(
        description="Probability that the memory really needed fits on this GPU."
    )

    @property
    def allocated_gib(self) -> float:
        """Return the memory of all tensors: without overhead, and without holes."""
        beside = self.parts["overhead"] + self.parts.get("fragments", 0.0)
        return self.total_gib - beside


class PricedPlan(SpecModel):
    """A plan with its time, memory and link loads, as the checker computed them.

    Example:
        >>> import math
        >>> import meshwright as mw
        >>> best = mw.solve(mw.load("llama3-8b-2xh100-nvlink")).best
        >>> best.step_s == math.fsum(best.time_parts.values())
        True
        >>> best.peak_gib < best.stages[0].usable_gib
        True
    """

    plan: Plan
    step_s: float
    time_parts: dict[str, float] = Field(
        description="Seconds by part; they add up to the step."
    )
    schedule_s: float = Field(description="Step time by the schedule's task graph.")
    stages: Annotated[tuple[StageMemory, ...], NOT_EMPTY]
    links: tuple[LinkLoad, ...] = Field(description="The most loaded link, by phase.")
    all_links: tuple[LinkLoad, ...]
    link_utilisation: float = Field(
        description="Share of the step for which the most loaded link is busy."
    )
    mfu: float
    tokens_per_s_per_gpu: float
    familiarity: Familiarity | None = Field(
        None, description="How near it is to what was run, where runs are known."
    )

    @property
    def doubted_s(self) -> float:
        """Return the step at the upper edge of its doubt, seconds."""
        factor = self.familiarity.factor if self.familiarity else 1.0
        return self.step_s * factor

    def takes_s(self, *, is_doubted: bool) -> float:
        """Return the seconds by which the plan is compared with others."""
        return self.doubted_s if is_doubted else self.step_s

    @property
    def peak_gib(self) -> float:
        """Return the memory of the fullest stage, GiB."""
        return max(stage.total_gib for stage in self.stages)

    @property
    def fit_probability(self) -> float:
        """Return how likely the plan fits.

        What a plan really needs is off its prediction in the same way on all stages, so
        that the stage least likely to fit decides.
        """
        return min(stage.fit_probability for stage in self.stages)
