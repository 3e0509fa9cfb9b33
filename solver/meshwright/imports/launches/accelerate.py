"""Accelerate's configuration in YAML, or a script that runs `accelerate launch`."""

from __future__ import annotations

from dataclasses import replace

from meshwright.errors import SpecError
from meshwright.imports.launches import deepspeed
from meshwright.imports.launches.command import read_command, variables
from meshwright.imports.launches.hf_trainers import (
    BY_ACCELERATE,
    IN_PYTHON,
    MARKS,
    named_config,
    program_of,
    read_arguments,
    read_offload,
    read_program,
)
from meshwright.imports.launches.launch import Format, Launch, importers
from meshwright.imports.launches.settings import OPTIONS, Setting, Settings, fields
from meshwright.imports.launches.shell import read_script
from meshwright.reading.document import Where
from meshwright.reading.yaml_and_csv import parse_yaml

NAMES = OPTIONS["accelerate"]

TITLE_WITH_DEEPSPEED = "Accelerate with DeepSpeed"

STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
"""The variable that `Accelerator()` reads."""


def _read_yaml(text: str, launch: Launch) -> Settings:
    given = [*fields(parse_yaml(text, launch.name))]
    settings = Settings(given)
    kind = kind_of(settings, launch.name)
    if kind == "deepspeed":
        return _read_deepspeed(given, launch)
    launch.framework = "fsdp"
    read_plan(settings, launch, kind)
    return settings


def kind_of(settings: Settings, name: str) -> str:
    """Return the library that shards: `plain`, `fsdp` or `deepspeed`.

    Raises:
        SpecError: it is none of these, or the file does not say.
    """
    kinds = NAMES["kinds"]
    found = settings.word(kinds, "distributed_type")
    if found is None:
        accepted = f"one of {', '.join(kinds)}"
        for setting in settings.unread():
            setting.refuse(f"expected distributed_type beside it, {accepted}")
        raise SpecError(f"{Where(name)}: distributed_type has no value: {accepted}")
    return str(found[0])


def read_plan(settings: Settings, launch: Launch, kind: str) -> None:
    """Read the plan of a configuration without DeepSpeed."""
    settings.skip(*NAMES["skipped"], *OPTIONS["fsdp"]["skipped"])
    launch.has_one_value("fsdp")
    launch.read(settings, NAMES["degrees"])
    launch.assume({"tp": 1, "cp": 1})
    if launch.value("cp") > 1:
        launch.read(settings, NAMES["exchange"])
        launch.put("training.context_exchange", None, NAMES["usual_exchange"])
    settings.skip(*(row["word"] for row in NAMES["exchange"].values()))
    if kind == "fsdp":
        _read_sharding(settings, launch)
    else:
        launch.set("zero", 0)
        launch.set("offload", "none")
    if kind == "fsdp" or "fsdp_config.activation_checkpointing" in settings:
        _read_recompute(settings, launch)
    launch.read(settings, NAMES["job"])
    setting = settings.get("parallelism_config.parallelism_config_sp_size")
    if setting is not None and str(setting.value) not in ("1", "None"):
        launch.is_not_judged(setting, "Ulysses is DeepSpeed's alone")


def _read_sharding(settings: Settings, launch: Launch) -> None:
    strategies = NAMES["strategies"]
    stages = NAMES["reshards"] | strategies
    found = settings.word(stages, "fsdp_config.reshard_after_forward")
    old = settings.word(strategies, "fsdp_config.sharding_strategy")
    version, _ = settings.count("fsdp_config.version") or (1, None)
    chosen = old if old and version == 1 else found or old
    launch.put("zero", chosen, 3)
    if chosen and str(chosen[1].value).lower() in NAMES["hybrid"]:
        launch.set("has_replicas", True, chosen[1])
    read_offload(settings, launch, version)


def _read_recompute(settings: Settings, launch: Launch) -> None:
    """Read whether FSDP recomputes; where it does not, the program may."""
    name = "fsdp_config.activation_checkpointing"
    if found := settings.flag(name):
        launch.set("recompute", *(("full", found[1]) if found[0] else ("none",)))
    if setting := settings.is_on(f"{name}_offload"):
        launch.keep_inputs_on_host(setting, waits=True)


CONFIG = "config_file"
OF_DEEPSPEED = "deepspeed_config_file"
"""The option of `accelerate launch` that names a configuration of DeepSpeed."""
FILE = "deepspeed_config.deepspeed_config_file"


def _read_deepspeed(settings: list[Setting], launch: Launch) -> Settings:
    """Read a configuration with DeepSpeed in it."""
    names = NAMES["of_deepspeed"]
    given = Settings(
        replace(one, name=names.get(one.name, one.name)) for one in settings
    )
    launch.title, launch.framework = TITLE_WITH_DEEPSPEED, "deepspeed"
    given.skip("distributed_type", *NAMES["skipped"], *OPTIONS["fsdp"]["skipped"])
    launch.read(given, NAMES["job"])
    file = given.get(FILE)
    if file is not None and file.value:
        launch.files.append(file)
        return given
    launch.read(given, NAMES["degrees_beside_deepspeed"])
    launch.read(given, OPTIONS["trainer"]["kernels"])
    deepspeed.read_plan(given, launch)
    launch.assume({"tp": 1, "ep": 1})
    return given


BY_OPTIONS = ("use_fsdp", "multi_gpu")
"""Options of `accelerate launch` that stand in the place of a configuration."""

ALONE = ("num_processes", "num_machines", "mixed_precision")
"""Options that it has beside no configuration, too: replicas, but for the file that
`accelerate config` may have left at home."""


def _read_options(settings: Settings, launch: Launch) -> None:
    """Read what a configuration would say from options, `--fsdp_version 2`."""
    kind = "fsdp" if settings.is_on(BY_OPTIONS[0]) else "plain"
    given = map(settings.get, settings.starting_with([SHARDS]))
    settings.add(
        replace(one, name=f"fsdp_config.{one.name.removeprefix(SHARDS)}")
        for one in given
        if one is not None
    )
    launch.framework = "fsdp"
    read_plan(settings, launch, kind)


SHARDS = "fsdp_"
"""How names of options of FSDP begin."""


def _read_script(text: str, launch: Launch) -> Settings:
    script = read_script(text, launch.name)
    launch.usual = "fsdp"
    marks = (CONFIG, OF_DEEPSPEED, *BY_OPTIONS, *ALONE, *MARKS)
    settings = read_command(text, launch, marks)
    settings.add(variables(script, STEPS))
    launch.read(settings, NAMES["job"])
    read_arguments(settings, launch, text)
    launch.programs += program_of(script, launch.name)
    file, of_deepspeed = settings.file(CONFIG), settings.file(OF_DEEPSPEED)
    if of_deepspeed is not None:
        launch.title, launch.framework = TITLE_WITH_DEEPSPEED, "deepspeed"
        settings.skip("use_deepspeed")
    launch.files += [found for found in (file, of_deepspeed) if found is not None]
    if not launch.files and any(name in settings for name in BY_OPTIONS):
        _read_options(settings, launch)
    elif not launch.files:
        launch.unsharded |= OPTIONS["trainer"]["unsharded"]
    read_program(text, launch)
    if named := named_config(text, launch.name):
        launch.files.append(named)
        settings.skip("config")
    return settings


IMPORTERS = importers(
    Format(
        "accelerate",
        "Accelerate",
        "",
        rf"(?m)\A(?!{IN_PYTHON})[\s\S]{{0,20000}}?"
        rf"(?:^distributed_type[ \t]{{0,9}}:|^{BY_ACCELERATE})",
        {
            r"^(?:distributed_type|compute_environment)[ \t]*:": _read_yaml,
            "": _read_script,
        },
    )
)
