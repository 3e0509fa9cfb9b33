"""DeepSpeed's configuration in JSON or Hjson, or a script that names one."""

from __future__ import annotations

from meshwright.imports.launches.command import read_command
from meshwright.imports.launches.formats import parse_hjson
from meshwright.imports.launches.hf_trainers import OF_SWIFT, read_arguments
from meshwright.imports.launches.launch import Format, Launch, importers
from meshwright.imports.launches.megatron import DEGREES as MEGATRON_DEGREES
from meshwright.imports.launches.megatron import read_recompute
from meshwright.imports.launches.megatron_options import read_model
from meshwright.imports.launches.settings import OPTIONS, Setting, Settings, fields

NAMES = OPTIONS["deepspeed"]

ZERO = "zero_optimization"


def _read_configuration(text: str, launch: Launch) -> Settings:
    settings = Settings(fields(parse_hjson(text, launch.name)))
    read_plan(settings, launch)
    return settings


def read_plan(settings: Settings, launch: Launch) -> None:
    """Read the plan and the job."""
    _check_sections(settings)
    settings.skip(*NAMES["skipped"], *NAMES["offloads"])
    launch.read(settings, NAMES["batch"])
    _read_stage(settings, launch)
    _read_offload(settings, launch)
    _read_precision(settings, launch)
    launch.read(settings, NAMES["degrees"])
    if (launch.value("tp") or 1) > 1:
        launch.set("pp", 1)  # AutoTP has no pipeline
    if settings.has_auto:  # left to the Trainer of transformers, which splits no model
        launch.assume({"tp": 1, "pp": 1, "ep": 1})
    _read_recomputed(settings, launch)
    _read_inputs_on_host(settings, launch)
    launch.read(settings, NAMES["partition"])
    launch.note_unpriced(settings, NAMES)


def _check_sections(settings: Settings) -> None:
    """Refuse a value where DeepSpeed has a section; that of ZeRO may be a switch."""
    for name in (*NAMES["sections"], *NAMES["offloads"]):
        setting = settings.get(name)
        is_switch = name == ZERO and setting and isinstance(setting.value, bool)
        if setting and setting.value not in (None, {}) and not is_switch:
            setting.refuse("expected a mapping")


def _read_stage(settings: Settings, launch: Launch) -> None:
    stage = settings.count("zero_optimization.stage", "zero_stage", least=0)
    switch = settings.get(ZERO)
    if switch is not None and switch.value is True:
        launch.set("zero", 1, switch)  # runtime/zero/config.py, get_zero_config
    elif stage is None and "zero_optimization.stage" not in settings:
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
    for section, offload in NAMES["offloads"].items():
        name = f"{section}.device"
        device = settings.word(NAMES["devices"], name)
        is_open |= name in settings and device is None
        if device and device[0]:
            found = offload, device[1]
            launch.set("training.offload_to", *device)
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
    ratio = settings.number("zero_optimization.offload_optimizer.ratio")
    if ratio is None:
        return False
    share, setting = ratio
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
    launch.read(settings, NAMES["sums"], is_whole=brain is not None)
    launch.read(settings, NAMES["optimizer"])


def _read_recomputed(settings: Settings, launch: Launch) -> None:
    every = settings.count("pipeline.activation_checkpoint_interval", least=0)
    if every is None:
        return
    if every[0] > 1:
        launch.is_not_judged(every[1], "each layer counts as kept by itself, as with 1")
    launch.set("recompute", "full" if every[0] else "none", every[1])


def _read_inputs_on_host(settings: Settings, launch: Launch) -> None:
    """Read whether the inputs of recomputed layers wait in host memory."""
    names = "activation_checkpointing.cpu_checkpointing", "checkpoint_in_cpu"
    if setting := settings.is_on(*names):
        launch.keep_inputs_on_host(setting)


def _read_script(text: str, launch: Launch) -> Settings:
    """Read the options of a script, with those of Megatron-DeepSpeed."""
    settings = read_command(text, launch, NAMES["files"])
    if read_arguments(settings, launch, text):
        launch.has_one_value("transformers")
    else:
        launch.read_name(settings, "model_name_or_path")
        launch.put("training.seq_len", settings.count(*OPTIONS["trainer"]["lengths"]))
    file = settings.file(*NAMES["files"])
    if file is not None and file not in launch.files:
        launch.files.append(file)
    settings.skip(*NAMES["files"])  # without a file they are switches
    launch.has_one_value("deepspeed")
    for field, names in MEGATRON_DEGREES.items():
        if field != "ep":
            launch.put(field, settings.count(*names))
    read_recompute(settings, launch, is_complete=False)
    if setting := settings.is_on(*NAMES["checkpoints"]):
        launch.set("recompute", "full", setting)
    _read_inputs_on_host(settings, launch)
    launch.read(settings, NAMES["script"])
    read_model(settings, launch, is_complete=False)
    return settings


IMPORTERS = importers(
    Format(
        "deepspeed",
        "DeepSpeed",
        "deepspeed",
        rf"\A(?![\s\S]{{0,20000}}{OF_SWIFT})"
        r"(?:[\s\S]{0,20000}--deepspeed(?:[ _]config)?\b"
        r"|(?=[\s\S]{0,4000}\{)(?=[\s\S]{0,20000}(?<![\w.])\"?(?:zero_optimization"
        r"|train_batch_size|train_micro_batch_size_per_gpu)\"?[ \t]{0,9}:))"
        r"(?![\s\S]{0,20000}distributed_type[ \t]{0,9}:)",
        {
            r"\A(?:\s|#[^\n]*\n|//[^\n]*\n|/\*[\s\S]{0,9999}?\*/){0,999}\{":
                _read_configuration,
            "": _read_script,
        },
    )
)  # fmt: skip
