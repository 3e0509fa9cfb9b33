"""What the limits of a framework cost on one spec."""

from __future__ import annotations

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.results.result import Status
from meshwright.spec.base import SpecModel


class LiftedLimit(SpecModel):
    """The best plan without one limit of a framework, or without all of them."""

    limit: str = Field(description="Its name among broken rules; `all` for all.")
    sentence: str
    status: Status = Field(description="What is known of the best plan without it.")
    step_s: float | None = Field(
        None, description="Step time without the limit; None where no plan is known."
    )
    costs: float | None = Field(
        None,
        description="By which share of `step_s` the step is longer under the limit; at "
        "least, where `status` is `feasible`. None where a step time is not known.",
    )
    plan: Plan | None = Field(
        None, description="The best plan without the limit, where it gains anything."
    )

    @property
    def gains(self) -> bool:
        """Return whether a faster plan exists without the limit, or the first one."""
        return self.plan is not None

    @property
    def gains_nothing(self) -> bool:
        """Return whether it is proven that the limit costs nothing."""
        return not self.gains and self.status in ("optimal", "infeasible")


class FrameworkLimits(SpecModel):
    """The cost of each limit of a framework, with the framework's kernels and memory.

    Every limit is lifted alone, and then all of them together.
    """

    framework: str = Field(description="Its title.")
    limits: tuple[LiftedLimit, ...] = Field(description="The costliest first.")
    all_lifted: LiftedLimit
    ideal_step_s: float | None = Field(
        None,
        description="Step time under `framework: ideal`, whose kernels, memory and "
        "efficiency differ too. None where no plan is known.",
    )
