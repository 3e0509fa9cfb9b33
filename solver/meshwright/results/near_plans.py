"""All plans that are hardly slower than the fastest, and what they share."""

from __future__ import annotations

from pydantic import Field

from meshwright.spec.base import SpecModel
from meshwright.spec.plan_fields import Value


class NearValue(SpecModel):
    """A value of a decision that some of the plans have."""

    value: Value
    plans: int = Field(description="How many of them have it.")
    loss: float = Field(
        description="What the fastest plan with it takes over the fastest of all."
    )


class NearDecision(SpecModel):
    """One decision, and what it is in the plans."""

    name: str
    values: tuple[NearValue, ...] = Field(description="The fastest first.")

    @property
    def is_shared(self) -> bool:
        """Return whether it is the same in all plans."""
        return len(self.values) == 1


class NearPlan(SpecModel):
    """One of the plans, by the decisions that do not depend on mesh and layers."""

    plan: str = Field(description="As `explain --plan` reads it.")
    step_s: float = Field(
        description="Of its best mesh and split of layers; of those that are known, "
        "where CP-SAT's effort was spent before the best were proven."
    )


class NearPlans(SpecModel):
    """Every plan within a share of the fastest step time, meshes and splits aside."""

    within: float = Field(description="Share of the fastest step time.")
    count: int
    is_proven: bool = Field(description="Whether no other plan is within.")
    decisions: tuple[NearDecision, ...]
    plans: tuple[NearPlan, ...] = Field(description="The fastest first.")


class DecisionCost(SpecModel):
    """What one decision of a plan costs, by all plans that are near the fastest."""

    name: str
    value: Value
    loss: float | None = Field(
        description="What the fastest plan with it takes over the fastest of all; "
        "none where no near plan has it, so that it costs more than `near.within`."
    )
    otherwise: float | None = Field(
        description="The same of the fastest plan with any other value."
    )
