"""Nanotron's YAML, or a script that starts `run_train.py` with it."""

from __future__ import annotations

import math

from meshwright.imports.launches.command import read_command
from meshwright.imports.launches.launch import Format, Launch, importers
from meshwright.imports.launches.settings import OPTIONS, Settings, fields
from meshwright.reading.yaml_and_csv import parse_yaml

NAMES = OPTIONS["nanotron"]

MODEL = "model.model_config"


def _read_yaml(text: str, launch: Launch) -> Settings:
    settings = Settings(fields(parse_yaml(text, launch.name)))
    read_plan(settings, launch)
    return settings


def read_plan(settings: Settings, launch: Launch) -> None:
    """Read the plan, the job and the model."""
    settings.skip(*NAMES["skipped"])
    settings.skip(*(f"{MODEL}.{name}" for name in NAMES["skipped_of_model"]))
    for rows in ("degrees", "counts"):
        launch.read(settings, NAMES[rows], is_whole=True)
    if dp := settings.count("parallelism.dp"):
        degrees = [int(launch.value(field)) for field in NAMES["degrees"]]
        launch.set("gpus", dp[0] * math.prod(degrees), dp[1])
        parts = [dp[0], launch.value("micro_batch"), launch.value("microbatches")]
        if None not in parts:
            launch.set("training.global_batch", math.prod(parts), dp[1])
    launch.set("vpp", 1)
    launch.set("offload", "none")
    launch.read(settings, NAMES["engine"], is_whole=True)
    for rows in ("sequences", "state", "sizes"):
        launch.read(settings, NAMES[rows], is_whole=True)
    launch.set("model.gated_mlp", True)
    launch.set("model.norm", "rmsnorm")
    launch.read(settings, NAMES["model"], is_whole=True)
    stretch = settings.get(f"{MODEL}.rope_scaling")
    if stretch is not None and stretch.value is not None:
        launch.is_not_judged(stretch, "no price depends on it")
    launch.read(settings, NAMES["kernels"])
    _read_experts(settings, launch)
    launch.note_unpriced(settings, NAMES)


def _read_script(text: str, launch: Launch) -> Settings:
    settings = read_command(text, launch, ("config_file",))
    if file := settings.file("config_file"):
        launch.files.append(file)
    return settings


def _read_experts(settings: Settings, launch: Launch) -> None:
    section = f"{MODEL}.moe_config"
    launch.read(settings, NAMES["experts"])
    older = settings.count(f"{MODEL}.moe_num_experts")
    if older and older[0] > 1:
        launch.read(settings, NAMES["llamoe"], is_whole=True)
        launch.set("model.moe.d_ff", launch.value("model.d_ff"))
        launch.set("model.gated_mlp", False, older[1])
    width = settings.count(f"{section}.shared_expert_intermediate_size")
    if width and settings.is_on(f"{section}.enable_shared_expert"):
        launch.set("model.moe.shared_d_ff", *width)
    elif width:
        launch.changes_nothing(width[1], "enable_shared_expert is not on")
    words = {"alltoall": "alltoall", "allgather": "allgather"}
    settings.word(words, f"{section}.token_dispatcher_type")  # experts are not split
    layers = settings.get(f"{section}.layers")
    if layers is not None and layers.value not in (None, [-1]):
        launch.is_not_judged(layers, "all layers are priced with experts")


IMPORTERS = importers(
    Format(
        "nanotron",
        "Nanotron",
        "nanotron",
        r"(?m)\A(?=[\s\S]{0,20000}^parallelism[ \t]{0,9}:)"
        r"(?=[\s\S]{0,20000}^tokens[ \t]{0,9}:)"
        r"|\brun_train\.py\b[\s\S]{0,400}--config-file\b",
        {r"^(?:parallelism|tokens)[ \t]*:": _read_yaml, "": _read_script},
    )
)
