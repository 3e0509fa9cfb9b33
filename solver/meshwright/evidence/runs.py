"""Measured runs: the schema of evidence files, and their reader.

A file is a YAML list of runs, or a CSV table with the same fields as dotted columns
(`config.tp`). Fields that a source does not publish are left out or null; fields that
are not listed here are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from meshwright.errors import SpecError
from meshwright.reading.document import Where, explain, shown
from meshwright.reading.yaml_and_csv import (
    Limits,
    is_file,
    is_folder,
    read_table,
    read_yaml,
)
from meshwright.spec.base import (
    Count,
    CountOrNone,
    Flag,
    LayerCount,
    Positive,
    number,
)
from meshwright.spec.model_parts import LatentAttention
from meshwright.spec.training import (
    AdapterFormat,
    CudaGraphs,
    ExpertDispatch,
    FusedOperations,
    Imbalance,
    IndexerLoss,
    LossBytes,
)

Words = Annotated[str, Field(max_length=400)]
"""A name, or other words of a publication."""

PlanText = Annotated[str, Field(max_length=10_000)]

Parameters = Annotated[int, Field(gt=0, le=10**15)]

Measure = Annotated[float, number("from 1e-6 to 1e12", lambda x: 1e-6 <= x <= 1e12)]
"""Seconds, tokens per second or GB, in bounds that leave ratios of them numbers."""


class RunPart(BaseModel):
    """A frozen part of a run."""

    model_config = ConfigDict(extra="ignore", frozen=True, coerce_numbers_to_str=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        """Return the fields without those that are null: they are not published."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


class RunExperts(RunPart):
    """The experts in place of an MLP."""

    n_experts: CountOrNone = Field(0, description="Routed experts of a layer.")
    top_k: CountOrNone = Field(0, description="Routed experts that a token visits.")
    expert_d_ff: CountOrNone = Field(0, description="Inner width of one expert.")
    shared: CountOrNone = Field(0, description="Experts that every token visits.")
    dense_layers: CountOrNone = Field(0, description="Leading layers without experts.")
    capacity_factor: Positive | None = Field(None, description="Above it, tokens drop.")


class RunModel(RunPart):
    """The model that was trained."""

    name: Words = Field("unnamed", description="As published.")
    n_layers: LayerCount | None = Field(None, description="Transformer layers.")
    mtp_layers: CountOrNone = Field(
        0, description="Layers after the last that predict one token further each."
    )
    d_model: Count | None = Field(None, description="Width of the residual stream.")
    n_heads: Count | None = Field(None, description="Query heads.")
    n_kv_heads: Count | None = Field(None, description="Key and value heads.")
    head_dim: Count | None = Field(None, description="Width of a head.")
    d_ff: Count | None = Field(None, description="Inner width of the MLP.")
    vocab: Count | None = Field(None, description="Rows of the embedding table.")
    seq_len: Count | None = Field(None, description="Tokens per sequence.")
    gated_mlp: Flag | None = Field(None, description="Three MLP matrices.")
    tied: Flag | None = Field(None, description="Head and embedding share weights.")
    moe: RunExperts | None = None
    dropout: Flag | None = Field(None, description="Trained with dropout.")
    params: Parameters | None = Field(None, description="As published.")
    pos_emb: Words | None = Field(None, description="'learned' counts as parameters.")
    arch_note: Words | None = Field(None, description="'MLA': latent attention.")
    mla: LatentAttention | None = Field(
        None, description="Latent attention; as `model.mla` of a spec."
    )
    document_tokens: Count | None = Field(
        None, description="Mean length of packed texts that attend to none but theirs."
    )


class RunHardware(RunPart):
    """The machines it ran on."""

    gpu: Words = Field(
        "", description="A name from topologies/gpus, or one it is known by."
    )
    memory_gib: Measure | None = Field(
        None, description="Memory of a GPU, where it has not the usual size."
    )
    memory_gb_s: Measure | None = Field(
        None, description="Bandwidth of that memory, where it is not the usual one."
    )
    power_limit_w: Measure | None = Field(
        None, description="Power limit of a GPU that is set below its rating."
    )
    host_gb_s: Measure | None = Field(
        None, description="Rated bandwidth of a host's memory, where state lives there."
    )
    n_gpus: CountOrNone = Field(0, description="GPUs in all.")
    gpus_per_node: Count | None = Field(None, description="Default: 8.")
    intra_node: Words | None = Field(None, description="'NVLink3/NVSwitch', say.")
    inter_node: Words | None = Field(None, description="'8x HDR200 per node', say.")


class RunConfig(RunPart):
    """The plan that was run."""

    dp: Count | None = Field(
        None, description="Data-parallel ranks, of replicas and shards."
    )
    tp: Count | None = Field(None, description="Tensor parallelism.")
    pp: LayerCount | None = Field(None, description="Pipeline stages.")
    vp: LayerCount | None = Field(None, description="Virtual stages of each.")
    cp: Count | None = Field(None, description="Context parallelism.")
    ep: Count | None = Field(None, description="Expert parallelism.")
    etp: Count | None = Field(
        None, description="Tensor parallelism inside experts; default by code base."
    )
    sp: Flag | None = Field(None, description="Sequence parallelism.")
    zero_stage: int | None = Field(None, ge=0, le=3, description="ZeRO.")
    optimizer_shard_group: Count | None = Field(
        None, description="Ranks that shard the optimizer."
    )
    fsdp: Words | None = Field(None, description="'hybrid (shard group 128)', say.")
    micro_batch: Count | None = Field(None, description="Sequences at once.")
    global_batch: Count | None = Field(None, description="Sequences per step.")
    recompute: Words | None = Field(
        None, description="'full', 'selective', 'none', or as published."
    )
    recompute_layers: tuple[CountOrNone, ...] | None = Field(
        None, description="Recomputed layers of each stage, where not all are."
    )
    precision: Words = Field(
        "bf16",
        description="Of matmuls; 'bf16-true' and 'nf4' say how weights are kept.",
    )
    mixed_precision_mode: Words | None = Field(None, description="Of LLM Foundry.")
    framework: Words = Field(
        "", description="As published; the first known name in it decides."
    )
    task: Words | None = Field(None, description="'lora' freezes weights.")
    offload: Words | None = Field(
        None,
        description="What lives on the host: 'optimizer, parameters', 'activations'.",
    )
    lora_rank: Count | None = Field(None, description="Of adapters.")
    lora_targets: Words | None = Field(
        None, description="Matrices with adapters: 'attention', 'all linear layers'."
    )
    lora_dropout: Flag | None = Field(None, description="Whether adapters have it.")
    adapters: AdapterFormat | None = Field(
        None, description="In which they are multiplied; as `training.lora.adapters`."
    )
    upcast: Flag | None = Field(
        None, description="Whether all that is not quantised is in fp32."
    )
    frozen_weights: Words | None = Field(
        None, description="In which weights beside adapters are kept: 'nf4', say."
    )
    optimizer: Words | None = Field(None, description="As published.")
    moments: Words | None = Field(
        None, description="Of the optimizer: 'fp32', 'bf16' or '8-bit'."
    )
    master_weights: Words | None = Field(
        None,
        description="As `training.master_weights`; 'bf16' and 'none' are the same.",
    )
    primary_weights: Words | None = Field(
        None,
        description="'fp8': fp8 weights stand for those in 16 bits; 'bf16': matmuls in "
        "fp8 read weights that are kept in 16 bits.",
    )
    attention: Words | None = Field(None, description="'flash', say.")
    schedule: Words | None = Field(None, description="'1F1B', say.")
    compile: Flag | None = Field(None, description="torch.compile.")
    overlap: Words | None = Field(
        None, description="'none', or what hides: 'grad-reduce, param-gather, TP comm'."
    )
    tuned: Literal["vendor", "user"] | None = Field(
        None, description="By whom: the vendor of the GPUs, or a user of them."
    )
    indexer_loss: IndexerLoss = Field(
        "picked", description="Of an indexer; as `training.indexer_loss`."
    )
    fp8_activation_inputs: Flag = Field(
        False, description="Whether activations of MLPs save what they read in 8 bits."
    )
    loss_bytes: LossBytes | None = Field(
        None, description="Per logit at the peak of the loss, beside the logit."
    )
    cp_comm_type: Words | None = Field(
        None, description="Of context parallelism: 'p2p', 'all_gather' or 'a2a'."
    )
    layers_per_stage: tuple[CountOrNone, ...] | None = Field(
        None, description="Where stages are uneven."
    )
    gradient_sync: Literal["each", "last"] | None = Field(
        None, description="As `training.gradient_sync`; default by code base."
    )
    gradients: Literal["bf16", "fp32"] | None = Field(
        None, description="In which they are summed; as `training.gradients`."
    )
    fused: FusedOperations | None = Field(
        None, description="What is one kernel; as `training.fused`."
    )
    text_loops: Flag = Field(
        False, description="The host loops over packed texts: `training.text_loops`."
    )
    cuda_graphs: CudaGraphs | None = Field(
        None, description="Graphs replay the kernels; as `training.cuda_graphs`."
    )
    expandable_segments: Flag | None = Field(
        None, description="As `training.expandable_segments`; default by code base."
    )
    loss_parallel: Flag | None = Field(
        None, description="The loss is of logits that tensor parallelism has split."
    )
    loss_kernel: Words | None = Field(
        None, description="'logits never whole': head and loss in chunks."
    )
    loss_chunks: Count | None = Field(
        None, description="Parts of the sequence that the loss takes one by one."
    )
    mlp_chunks: Count | None = Field(
        None,
        description="Parts of the sequence that an MLP takes one by one: "
        "`training.mlp_chunks`.",
    )
    expert_dispatch: ExpertDispatch | None = Field(
        None, description="How tokens get to experts; as `training.expert_dispatch`."
    )
    expert_imbalance: Imbalance | None = Field(
        None, description="As `training.expert_imbalance`; 1 where balance is forced."
    )


class Measured(RunPart):
    """Times, memory and outcome that the authors published."""

    step_time_s: Measure | None = Field(None, description="Seconds of a step.")
    tokens_per_s_per_gpu: Measure | None = Field(
        None, description="Where no step time is published."
    )
    peak_memory_gb: Measure | None = Field(None, description="Of the fullest GPU.")
    peak_memory_kind: Words | None = Field(
        None, description="'device', 'allocated' or 'reserved'."
    )
    fits: Flag | None = Field(None, description="False: it ran out of memory.")

    @property
    def says_something(self) -> bool:
        """Return whether a time, a peak or an outcome is known."""
        known = (self.step_time_s, self.tokens_per_s_per_gpu, self.peak_memory_gb)
        return self.fits is not None or any(value is not None for value in known)


class RunCheck(RunPart):
    """Doubts about the published values."""

    derived: tuple[str, ...] = Field((), description="Worked out from other fields.")
    issues: tuple[str, ...] | str | None = Field(
        None, description="Published values that contradict each other."
    )


class Run(RunPart):
    """One measured run."""

    id: Words = Field(description="Name of the run.")
    source_id: Words = Field(description="Name of its publication.")
    source: str = Field("", description="Where it is published.")
    date: Annotated[str, BeforeValidator(str)] = Field(
        "", description="Of publication."
    )
    spec: Words | None = Field(
        None,
        description="In place of model, hardware and config: a spec, as `solve` takes "
        "it; a file beside this one, or a bundled name.",
    )
    plan: PlanText | dict[str, Any] | None = Field(
        None,
        description="Beside spec: the plan that was run, as `--plan` takes it, or its "
        "fields. Techniques that it leaves out are off; the rest is chosen.",
    )
    model: RunModel
    hardware: RunHardware
    config: RunConfig
    measured: Measured = Field(default_factory=Measured)
    check: RunCheck | None = None
    notes: str | None = Field(None, description="For the reader.")

    @model_validator(mode="before")
    @classmethod
    def _of_spec(cls, data: Any) -> Any:
        """Return the fields of a run whose spec stands for model and hardware."""
        if not isinstance(data, dict) or data.get("spec") is None:
            return data
        parts: dict[str, Any] = {"model": {}, "hardware": {}, "config": {}}
        return parts | {
            name: value for name, value in data.items() if value is not None
        }

    @property
    def is_contradictory(self) -> bool:
        """Return whether the published values contradict each other."""
        return bool(self.check and self.check.issues)

    @property
    def era(self) -> str:
        """Return the date by which usual code is known; runs without one are new."""
        return self.date or "9999"

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


RUNS = Limits(most_bytes=10_000_000, most_values=300_000)
"""Limits of files of runs: twice the largest known collection, of 1,300 runs."""


def read_runs(path: Path) -> list[Run]:
    """Return the runs of a file, or of all YAML files in a folder.

    Raises:
        SpecError: a file cannot be read, or a row is not a run; names file, line,
            field, value and what is accepted.
    """
    files = sorted(path.glob("*.yaml")) if is_folder(path) else [path]
    if not files:
        raise SpecError(f"{Where(str(path))}: no YAML files in this folder")
    runs: list[Run] = []
    seen: dict[str, Where] = {}
    for run, where in (found for file in files for found in _runs_of(file)):
        first = seen.setdefault(run.id, where)
        if first is not where:
            raise SpecError(f"{where}: id: {shown(run.id)}: already given at {first}")
        runs.append(run)
    return runs


def _runs_of(path: Path) -> Iterator[tuple[Run, Where]]:
    """Yield the runs of a file, each with the place where it starts."""
    is_table = path.suffix == ".csv"
    document = read_table(path, RUNS) if is_table else read_yaml(path, RUNS)
    if not isinstance(document.data, list) or not document.data:
        raise SpecError(f"{document.where(())}: expected a list of runs")
    for index, row in enumerate(document.data):
        try:
            yield _beside(path, Run.model_validate(row)), document.where((index,))
        except ValidationError as error:
            raise SpecError(explain(document.part(index), error, Run)) from None


def _beside(path: Path, run: Run) -> Run:
    """Return a run whose spec and plan are files beside that of the run, if there."""
    named = {"spec": run.spec, "plan": run.plan}
    found = {
        name: str(path.parent / text)
        for name, text in named.items()
        if isinstance(text, str) and is_file(path.parent / text)
    }
    return run.model_copy(update=found)
