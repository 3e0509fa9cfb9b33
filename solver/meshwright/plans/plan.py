"""A plan: one complete decision, in torchtitan's names."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.spec.base import Count, CountOrNone, Flag, SpecModel
from meshwright.spec.gpu import Precision


class Stage(SpecModel):
    """One pipeline stage."""

    layers: Count
    recompute_layers: CountOrNone
    gpu: str = Field("", description="Its GPUs, where those of stages differ.")


class Plan(SpecModel):
    """One complete decision, in torchtitan's names.

    Example:
        >>> import meshwright as mw
        >>> plan = mw.solve(mw.load("llama3-8b-2xh100-nvlink")).best.plan
        >>> plan.tp, plan.dp_shard, [stage.layers for stage in plan.stages]
        (1, 2, [32])
        >>> mw.Plan.model_validate_json(plan.model_dump_json()) == plan
        True
    """

    tp: Count
    pp: Count
    vpp: Count = 1
    cp: Count = 1
    ep: Count = 1
    dp_replicate: Count
    dp_shard: Count
    micro_batch: Count = Field(description="Sequences per micro-batch.")
    microbatches: Count = Field(description="Micro-batches per step.")
    zero: CountOrNone = Field(le=3)
    sequence_parallel: Flag
    recompute: Literal["none", "selective", "full"]
    schedule: Literal["1f1b", "gpipe", "zb-h1"]
    offload: Literal["none", "optimizer", "gradients", "parameters"] = "none"
    precision: Precision = "bf16"
    stages: tuple[Stage, ...]
    mesh: dict[str, tuple[Count, ...]] = Field(
        description="Of each axis, its factor at each level, innermost first."
    )
    seats: tuple[tuple[CountOrNone, ...], ...] = Field(
        (),
        description="Of each kind of host, the GPU of each of its ranks, by its place "
        "among the host's GPUs; empty where ranks sit in that order.",
    )

    @property
    def world_size(self) -> int:
        """Return the number of GPUs; experts are folded into the other axes."""
        return self.tp * self.cp * self.dp_replicate * self.dp_shard * self.pp

    def __str__(self) -> str:
        """Return the plan in one line, in the words of `--pin`."""
        parts = [f"{name}={getattr(self, name)}" for name in ("tp", "pp")]
        extra = [name for name in ("vpp", "cp", "ep") if getattr(self, name) > 1]
        parts += [f"{name}={getattr(self, name)}" for name in extra]
        parts += [f"dp={self.dp_replicate}x{self.dp_shard}", f"zero={self.zero}"]
        parts.append(f"micro_batch={self.micro_batch}x{self.microbatches}")
        parts.append(f"recompute={self.recompute}")
        if self.schedule != "1f1b":
            parts.append(f"schedule={self.schedule}")
        if self.offload != "none":
            parts.append(f"offload={self.offload}")
        if self.precision != "bf16":
            parts.append(self.precision)
        return " ".join(parts)
