"""One solved case of a search, as it is stored, listed and drawn."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.plans.plan import Plan
from meshwright.results.outcome import Certificate, Status
from meshwright.results.priced_plan import StageMemory
from meshwright.spec.base import Count, CountOrNone, SpecModel

Value = str | int | float | bool | None


class Row(SpecModel):
    """A case: where it lies on the axes of the sweep, and its best plan, or why none.

    Metrics are None where no plan fits, or where the spec does not say enough.
    """

    key: str = Field(description="Hash of the spec, the profile and the version.")
    name: str = Field(description="The spec in one line.")
    axes: dict[str, Value] = Field(description="Of each axis, the value of this case.")
    status: Status | Literal["failed"]
    error: str = Field("", description="Why the case failed; empty for all others.")
    conflict: tuple[str, ...] = Field(
        (), description="Names of the rules that leave no plan."
    )
    sentence: str = Field("", description="Why no plan fits, in one line.")
    gpus: Count | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    peak_gib: float | None = None
    headroom_gib: float | None = Field(None, description="Left on the fullest GPU.")
    usd_per_mtoken: float | None = Field(None, description="Per million tokens.")
    kwh_per_mtoken: float | None = Field(None, description="Of the GPUs' TDP.")
    train_days: float | None = Field(None, description="For the `run` of the spec.")
    ways: CountOrNone | None = Field(
        None, description="That the plan uses beyond data parallelism: tp, zero, ..."
    )
    plan: Plan | None = None
    time_parts: dict[str, float] = Field(default_factory=dict)
    memory: StageMemory | None = Field(None, description="Of the fullest GPU.")
    certificate: Certificate | None = None


METRICS = {
    "step_s": "min",
    "tokens_per_s": "max",
    "tokens_per_s_per_gpu": "max",
    "mfu": "max",
    "gpus": "min",
    "peak_gib": "min",
    "headroom_gib": "max",
    "usd_per_mtoken": "min",
    "kwh_per_mtoken": "min",
    "train_days": "min",
    "ways": "min",
}
"""What may be an objective, and which way is better."""
