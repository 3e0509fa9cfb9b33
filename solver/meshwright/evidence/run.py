"""One measured run: the schema of evidence files.

A file is a YAML list of runs, or a CSV table with the same fields as dotted columns
(`config.tp`). Fields that a source does not publish are left out or null; fields that
are not listed here are carried along and not read.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class RunPart(BaseModel):
    """A frozen part of a run."""

    model_config = ConfigDict(extra="ignore", frozen=True, coerce_numbers_to_str=True)


class RunExperts(RunPart):
    """The experts in place of an MLP."""

    n_experts: int = Field(gt=0)
    top_k: int = Field(gt=0)
    expert_d_ff: int = Field(gt=0, description="Inner width of one expert.")
    shared: int = Field(0, ge=0, description="Experts that every token visits.")
    dense_layers: int = Field(0, ge=0, description="Leading layers without experts.")


class RunModel(RunPart):
    """The model that was trained."""

    name: str = "unnamed"
    n_layers: int | None = Field(None, gt=0)
    d_model: int | None = Field(None, gt=0)
    n_heads: int | None = Field(None, gt=0)
    n_kv_heads: int | None = Field(None, gt=0)
    head_dim: int | None = Field(None, gt=0)
    d_ff: int | None = Field(None, gt=0)
    vocab: int | None = Field(None, gt=0)
    seq_len: int | None = Field(None, gt=0)
    gated_mlp: bool | None = None
    tied: bool | None = None
    moe: RunExperts | None = None
    params: int | None = Field(None, description="As published.")
    pos_emb: str | None = Field(None, description="'learned' counts as parameters.")
    arch_note: str | None = Field(None, description="'MLA': latent attention.")


class RunHardware(RunPart):
    """The machines it ran on."""

    gpu: str = Field(description="A name from topologies/gpus, or one it is known by.")
    n_gpus: int = Field(gt=0)
    gpus_per_node: int | None = Field(None, gt=0)
    intra_node: str | None = None
    inter_node: str | None = Field(None, description="'8x HDR200 per node', say.")


class RunConfig(RunPart):
    """The plan that was run."""

    dp: int | None = Field(None, gt=0)
    tp: int | None = Field(None, gt=0)
    pp: int | None = Field(None, gt=0)
    vp: int | None = Field(None, gt=0)
    cp: int | None = Field(None, gt=0)
    ep: int | None = Field(None, gt=0)
    sp: bool | None = None
    zero_stage: int | None = Field(None, ge=0, le=3)
    optimizer_shard_group: int | None = Field(None, gt=0)
    fsdp: str | None = Field(None, description="'hybrid (shard group 128)', say.")
    micro_batch: int | None = Field(None, gt=0)
    global_batch: int | None = Field(None, gt=0, description="Sequences per step.")
    recompute: str | None = None
    precision: str = "bf16"
    mixed_precision_mode: str | None = Field(None, description="Of LLM Foundry.")
    framework: str = ""
    task: str | None = Field(None, description="'lora' freezes weights.")
    offload: str | None = None
    optimizer: str | None = None
    attention: str | None = None
    schedule: str | None = None
    layers_per_stage: tuple[int, ...] | None = None


class Measured(RunPart):
    """What its authors published."""

    step_time_s: float | None = Field(None, gt=0)
    tokens_per_s_per_gpu: float | None = Field(None, gt=0)
    peak_memory_gb: float | None = Field(None, gt=0)
    peak_memory_kind: str | None = None
    fits: bool | None = Field(None, description="False: it ran out of memory.")


class RunCheck(RunPart):
    """What is known about the published values."""

    derived: tuple[str, ...] = Field((), description="Worked out from other fields.")
    issues: tuple[str, ...] | str | None = Field(
        None, description="Published values that contradict each other."
    )


class Run(RunPart):
    """One measured run."""

    id: str
    source_id: str
    source: str = ""
    date: Annotated[str, BeforeValidator(str)] = ""
    model: RunModel
    hardware: RunHardware
    config: RunConfig
    measured: Measured
    check: RunCheck | None = None
    notes: str | None = None

    @property
    def is_contradictory(self) -> bool:
        """Return whether the published values contradict each other."""
        return bool(self.check and self.check.issues)

    @property
    def step_s(self) -> float | None:
        """Return the measured step time: as published, else from tokens per second."""
        measured, batch = self.measured, self.config.global_batch
        derived = self.check.derived if self.check else ()
        from_tokens = None
        if measured.tokens_per_s_per_gpu and batch and self.model.seq_len:
            tokens_per_s = measured.tokens_per_s_per_gpu * self.hardware.n_gpus
            from_tokens = batch * self.model.seq_len / tokens_per_s
        if "step_time_s" in derived and from_tokens:
            return from_tokens
        return measured.step_time_s or from_tokens
