"""The `training` and `limits` sections."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.spec.base import Count, Margin, Share, SpecModel
from meshwright.spec.cluster import Precision
from meshwright.spec.units import GBPerS, GiB

FusedKernels = Literal["all", "norms", "none"]
"""Of norms and gated activations, what is one kernel that saves its input alone."""


class Training(SpecModel):
    """What one optimizer step does."""

    seq_len: Count = Field(description="Tokens per sequence.")
    global_batch: Count = Field(description="Sequences per optimizer step.")
    precision: Precision = Field("bf16", description="Of matmuls and activations.")
    optimizer: Literal["adamw", "sgd"] = Field(
        "adamw", description="adamw keeps two fp32 moments per parameter, sgd one."
    )
    attention: Literal["flash", "plain"] = Field(
        "flash", description="plain stores the seq_len x seq_len scores."
    )
    fused_kernels: FusedKernels | None = Field(
        None,
        description="all: norms and gated activations save their inputs alone; norms: "
        "activations are PyTorch operations; none: norms too; default by framework.",
    )


class Limits(SpecModel):
    """Hard constraints on every plan."""

    memory_margin: Margin = Field(
        0.05, description="Share of GPU memory that a plan leaves free."
    )
    memory_gib: GiB | None = Field(
        None, description="Usable memory per GPU; replaces the margin."
    )
    max_link_utilisation: Share | None = Field(
        None, description="Share of the step for which any link may carry traffic."
    )
    tp_min_link_gb_s: GBPerS | None = Field(
        None, description="Least bandwidth per GPU for tensor-parallel groups."
    )
