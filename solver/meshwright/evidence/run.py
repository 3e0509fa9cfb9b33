"""One measured run: the schema of evidence files.

A file is a YAML list of runs, or a CSV table with the same fields as dotted columns
(`config.tp`). Fields that a source does not publish are left out or null; fields that
are not listed here are carried along and not read.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from meshwright.spec.base import Count, CountOrNone, Flag, LayerCount, number

Words = Annotated[str, Field(max_length=400)]
"""A name, or how a publication says what it used."""

Parameters = Annotated[int, Field(gt=0, le=10**15)]

Measure = Annotated[float, number("from 1e-6 to 1e12", lambda x: 1e-6 <= x <= 1e12)]
"""Seconds, tokens per second or GB, in bounds that leave ratios of them numbers."""


class RunPart(BaseModel):
    """A frozen part of a run."""

    model_config = ConfigDict(extra="ignore", frozen=True, coerce_numbers_to_str=True)


class RunExperts(RunPart):
    """The experts in place of an MLP."""

    n_experts: Count
    top_k: Count
    expert_d_ff: Count = Field(description="Inner width of one expert.")
    shared: CountOrNone = Field(0, description="Experts that every token visits.")
    dense_layers: CountOrNone = Field(0, description="Leading layers without experts.")


class RunModel(RunPart):
    """The model that was trained."""

    name: Words = "unnamed"
    n_layers: LayerCount | None = None
    d_model: Count | None = None
    n_heads: Count | None = None
    n_kv_heads: Count | None = None
    head_dim: Count | None = None
    d_ff: Count | None = None
    vocab: Count | None = None
    seq_len: Count | None = None
    gated_mlp: Flag | None = None
    tied: Flag | None = None
    moe: RunExperts | None = None
    params: Parameters | None = Field(None, description="As published.")
    pos_emb: Words | None = Field(None, description="'learned' counts as parameters.")
    arch_note: Words | None = Field(None, description="'MLA': latent attention.")


class RunHardware(RunPart):
    """The machines it ran on."""

    gpu: Words = Field(
        description="A name from topologies/gpus, or one it is known by."
    )
    n_gpus: Count
    gpus_per_node: Count | None = None
    intra_node: Words | None = None
    inter_node: Words | None = Field(None, description="'8x HDR200 per node', say.")


class RunConfig(RunPart):
    """The plan that was run."""

    dp: Count | None = None
    tp: Count | None = None
    pp: LayerCount | None = None
    vp: LayerCount | None = None
    cp: Count | None = None
    ep: Count | None = None
    sp: Flag | None = None
    zero_stage: int | None = Field(None, ge=0, le=3)
    optimizer_shard_group: Count | None = None
    fsdp: Words | None = Field(None, description="'hybrid (shard group 128)', say.")
    micro_batch: Count | None = None
    global_batch: Count | None = Field(None, description="Sequences per step.")
    recompute: Words | None = None
    precision: Words = "bf16"
    mixed_precision_mode: Words | None = Field(None, description="Of LLM Foundry.")
    framework: Words = ""
    task: Words | None = Field(None, description="'lora' freezes weights.")
    offload: Words | None = None
    optimizer: Words | None = None
    attention: Words | None = None
    schedule: Words | None = None
    layers_per_stage: tuple[LayerCount, ...] | None = None


class Measured(RunPart):
    """What its authors published."""

    step_time_s: Measure | None = None
    tokens_per_s_per_gpu: Measure | None = None
    peak_memory_gb: Measure | None = None
    peak_memory_kind: Words | None = None
    fits: Flag | None = Field(None, description="False: it ran out of memory.")


class RunCheck(RunPart):
    """What is known about the published values."""

    derived: tuple[str, ...] = Field((), description="Worked out from other fields.")
    issues: tuple[str, ...] | str | None = Field(
        None, description="Published values that contradict each other."
    )


class Run(RunPart):
    """One measured run."""

    id: Words
    source_id: Words
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
