"""DeepSpeed's configuration in JSON or Hjson, or a script that names one."""

from __future__ import annotations

import re

from meshwright.imports.launches.command import command_settings, read_launcher
from meshwright.imports.launches.formats import parse_hjson
from meshwright.imports.launches.hf_trainers import read_arguments
from meshwright.imports.launches.launch import FieldValue, Launch
from meshwright.imports.launches.megatron import DEGREES, read_recompute
from meshwright.imports.launches.megatron_options import read_model
from meshwright.imports.launches.settings import (
    MOST_CHARACTERS,
    Setting,
    Settings,
    check_characters,
    fields,
    number_of,
)
from meshwright.imports.launches.shell import read_script
from meshwright.imports.registry import LaunchImporter

BATCH = {
    "train_batch_size": "training.global_batch",
    "train_micro_batch_size_per_gpu": "micro_batch",
    "gradient_accumulation_steps": "microbatches",
}
"""Keys that hold numbers of sequences, and the fields that they are."""

OFFLOADS = {
    "zero_optimization.offload_optimizer.device": "optimizer",
    "zero_optimization.offload_param.device": "parameters",
}
"""Keys that name where state lives, and the offload that a device there means."""

DEVICES = {"none": None, "cpu": "cpu", "nvme": "nvme"}

OPTIMIZERS = {
    "adam": "adamw", "adamw": "adamw", "sgd": "sgd", "adafactor": "adafactor",
    "muon": "muon",
    "cpuadam": "adamw", "fusedadam": "adamw", "adamw8bit": "adamw-8bit",
}  # fmt: skip

SUMS = {"bf16": "bf16", "fp16": "bf16", "fp32": "fp32"}
"""Words of `data_types.grad_accum_dtype`, and the gradients of specs."""

NOT_JUDGED = {
    "zero_optimization.zero_hpz_partition_size": "weights are sharded over all ranks",
    "zero_optimization.zero_quantized_weights": "weights are gathered unquantised",
    "zero_optimization.zero_quantized_gradients": "gradients are reduced unquantised",
    "zero_optimization.mics_shard_size": "DeepSpeed has removed MiCS",
    "data_parallel_size": "ZeRO is counted over the ranks of a sequence too",
}
"""Keys that change time or memory, and the assumption that we price instead."""

_PLAIN = ("1", "false", "none", "-1", "1.0")

_AS_COUNTED = (
    "zero_optimization.contiguous_gradients",
    "zero_optimization.reduce_bucket_size", "zero_optimization.reduce_scatter",
    "zero_optimization.stage3_prefetch_bucket_size", "expert_parallel.enabled",
    "zero_optimization.offload_optimizer.pin_memory", "pipeline.partition",
    "zero_optimization.offload_optimizer.nvme_path",
    "zero_optimization.offload_param.pin_memory",
    "zero_optimization.offload_param.nvme_path",
)  # fmt: skip


def parse(text: str, name: str) -> Launch:
    """Return the launch of a configuration, or of a script that names one.

    Raises:
        SpecError: the text is neither, or a value is none that its key takes.
    """
    check_characters(text, name)
    launch = Launch("deepspeed", "DeepSpeed", "deepspeed", name)
    if _HJSON.match(text):
        settings = Settings(fields(parse_hjson(text, name)))
        read_plan(settings, launch)
    else:
        settings = _read_script(text, launch)
    launch.close(settings)
    return launch


def read_plan(settings: Settings, launch: Launch) -> None:
    """Read the plan and the job.

    Raises:
        SpecError: a value is none that its key takes, or keys contradict.
    """
    settings.skip(*_AS_COUNTED)
    for name, field in BATCH.items():
        launch.put(field, settings.count(name))
    launch.put(
        "training.overlap.gradients", settings.flag("zero_optimization.overlap_comm")
    )
    _read_stage(settings, launch)
    _read_offload(settings, launch)
    _read_precision(settings, launch)
    for name, field in (
        ("tensor_parallel.autotp_size", "tp"),
        ("pipeline.stages", "pp"),
        ("expert_parallel.autoep_size", "ep"),
        ("sequence_parallel_size", "cp"),
    ):
        launch.put(field, settings.count(name))
    if (launch.value("tp") or 1) > 1:
        launch.set("pp", 1)  # AutoTP has no pipeline
    if settings.has_auto:  # left to the Trainer of transformers, which splits no model
        for name in ("tp", "pp", "ep"):
            if launch.value(name) is None:
                launch.set(name, 1)
    _read_recomputed(settings, launch)
    _read_inputs_on_host(settings, launch)
    if setting := settings.is_on("activation_checkpointing.partition_activations"):
        launch.set("training.partition_activations", True, setting)
    launch.note_unpriced(settings, NOT_JUDGED, _PLAIN)


def _read_stage(settings: Settings, launch: Launch) -> None:
    stage = settings.count("zero_optimization.stage", "zero_stage", least=0)
    if stage is None and "zero_optimization.stage" not in settings:
        launch.set("zero", 0)
    elif stage:
        if stage[0] > 3:
            stage[1].refuse("accepted: 0 to 3")
        launch.set("zero", *stage)
    launch.has_one_value("deepspeed")
    if launch.value("zero") in (2, 3):
        launch.set("pp", 1)  # the pipeline engine refuses them


def _read_offload(settings: Settings, launch: Launch) -> None:
    found: tuple[str, Setting] | None = None
    is_open = False
    for name, offload in OFFLOADS.items():
        device = settings.word(DEVICES, name)
        is_open |= name in settings and device is None
        if device and device[0]:
            found = offload, device[1]
            launch.set("training.offload_to", *device)
    for name in (
        "zero_optimization.offload_optimizer",
        "zero_optimization.offload_param",
    ):
        settings.skip(name)
    if _is_split(settings, launch, found):
        return
    if found is None:
        launch.set("offload", None if is_open else "none")
    elif found[0] == "optimizer" and launch.value("zero") == 2:
        # ZeRO-2 moves gradients to the host with the optimizer; plans may leave them.
        launch.set("offload", ["optimizer", "gradients"], found[1])
    else:
        launch.set("offload", *found)


def _is_split(
    settings: Settings, launch: Launch, found: tuple[str, Setting] | None
) -> bool:
    """Read the share of the optimizer that leaves; return whether that is all.

    A share of 0 leaves the whole optimizer on the GPU.
    """
    setting = settings.get("zero_optimization.offload_optimizer.ratio")
    share = None if setting is None else number_of(setting)
    if setting is None or share is None:
        return False
    if found is None:
        launch.changes_nothing(setting, "nothing is offloaded")
    elif found[0] == "parameters" and share < 1:
        launch.is_not_judged(setting, "all of the optimizer is offloaded")
    elif share == 0:
        launch.set("offload", "none", setting)
        return True
    else:
        launch.set("training.offload_fraction", share, setting)
    return False


def _read_precision(settings: Settings, launch: Launch) -> None:
    names = ("bf16.enabled", "bfloat16.enabled"), ("fp16.enabled",)
    brain, half = (settings.is_on(*several) for several in names)
    if brain and half:
        half.refuse(f"contradicts {brain} ({brain.where}); accepted: one of them")
    if brain:
        launch.set("precision", ["bf16", "fp8"], brain)
    elif half:
        launch.set("precision", "fp16", half)
    elif not any(name in settings for several in names for name in several):
        launch.set("precision", ["fp32", "tf32"])
    launch.put("training.gradients", settings.word(SUMS, "data_types.grad_accum_dtype"))
    optimizer = settings.get("optimizer.type")
    if optimizer is not None and str(optimizer.value).lower() in OPTIMIZERS:
        word = OPTIMIZERS[str(optimizer.value).lower()]
        launch.set("training.optimizer", word, optimizer)


def _read_recomputed(settings: Settings, launch: Launch) -> None:
    every = settings.count("pipeline.activation_checkpoint_interval", least=0)
    if every is None:
        return
    if every[0] > 1:
        launch.is_not_judged(every[1], "each layer counts as kept by itself, as with 1")
    launch.set("recompute", "full" if every[0] else "none", every[1])


def _read_inputs_on_host(settings: Settings, launch: Launch) -> None:
    """Read whether the inputs of recomputed layers wait in host memory.

    The key says so of layers that the program or another file recomputes.
    """
    names = "activation_checkpointing.cpu_checkpointing", "checkpoint_in_cpu"
    setting = settings.is_on(*names)
    if setting is None:
        return
    if launch.value("recompute") == "none":
        launch.changes_nothing(setting, "no layer is recomputed")
    else:
        launch.values["recompute"] = FieldValue("full-cpu", setting)


FILES = ("deepspeed_config", "deepspeed_config_file", "deepspeed")
"""Options that name the configuration; the last is the Trainer's, or a switch."""

CHECKPOINTS = (
    "checkpoint_activations", "deepspeed_activation_checkpointing",
    "gradient_checkpointing", "activation_checkpointing",
)  # fmt: skip
"""Flags of Megatron-DeepSpeed and DeepSpeedExamples that recompute every layer."""

_HJSON = re.compile(r"\A(?:\s|#[^\n]*\n|//[^\n]*\n|/\*[\s\S]{0,9999}?\*/){0,999}\{")


def _read_script(text: str, launch: Launch) -> Settings:
    """Read the options of a script, with those of Megatron-DeepSpeed."""
    script = read_script(text, launch.name)
    settings = Settings(command_settings(script, FILES))
    read_launcher(script, text, settings, launch)
    if read_arguments(settings, launch):
        launch.has_one_value("transformers")
    file = settings.file(*FILES)
    if file is not None and file not in launch.files:
        launch.files.append(file)
    settings.skip(*FILES)  # without a file they are switches
    launch.has_one_value("deepspeed")
    for field, names in DEGREES.items():
        if field != "ep" and (found := settings.count(*names)):
            launch.set(field, *found)
    read_recompute(settings, launch, is_complete=False)
    if setting := settings.is_on(*CHECKPOINTS):
        launch.set("recompute", "full", setting)
    _read_inputs_on_host(settings, launch)
    for field, names in (
        ("micro_batch", ("micro_batch_size", "per_device_train_batch_size")),
        ("microbatches", ("gradient_accumulation_steps",)),
        ("training.global_batch", ("global_batch_size",)),
        ("training.seq_len", ("seq_length", "max_seq_len", "max_length")),
        ("zero", ("zero_stage",)),
    ):
        launch.put(field, settings.count(*names, least=0))
    read_model(settings, launch, is_complete=False)
    return settings


IMPORTERS = {
    "deepspeed": LaunchImporter(
        sign=r"\A(?:[\s\S]{0,20000}--deepspeed(?:[ _]config)?\b"
        r"|(?=[\s\S]{0,4000}\{)(?=[\s\S]{0,20000}(?<![\w.])\"?(?:zero_optimization"
        r"|train_batch_size|train_micro_batch_size_per_gpu)\"?[ \t]{0,9}:))"
        r"(?![\s\S]{0,20000}distributed_type[ \t]{0,9}:)",
        parse=parse,
        most_characters=MOST_CHARACTERS,
    ),
}
