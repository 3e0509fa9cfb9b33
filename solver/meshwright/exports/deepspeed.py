"""Plans as a configuration file of DeepSpeed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from meshwright.escape import in_markdown
from meshwright.exports.accelerate import kernel
from meshwright.exports.files import (
    ExportedFile,
    Refusal,
    Sections,
    Setting,
    lora_notes,
    model_page,
    unsaid,
)
from meshwright.exports.launch import (
    COMMAND,
    YOURS,
    Program,
    deepspeed_program,
    launch_files,
    left_to_you,
)
from meshwright.exports.target import Target, all_or_no_layers, layers, listed
from meshwright.frameworks.base.registry import overlap_of
from meshwright.plans.plan import Plan
from meshwright.spec.plan_fields import OFFLOADS
from meshwright.spec.spec import Spec
from meshwright.spec.training import Overlaps

LAYER_CLASS = "transformer"
"""Part of the class name by which DeepSpeed finds the layers."""

CONFIG = "deepspeed.json"
"""Plain JSON: DeepSpeed takes Hjson, with comments, but transformers and Accelerate
read the file by `json.load`."""

SOURCES = "deepspeed.md"
"""The page that says where each number is from: JSON has no comments."""


def files(spec: Spec, plan: Plan) -> list[ExportedFile]:
    """Return the configuration of a plan, the script that starts it, and its model."""
    written = deepspeed_program(spec, plan, kernel(spec))
    program = Program(
        title=f"{spec.title}: DeepSpeed",
        plan=plan,
        command=[
            COMMAND if written else YOURS,
            f"--deepspeed --deepspeed_config {CONFIG}",
        ],
    )
    page = model_page(spec, "DeepSpeed", _notes(spec, plan))
    files = [*config_files(spec, plan), *([written] if written else [])]
    return [*files, *launch_files(spec, program), page]


def config_files(spec: Spec, plan: Plan) -> list[ExportedFile]:
    """Return the configuration of a plan, and the page on its numbers."""
    sections = _sections(spec, plan)
    return [
        ExportedFile(name=CONFIG, text=_config_text(sections)),
        ExportedFile(name=SOURCES, text=_sources_text(sections)),
    ]


def _sections(spec: Spec, plan: Plan) -> Sections:
    """Return the settings of a plan, in the order of the configuration."""
    sections = {
        "": [*_batch(spec, plan), *_sequences(plan), *_precision(spec, plan)],
        "zero_optimization": [*_zero(spec, plan, overlap_of(spec))],
    }
    for name, settings in _offload(spec, plan):
        sections[f"zero_optimization.{name}"] = settings
    if _has_autotp(plan):
        sections["tensor_parallel"] = [Setting("autotp_size", plan.tp, "plan.tp")]
    if plan.ep > 1:
        sections["expert_parallel"] = [
            Setting("enabled", True, "plan.ep is above 1"),
            Setting("autoep_size", plan.ep, "plan.ep"),
        ]
    return sections


def _config_text(sections: Sections) -> str:
    """Return the configuration as JSON."""
    data: dict[str, Any] = {}
    for name, settings in sections.items():
        section = data
        for step in filter(None, name.split(".")):
            section = section.setdefault(step, {})
        section.update({setting.name: setting.value for setting in settings})
    return json.dumps(data, indent=2) + "\n"


def _sources_text(sections: Sections) -> str:
    """Return where each setting is from, a row of markdown per setting."""
    lines = [f"# Where the settings of {CONFIG} are from", ""]
    lines += ["| setting | value | from |", "| --- | --- | --- |"]
    for name, settings in sections.items():
        for setting in settings:
            path = f"{name}.{setting.name}".lstrip(".")
            value = in_markdown(json.dumps(setting.value))
            lines.append(f"| `{path}` | {value} | {in_markdown(setting.why)} |")
    return "\n".join(lines) + "\n"


def _has_autotp(plan: Plan) -> bool:
    """Return whether AutoTP splits the layers; beside a pipeline they do so alone."""
    return plan.tp > 1 and plan.pp == 1


def _batch(spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield the batch; AutoTP's groups are made after DeepSpeed has checked it.

    DeepSpeed compares `train_batch_size` with the micro-batches of all ranks then, so
    that the batch of the step cannot be said; without it nothing is compared.
    """
    batch = spec.training.global_batch
    if not _has_autotp(plan):
        why = f"training.global_batch, over {plan.dp} data-parallel ranks"
        yield Setting("train_batch_size", batch, why)
    name = "train_micro_batch_size_per_gpu"
    yield Setting(name, plan.micro_batch, "plan.micro_batch")
    why = "plan.microbatches"
    if _has_autotp(plan):
        why += f": {batch} sequences a step; train_batch_size would count plan.tp too"
    yield Setting("gradient_accumulation_steps", plan.microbatches, why)


def _sequences(plan: Plan) -> Iterator[Setting]:
    if plan.cp > 1:
        yield Setting("sequence_parallel_size", plan.cp, "plan.cp, which is Ulysses")


def _precision(spec: Spec, plan: Plan) -> Iterator[Setting]:
    kind = "bf16" if plan.precision == "fp8" else plan.precision
    if kind in ("bf16", "fp16"):
        yield Setting(kind, {"enabled": True}, f"plan.precision {plan.precision}")
    checkpoints = {
        "partition_activations": spec.training.partition_activations,
        "cpu_checkpointing": plan.recompute == "full-cpu",
    }
    if settings := {name: True for name, is_on in checkpoints.items() if is_on}:
        why = "training.partition_activations, plan.recompute"
        yield Setting("activation_checkpointing", settings, why)
    sums = _sums(spec, kind)
    if kind in ("bf16", "fp16") and plan.zero <= 1:
        value = {"grad_accum_dtype": sums}
        yield Setting("data_types", value, "training.gradients")


def _sums(spec: Spec, kind: str) -> str:
    """Return the format in which gradients are added up."""
    return spec.training.gradients or ("fp16" if kind == "fp16" else "fp32")


def _needs_stage_1(spec: Spec, plan: Plan) -> bool:
    """Return whether gradients wider than weights need an optimizer of ZeRO-1."""
    kind = "bf16" if plan.precision == "fp8" else plan.precision
    return plan.zero == 0 and kind in ("bf16", "fp16") and _sums(spec, kind) != kind


def _zero(spec: Spec, plan: Plan, overlap: Overlaps) -> Iterator[Setting]:
    stage, why = plan.zero, f"plan.zero {plan.zero}"
    if _needs_stage_1(spec, plan):
        stage = 1
        why += ": one rank shards nothing, and no other stage adds up in fp32"
    yield Setting("stage", stage, why)
    if plan.zero >= 1:
        why = "training.overlap.gradients"
        yield Setting("overlap_comm", "gradients" in overlap, why)
        yield Setting("contiguous_gradients", True, "DeepSpeed's default")
        yield Setting(
            "reduce_bucket_size", 500_000_000, "DeepSpeed's default, as counted"
        )
    if plan.zero == 3:
        name = "stage3_prefetch_bucket_size"
        yield Setting(name, 50_000_000, "DeepSpeed's default, as counted")


def _offload(spec: Spec, plan: Plan) -> Iterator[tuple[str, list[Setting]]]:
    device = spec.training.offload_to
    level = OFFLOADS.index(plan.offload)
    for least, name in ((1, "offload_optimizer"), (3, "offload_param")):
        if level >= least:
            options: list[Setting] = [Setting("device", device, "training.offload_to")]
            options.append(Setting("pin_memory", True, "copies overlap with compute"))
            share = spec.training.offload_fraction
            if name == "offload_optimizer" and share < 1:
                options.append(Setting("ratio", share, "training.offload_fraction"))
            if device == "nvme":
                options.append(Setting("nvme_path", "/local_nvme", "yours to change"))
            yield name, options


def _notes(spec: Spec, plan: Plan) -> Iterator[str]:
    yield (
        "`PROGRAM`, by default `train.py` where it is written, calls "
        "`deepspeed.initialize` with this model; the optimizer is "
        f"{spec.training.optimizer}, sequences are {spec.training.seq_len} tokens."
    )
    if why := left_to_you(spec, plan):
        yield f"No `train.py` is written: {why}."
    else:
        yield f"Attention is `attn_implementation='{kernel(spec)}'`."
    yield from lora_notes(spec)
    yield from unsaid(spec, "DeepSpeed", ("overlap.gradients",) * (plan.zero >= 1))
    if plan.repeats_layers:
        how = "in `deepspeed.checkpointing.checkpoint`"
        if not left_to_you(spec, plan):
            how = "by `model.gradient_checkpointing_enable()`"
        yield f"Every layer is recomputed, {how}."
    if plan.offload in ("optimizer", "gradients", "parameters"):
        yield "The optimizer is `deepspeed.ops.adam.DeepSpeedCPUAdam`."
    if plan.zero == 2 and plan.offload == "optimizer":
        yield "ZeRO-2 moves gradients to the host too; the plan leaves them."
    if plan.precision == "fp8":
        yield "Linear layers are Transformer Engine's, under `fp8_autocast`."
    if _has_autotp(plan):
        yield (
            f"AutoTP splits the linear layers over {plan.tp} ranks: `autotp_size`. The "
            f"DataLoader gives the {plan.tp} ranks of a group the same sequences, and "
            f"DeepSpeed's own `train_batch_size` counts each of them {plan.tp} times."
        )
    if plan.cp > 1:
        yield (
            f"Sequences lie on {plan.cp} ranks by Ulysses: the model is given to "
            "`UlyssesSPAttentionHF.register_with_transformers(..., "
            f"sequence_parallel_size={plan.cp}, micro_batch_size={plan.micro_batch})`, "
            "which returns the `mpu` that `deepspeed.initialize` must be given to "
            "count its batch, and "
            "`UlyssesSPDataLoaderAdapter` splits the batches."
        )
    if plan.ep > 1:
        yield (
            f"AutoEP splits {plan.ep} ways: `preset_model` must know the layers. With "
            "transformers 5.23.0 AutoEP of DeepSpeed 0.19.8 stops: it calls "
            "`_CAN_RECORD_REGISTRY.get` with a default, which that one does not take."
        )
    if plan.pp > 1:
        yield from _pipeline_notes(plan)


def _pipeline_notes(plan: Plan) -> Iterator[str]:
    interval = 1 if plan.repeats_layers else 0
    yield (
        "The model is `PipelineModule(layers, topology=PipeModelDataParallelTopology("
        f"num_pp={plan.pp}, num_mp={plan.tp}, num_dp={plan.dp}), "
        f"partition_method='type:{LAYER_CLASS}', "
        f"activation_checkpoint_interval={interval})`, the class of a layer having "
        f"`{LAYER_CLASS}` in its name: DeepSpeed gives the stages "
        f"{listed(layers(plan))} layers."
    )
    if plan.tp > 1:
        yield (
            f"Its layers split their weights over the {plan.tp} ranks of the "
            "topology's `model` axis themselves, as Megatron-DeepSpeed's do: AutoTP "
            "has no pipeline."
        )


PIPE = "deepspeed/runtime/pipe/module.py"

CHECKPOINTING = (
    "deepspeed/runtime/activation_checkpointing/checkpointing.py: checkpoint"
)


def refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield the choices of a plan that DeepSpeed has no settings for."""
    if _needs_stage_1(spec, plan) and plan.dp * plan.cp > 1:
        sentence = "0 adds no gradients up in fp32 beside 16-bit weights; accepted: "
        sentence += "--pin zero=1, or training.gradients: bf16"
        check = "deepspeed/runtime/engine.py: _do_optimizer_sanity_check"
        yield Refusal("zero", sentence, check)
    check = f"{PIPE}: activation_checkpoint_interval" if plan.pp > 1 else CHECKPOINTING
    yield from all_or_no_layers(plan, check)
    if (
        spec.training.gradients == "bf16"
        and plan.zero <= 1
        and plan.precision == "fp16"
    ):
        check = "deepspeed/runtime/engine.py: _configure_optimizer"
        yield Refusal("training.gradients", "bf16 beside fp16 weights", check)


TARGET = Target(
    title="DeepSpeed",
    version="deepspeed 0.19.8",
    framework="deepspeed",
    refusals=refusals,
    files=files,
)
