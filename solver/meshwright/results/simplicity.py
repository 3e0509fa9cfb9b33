"""In what a plan is simpler than the fastest one, and what that costs."""

from __future__ import annotations

from pydantic import Field

from meshwright.spec.base import SpecModel
from meshwright.spec.objective import Criterion


class Simplicity(SpecModel):
    """In what the recommended plan is simpler than the fastest, and what that costs."""

    loss: float = Field(description="Of the step time, over that of the fastest plan.")
    criterion: Criterion = Field(description="The first in which the two differ.")
    techniques: tuple[str, ...] = Field(
        description="What the recommended plan has beyond data parallelism."
    )
    fastest_techniques: tuple[str, ...] = Field(description="What the fastest has.")
