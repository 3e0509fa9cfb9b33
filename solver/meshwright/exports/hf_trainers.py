"""Plans as configurations of programs on top of Hugging Face's Trainer.

Axolotl, LLaMA-Factory and TRL have the same few settings by names of their own: a table
of names, and one writer. How the state is sharded stands in Accelerate's file (FSDP),
in DeepSpeed's, or in Axolotl's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from meshwright.cost.state import loss_chunks
from meshwright.exports import accelerate, deepspeed
from meshwright.exports.files import (
    TABLES,
    TRAINED_WHOLE,
    USUAL_DROPOUT,
    ExportedFile,
    Refusal,
    Setting,
    adapted_matrices,
    commented,
    model_page,
    unsaid,
    yaml_value,
)
from meshwright.exports.launch import TORCHRUN, TRIAL_STEPS, Program, launch_files
from meshwright.exports.target import Target, all_or_no_layers
from meshwright.imports.launches.hf_trainers import PROGRAMS, TrainerNames
from meshwright.imports.launches.settings import OPTIONS, inverse
from meshwright.plans.plan import Plan
from meshwright.spec.spec import Spec
from meshwright.spec.training import Lora


@dataclass(frozen=True)
class Trainer:
    """One of the programs: what it calls the settings, and how it is started."""

    read: TrainerNames
    """Its title, and the names by which its files are read."""
    version: str
    """Name and version of the package whose checks accept the files."""
    file: str
    module: str
    """The module that `python -m` starts."""
    others: Mapping[str, str]
    """By meaning, the names of further settings."""
    kernels: Mapping[str, str]
    """Its words for attention of `transformers`, where they are others."""
    always: tuple[Setting, ...]
    """The options that a trial needs beside the plan."""
    of_pairs: tuple[Setting, ...]
    """The same where it trains on pairs of answers beside a reference."""
    module_of_pairs: str
    axes: frozenset[str]
    """Degrees that it takes beside data parallelism under FSDP."""
    adapters: Callable[[Lora, list[str]], Iterator[Setting]]

    @property
    def title(self) -> str:
        """Return its name as its authors write it."""
        return self.read.title

    @property
    def names(self) -> Mapping[str, str]:
        """Return the name of every setting, by meaning."""
        return {**self.read.names, **self.others}


def files(program: Trainer, spec: Spec, plan: Plan) -> list[ExportedFile]:
    """Return the configuration of a plan, what shards it, and the script."""
    is_fsdp = spec.framework == "fsdp"
    has_own = program is AXOLOTL
    settings = [*_settings(program, spec, plan)]
    text = "".join(commented(_yaml(settings), indent=""))
    shards: list[ExportedFile] = []
    if is_fsdp and not has_own:
        sharded = accelerate.config_text(spec, plan)
        shards = [ExportedFile(name=accelerate.CONFIG, text=sharded)]
    elif not is_fsdp:
        shards = deepspeed.config_files(spec, plan)
    option = "--config " if program is TRL else ""
    by_accelerate = is_fsdp and not has_own
    script = Program(
        title=f"{spec.title}: {program.title}",
        plan=plan,
        command=[f"-m {_module(program, spec)} {option}{program.file}"],
        launcher=accelerate.LAUNCHER if by_accelerate else TORCHRUN,
    )
    config = ExportedFile(name=program.file, text=text)
    page = model_page(spec, program.title, _notes(program, spec, plan))
    return [config, *shards, *launch_files(spec, script), page]


def _yaml(settings: list[Setting]) -> Iterator[tuple[str, str]]:
    for setting in settings:
        yield f"{setting.name}: {yaml_value(setting.value)}", setting.why


def _settings(program: Trainer, spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield the settings of the program's own file."""
    for meaning, value, why in _meant(spec, plan):
        yield Setting(program.names[meaning], value, why)
    # Axolotl's ring is one of flash attention; PyTorch's splits its own alone.
    has_ring = program is AXOLOTL
    kernel = (
        accelerate.kernel(spec) if has_ring else accelerate.implementation(spec, plan)
    )
    word = program.kernels.get(kernel, kernel)
    yield Setting(program.names["attention"], word, "training.attention")
    yield from _recomputation(program, spec, plan)
    has_pairs = spec.training.has_reference
    if program is TRL and not has_pairs:
        chunks = loss_chunks(spec)
        loss, why = "chunked_nll" if chunks > 1 else "nll", "training.loss_chunks"
        yield Setting("loss_type", loss, why)
    if program is AXOLOTL and (parts := spec.training.mlp_chunks) > 1:
        yield Setting("tiled_mlp", True, "training.mlp_chunks")
        yield Setting("tiled_mlp_num_shards", parts, "training.mlp_chunks")
    if spec.framework == "deepspeed":
        yield Setting("deepspeed", deepspeed.CONFIG, f"plan.zero {plan.zero}")
    elif program is AXOLOTL:
        yield from _axolotl_shards(plan)
    if spec.framework == "fsdp" and plan.microbatches > 1 and plan.zero >= 2:
        kept = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
        why = "gradients are sharded after each micro-batch, as counted"
        yield Setting("accelerator_config", kept, why)
    if spec.training.lora is not None:
        names = sorted(adapted_matrices(spec.model, spec.training.lora))
        yield from program.adapters(spec.training.lora, names)
    elif program is LLAMA_FACTORY:  # adapters are its default
        yield Setting("finetuning_type", "full", "training.lora, which is not given")
    if has_pairs and program is TRL and spec.training.lora is None:
        dtype = {"bf16": "bfloat16", "fp32": "float32"}[spec.training.reference_model]
        yield Setting("dtype", dtype, "training.reference_model")
    yield from program.of_pairs if has_pairs else program.always


def _module(program: Trainer, spec: Spec) -> str:
    has_pairs = spec.training.has_reference
    return program.module_of_pairs if has_pairs else program.module


def _meant(spec: Spec, plan: Plan) -> Iterator[tuple[str, Any, str]]:
    """Yield meanings that all of the programs have, and their values."""
    training = spec.training
    yield "model", spec.model.details.hub or "YOUR_MODEL", "model.details.hub"
    yield "training.seq_len", training.seq_len, "training.seq_len"
    if not training.has_reference:
        yield "micro_batch", plan.micro_batch, "plan.micro_batch"
    else:
        yield "micro_batch", plan.micro_batch // 2, "plan.micro_batch, in pairs"
    why = f"plan.microbatches: {training.global_batch} sequences a step"
    yield "microbatches", plan.microbatches, why
    yield "bf16", plan.precision in ("bf16", "fp8"), f"plan.precision {plan.precision}"
    yield "fp16", plan.precision == "fp16", f"plan.precision {plan.precision}"
    yield "optimizer", OPTIMIZERS[training.optimizer], "training.optimizer"
    if training.compile:
        yield "compile", True, "training.compile"
    yield "steps", TRIAL_STEPS, "yours"


def _recomputation(program: Trainer, spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield whether layers are recomputed, where FSDP's file does not say it."""
    leaves = plan.recompute == "full-cpu"
    by_fsdp = spec.framework == "fsdp" and plan.zero >= 2
    # Axolotl's option moves the inputs of its recomputation, not of FSDP's.
    by_program = not by_fsdp or (leaves and program is AXOLOTL)
    why = f"plan.recompute {plan.recompute}"
    if not by_program:
        why = "FSDP recomputes: activation_checkpointing"
    name, where_full = program.read.recomputes
    yield Setting(name, (by_program and plan.repeats_layers) == where_full, why)
    if by_program and leaves:
        yield Setting(*program.read.offloads, why)
    if program is TRL and spec.training.offload_activations:
        yield Setting(*program.read.offloads, "training.offload_activations")


def _axolotl_shards(plan: Plan) -> Iterator[Setting]:
    """Yield degrees, and how FSDP shards, in Axolotl's names."""
    if plan.zero < 2:
        return
    for axis in ("dp_replicate", "dp_shard", "tp", "cp"):
        yield Setting(AXOLOTL.names[axis], getattr(plan, axis), f"plan.{axis}")
    yield Setting("fsdp_version", 2, "fully_shard")
    config = {
        "reshard_after_forward": plan.zero == 3,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "activation_checkpointing": plan.recompute == "full",
        "offload_params": plan.offload == "parameters",
        "cpu_ram_efficient_loading": True,
        "state_dict_type": "SHARDED_STATE_DICT",
    }
    why = f"plan.zero {plan.zero}, plan.recompute, plan.offload"
    yield Setting("fsdp_config", config, why)


OPTIMIZERS = inverse(OPTIONS["trainer"]["optimizer"]["training.optimizer"]["words"])
"""Words of `transformers` for optimizers."""


def _dropped(lora: Lora) -> Setting:
    """Return the share of inputs that adapters drop; TRL's default is 0.05."""
    return Setting(
        "lora_dropout", USUAL_DROPOUT * lora.dropout, "training.lora.dropout"
    )


def _axolotl_adapters(lora: Lora, names: list[str]) -> Iterator[Setting]:
    is_small = lora.weights == "nf4"
    yield Setting("adapter", "qlora" if is_small else "lora", "training.lora")
    yield Setting("load_in_4bit", is_small, "training.lora.weights")
    yield Setting("load_in_8bit", lora.weights == "int8", "training.lora.weights")
    yield Setting("lora_r", lora.rank, "training.lora.rank")
    yield Setting("lora_alpha", 2 * lora.rank, "yours")
    yield _dropped(lora)
    yield Setting("lora_target_modules", names, "training.lora.targets")
    if lora.trains_ends:
        yield Setting("lora_modules_to_save", [*TRAINED_WHOLE], "training.lora.ends")


def _factory_adapters(lora: Lora, names: list[str]) -> Iterator[Setting]:
    yield Setting("finetuning_type", "lora", "training.lora")
    yield Setting("lora_rank", lora.rank, "training.lora.rank")
    yield _dropped(lora)
    yield Setting("lora_target", ",".join(names), "training.lora.targets")
    if lora.trains_ends:
        whole = ",".join(TRAINED_WHOLE)
        yield Setting("additional_target", whole, "training.lora.ends")
    if bits := {"nf4": 4, "int8": 8}.get(lora.weights):
        yield Setting("quantization_bit", bits, "training.lora.weights")


def _trl_adapters(lora: Lora, names: list[str]) -> Iterator[Setting]:
    yield Setting("use_peft", True, "training.lora")
    dtype = "float32" if lora.weights == "fp32" else "bfloat16"
    yield Setting("dtype", dtype, "training.lora.weights; float32 is TRL's default")
    yield Setting("lora_r", lora.rank, "training.lora.rank")
    yield _dropped(lora)
    yield Setting("lora_target_modules", names, "training.lora.targets")
    if lora.trains_ends:
        yield Setting("lora_modules_to_save", [*TRAINED_WHOLE], "training.lora.ends")
    yield Setting("load_in_4bit", lora.weights == "nf4", "training.lora.weights")
    if lora.weights == "nf4":
        yield Setting("use_bnb_nested_quant", True, "double quantisation, as counted")
    yield Setting("load_in_8bit", lora.weights == "int8", "training.lora.weights")


def _trainer(
    name: str, adapters: Callable[[Lora, list[str]], Iterator[Setting]]
) -> Trainer:
    told = TABLES["trainers"][name]
    return Trainer(
        read=PROGRAMS[name.replace("-", "_")],
        version=told["version"],
        file=told["file"],
        module=told["module"],
        others=told["others"],
        kernels=told.get("kernels", {}),
        always=tuple(Setting(*setting) for setting in told["always"]),
        of_pairs=tuple(Setting(*setting) for setting in told["of_pairs"]),
        module_of_pairs=told.get("module_of_pairs", told["module"]),
        axes=frozenset(told.get("axes", ())),
        adapters=adapters,
    )


AXOLOTL = _trainer("axolotl", _axolotl_adapters)
LLAMA_FACTORY = _trainer("llama-factory", _factory_adapters)
TRL = _trainer("trl", _trl_adapters)

RING_KERNEL = "flash_attention_2"
"""The attention that Axolotl splits sequences with."""


def _notes(program: Trainer, spec: Spec, plan: Plan) -> Iterator[str]:
    yield f"`{program.file}` takes the model of the Hugging Face hub, with its weights."
    if spec.model.details.hub is None:
        yield "The spec has no `model.details.hub`: replace `YOUR_MODEL`."
    yield "Data and rate are yours to change; ten steps are a trial."
    if plan.cp > 1:
        yield (
            f"Sequences lie on {plan.cp} ranks, which need the attention in "
            f"`{program.file}`."
        )
    own = program.read.loss_chunks(spec.training.seq_len, plan.micro_batch)
    said = {"compile", "reference_model"}
    if program is TRL and loss_chunks(spec) in (1, own):
        said.add("loss_chunks")
    # The exchange is in Accelerate's file.
    said.add("mlp_chunks" if program is AXOLOTL else "context_exchange")
    yield from unsaid(spec, program.title, said)


def refusals(program: Trainer, spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield the fields of a plan that a program has no setting for."""
    of = accelerate if spec.framework == "fsdp" else deepspeed
    yield from of.refusals(spec, plan)
    yield from accelerate.left_activations(spec, has_trl=program is TRL)
    taken = program.axes if spec.framework == "fsdp" else frozenset[str]()
    for axis in ("tp", "cp", "pp", "ep"):
        if (degree := getattr(plan, axis)) > 1 and axis not in taken:
            sentence = f"{degree} is not written for {program.title} yet; accepted: "
            yield Refusal(axis, f"{sentence}--pin {axis}=1", "Meshwright's exports")
    if plan.precision not in ("bf16", "fp16", "fp32", "tf32"):
        sentence = f"{plan.precision} is not written for {program.title} yet"
        yield Refusal("precision", sentence, "Meshwright's exports")
    yield from _reference_refusals(program, spec, plan)
    kernel = accelerate.kernel(spec)
    if program is AXOLOTL and plan.cp > 1 and kernel != RING_KERNEL:
        sentence = f"{kernel}: its ring of sequences needs {RING_KERNEL}"
        check = "axolotl/utils/schemas/validation.py: check_context_parallel_size"
        yield Refusal("training.attention", sentence, check)
    if spec.framework == "deepspeed":
        yield from all_or_no_layers(plan, deepspeed.CHECKPOINTING)


def _reference_refusals(program: Trainer, spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield formats of a reference in which a program does not load it.

    TRL loads it as what it trains, which FSDP alone keeps in fp32 beside 16 bits.
    """
    kept, field = spec.training.reference_model, "training.reference_model"
    if spec.training.lora is not None:
        return
    if kept == "fp32" and program is not TRL:
        sentence = f"fp32 is not how {program.title} loads it; accepted: bf16"
        yield Refusal(field, sentence, "Meshwright's exports")
    elif kept == "bf16" and program is TRL and not has_wide_copies(spec, plan):
        sentence = "bf16 is also what it would train in; accepted: fp32"
        yield Refusal(field, sentence, "trl/trainer/utils.py: create_model_from_path")


def has_wide_copies(spec: Spec, plan: Plan) -> bool:
    """Return whether what is trained is in fp32, whatever it is loaded as."""
    return spec.framework == "deepspeed" or plan.zero >= 2


def _target(program: Trainer) -> Target:
    """Return the target of a program, for plans of FSDP and of DeepSpeed."""
    return Target(
        title=program.title,
        version=program.version,
        framework="fsdp",
        refusals=partial(refusals, program),
        files=partial(files, program),
        also=("deepspeed",),
    )


TARGETS = {
    "axolotl": _target(AXOLOTL),
    "llama-factory": _target(LLAMA_FACTORY),
    "trl": _target(TRL),
}
