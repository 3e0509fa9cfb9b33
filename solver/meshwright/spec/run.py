"""The `run` section: the training run around the step."""

from __future__ import annotations

from pydantic import Field

from meshwright.spec.base import Positive, SpecModel


class TrainingRun(SpecModel):
    """How long it goes on, and what a GPU costs."""

    tokens: Positive | None = Field(None, description="Tokens trained on, in all.")
    gpu_hour_price: Positive | None = Field(
        None, description="USD of one GPU for an hour; default: that of the GPU."
    )
