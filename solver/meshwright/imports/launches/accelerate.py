"""Accelerate's configuration in YAML, or a script that runs `accelerate launch`."""

from __future__ import annotations

import re

from meshwright.errors import SpecError
from meshwright.imports.launches import deepspeed
from meshwright.imports.launches.command import (
    command_settings,
    read_launcher,
    variables,
)
from meshwright.imports.launches.hf_trainers import named_config, read_arguments
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.settings import (
    MOST_CHARACTERS,
    Setting,
    Settings,
    check_characters,
    fields,
)
from meshwright.imports.launches.shell import read_script
from meshwright.imports.registry import LaunchImporter
from meshwright.reading.document import Where
from meshwright.reading.yaml_and_csv import parse_yaml

DEGREES = ("tp", "cp", "dp_replicate", "dp_shard")
"""Sizes of `parallelism_config`, which have the names of plans."""

KINDS = {
    "NO": "plain", "MULTI_GPU": "plain", "FSDP": "fsdp", "DEEPSPEED": "deepspeed",
}  # fmt: skip
"""Words of `distributed_type` that are read."""

PRECISIONS: dict[str, str | list[str]] = {
    "no": ["fp32", "tf32"], "bf16": "bf16", "fp16": "fp16", "fp8": "fp8",
}  # fmt: skip

STRATEGIES = {
    "FULL_SHARD": (3, False), "1": (3, False), "SHARD_GRAD_OP": (2, False),
    "2": (2, False), "NO_SHARD": (0, False), "3": (0, False),
    "HYBRID_SHARD": (3, True), "4": (3, True), "HYBRID_SHARD_ZERO2": (2, True),
    "5": (2, True),
}  # fmt: skip
"""Strategies of FSDP 1: the ZeRO stage, and whether replicas span hosts."""

RESHARDS = {
    "true": (3, False), "false": (2, False),
} | STRATEGIES  # fmt: skip

DEEPSPEED = {
    "deepspeed_config.zero_stage": "zero_optimization.stage",
    "deepspeed_config.gradient_accumulation_steps": "gradient_accumulation_steps",
    "deepspeed_config.offload_optimizer_device":
        "zero_optimization.offload_optimizer.device",
    "deepspeed_config.offload_param_device": "zero_optimization.offload_param.device",
}  # fmt: skip
"""Keys of `deepspeed_config`, and the keys of DeepSpeed that they are."""

STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
"""The variable that `Accelerator()` reads."""

AS_COUNTED = (
    "compute_environment", "num_machines", "machine_rank", "main_training_function",
    "rdzv_backend", "same_network", "use_cpu", "main_process_ip", "main_process_port",
    "gpu_ids", "fsdp_config.fsdp_version", "fsdp_config.fsdp_auto_wrap_policy",
    "fsdp_config.fsdp_cpu_ram_efficient_loading", "fsdp_config.fsdp_state_dict_type",
    "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
)  # fmt: skip
"""Keys whose values we assume anyway, and those by which ranks find one another."""


def parse(text: str, name: str) -> Launch:
    """Return the launch of a configuration, or of a script that names one.

    Raises:
        SpecError: the text is neither, or a value is none that its key takes.
    """
    check_characters(text, name)
    if not _YAML.search(text):
        return _of_script(text, name)
    document = parse_yaml(text, name)
    given = Settings(fields(document))
    kind = kind_of(given, name)
    if kind == "deepspeed":
        return _of_deepspeed([*fields(document)], name)
    launch = Launch("accelerate", "Accelerate", "fsdp", name)
    read_plan(given, launch, kind)
    launch.close(given)
    return launch


def kind_of(settings: Settings, name: str) -> str:
    """Return the library that shards: `plain`, `fsdp` or `deepspeed`.

    Raises:
        SpecError: it is none of these, or the file does not say.
    """
    found = settings.word(KINDS, "distributed_type")
    if found is None:
        accepted = f"one of {', '.join(KINDS)}"
        for setting in settings.unread():
            setting.refuse(f"expected distributed_type beside it, {accepted}")
        raise SpecError(f"{Where(name)}: distributed_type has no value: {accepted}")
    return found[0]


def read_plan(settings: Settings, launch: Launch, kind: str) -> None:
    """Read the plan of a configuration without DeepSpeed.

    Raises:
        SpecError: a value is none that its key takes, or keys contradict.
    """
    settings.skip(*AS_COUNTED)
    launch.has_one_value("fsdp")
    for field in DEGREES:
        name = f"parallelism_config.parallelism_config_{field}_size"
        launch.put(field, settings.count(name))
    for field in ("tp", "cp"):
        launch.set(field, launch.value(field) or 1)
    if kind == "fsdp":
        _read_sharding(settings, launch)
    else:
        launch.set("zero", 0)
        launch.set("offload", "none")
    if kind == "fsdp" or "fsdp_config.fsdp_activation_checkpointing" in settings:
        _read_recompute(settings, launch)
    read_job(settings, launch)
    for name in ("sp", "cp_comm"):
        setting = settings.get(f"parallelism_config.parallelism_config_{name}_size")
        if setting is not None and str(setting.value) not in ("1", "None"):
            launch.is_not_judged(setting, "Ulysses is not priced")


def read_job(settings: Settings, launch: Launch) -> None:
    """Read GPUs, precision and micro-batches."""
    launch.put("gpus", settings.count("num_processes"))
    launch.put("precision", settings.word(PRECISIONS, "mixed_precision"))
    launch.put(
        "microbatches", settings.count("gradient_accumulation_steps", STEPS.lower())
    )


def _read_sharding(settings: Settings, launch: Launch) -> None:
    found = settings.word(RESHARDS, "fsdp_config.fsdp_reshard_after_forward")
    old = settings.word(STRATEGIES, "fsdp_config.fsdp_sharding_strategy")
    version = settings.count("fsdp_config.fsdp_version")
    chosen = old if old and (version is None or version[0] == 1) else found or old
    if chosen:
        (stage, is_hybrid), setting = chosen
        launch.set("zero", stage, setting)
        if is_hybrid:
            launch.set("has_replicas", True, setting)
    else:
        launch.set("zero", 3)
    offload = settings.flag("fsdp_config.fsdp_offload_params")
    is_on = offload is not None and offload[0]
    launch.set("offload", "parameters" if is_on else "none", offload and offload[1])


def _read_recompute(settings: Settings, launch: Launch) -> None:
    """Read what FSDP recomputes; where that is nothing, the program may itself."""
    name = "fsdp_config.fsdp_activation_checkpointing"
    if found := settings.flag(name):
        launch.set("recompute", *(("full", found[1]) if found[0] else ("none",)))


_YAML = re.compile(r"^(?:distributed_type|compute_environment)[ \t]*:", re.M)

CONFIG = "config_file"
FILE = "deepspeed_config.deepspeed_config_file"


def _of_deepspeed(settings: list[Setting], name: str) -> Launch:
    """Return the launch of a configuration with DeepSpeed in it."""
    names = DEEPSPEED
    renamed = [
        Setting(
            names.get(setting.name, setting.name),
            setting.value,
            setting.where,
            setting.written,
        )
        for setting in settings
    ]
    given = Settings(renamed)
    launch = Launch("accelerate", "Accelerate with DeepSpeed", "deepspeed", name)
    given.skip("distributed_type", *AS_COUNTED)
    read_job(given, launch)
    file = given.get(FILE)
    if file is not None and file.value:
        launch.files.append(file)
    else:
        for field, size in (("cp", "sp"), ("tp", "tp"), ("dp_shard", "dp_shard")):
            option = f"parallelism_config.parallelism_config_{size}_size"
            launch.put(field, given.count(option))
        deepspeed.read_plan(given, launch)
        for field in ("tp", "ep"):
            launch.set(field, launch.value(field) or 1)
    launch.close(given)
    return launch


def _of_script(text: str, name: str) -> Launch:
    script = read_script(text, name)
    settings = Settings(
        [*command_settings(script, (CONFIG,)), *variables(script, STEPS)]
    )
    launch = Launch("accelerate", "Accelerate", "", name)
    read_launcher(script, text, settings, launch)
    read_job(settings, launch)
    read_arguments(settings, launch)
    file = settings.file(CONFIG)
    launch.files += [file] if file is not None else []
    if named := named_config(text, name):
        launch.files.append(named)
        settings.skip("config")
    launch.close(settings)
    return launch


IMPORTERS = {
    "accelerate": LaunchImporter(
        sign=r"(?m)^distributed_type[ \t]{0,9}:|\baccelerate[ ]{1,9}launch\b",
        parse=parse,
        most_characters=MOST_CHARACTERS,
    ),
}
