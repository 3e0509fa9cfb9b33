"""The `run` section: the training run around the step."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from meshwright.spec.base import (
    Count,
    Flag,
    Flops,
    Hours,
    Margin,
    Positive,
    Share,
    SpecModel,
    TokenCount,
)
from meshwright.spec.units import Days, GBPerS


class Checkpoint(SpecModel):
    """How checkpoints are written, and what comes after a failure."""

    model_config = ConfigDict(serialize_by_alias=True)

    gb_s: GBPerS = Field(description="To storage, of all hosts together.")
    is_async: Flag = Field(
        False,
        alias="async",
        description="Training goes on while host memory is written out.",
    )
    restart_s: Positive = Field(
        600.0,
        description="Seconds to notice a failure, mend it and start; reading comes on "
        "top. The default is an estimate.",
    )


class Straggler(SpecModel):
    """GPUs that compute more slowly than their like."""

    slowdown: Positive = Field(0.1, description="Of one slow GPU, as a share.")
    jitter: Margin = Field(
        0.0, description="Standard deviation of a GPU's compute time, as a share."
    )


class TrainingRun(SpecModel):
    """How long it goes on, what a GPU costs, and how often one fails."""

    tokens: TokenCount | None = Field(
        None,
        description="Tokens trained on, in all; default: what budget_flops pays for, "
        "else what the deadline leaves time for.",
    )
    budget_flops: Flops | None = Field(
        None, description="Model FLOPs to spend: 6 N D of them."
    )
    deadline: Days | None = Field(None, description="Days; or '90 days', '12 weeks'.")
    gpu_hour_price: Positive | None = Field(
        None, description="USD of one GPU for an hour; default: that of the GPU."
    )
    mtbf_gpu_hours: Hours | None = Field(
        None, description="GPU hours between failures that stop the job."
    )
    checkpoint: Checkpoint | None = None
    straggler: Straggler = Field(default_factory=lambda: Straggler())
    topk_density: Share = Field(
        0.01, description="Share of gradients that top-k compression keeps."
    )
    powersgd_rank: Count = Field(4, description="Of PowerSGD's two factors.")
