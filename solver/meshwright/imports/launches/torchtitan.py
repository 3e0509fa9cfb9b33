"""torchtitan: arguments, a configuration in Python, TOML up to 0.2.2, Primus's YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.imports.launches.command import option, options, read_command
from meshwright.imports.launches.formats import parse_toml, python_settings
from meshwright.imports.launches.launch import PRIMUS_MODEL, Format, Launch, importers
from meshwright.imports.launches.settings import (
    OPTIONS,
    Setting,
    Settings,
    fields,
)
from meshwright.imports.launches.shell import Argument
from meshwright.reading.document import Where
from meshwright.reading.yaml_and_csv import parse_yaml

NAMES = OPTIONS["torchtitan"]

STAGES_OF_A_RANK = 2
"""Stages of a rank under an interleaved schedule without layers or parts."""


def _read_python(text: str, launch: Launch) -> Settings:
    settings = Settings(python_settings(text, launch.name, launch.function))
    return _read_whole(settings, text, launch)


def _read_toml(text: str, launch: Launch) -> Settings:
    return _read_whole(Settings(fields(parse_toml(text, launch.name))), text, launch)


def _read_yaml(text: str, launch: Launch) -> Settings:
    found = launch.read_primus(parse_yaml(text, launch.name))
    if not found:
        expected = "modules.pre_trainer with framework and overrides, as Primus has it"
        raise SpecError(f"{launch.name}: expected {expected}")
    settings = Settings(found)
    launch.read_primus_model(settings)
    read_plan(settings, launch, is_complete=True)
    return settings


def _read_whole(settings: Settings, text: str, launch: Launch) -> Settings:
    read_plan(settings, launch, is_complete=True)
    _read_flavor(settings, launch, text)
    return settings


def _read_script(text: str, launch: Launch) -> Settings:
    settings = read_command(text, launch, NAMES["marks"], _words)
    read_plan(settings, launch, is_complete=False)
    _name_files(settings, launch)
    return settings


def read_plan(settings: Settings, launch: Launch, *, is_complete: bool) -> None:
    """Read the plan and the job.

    Args:
        settings: Fields with dotted names.
        launch: Gets the values.
        is_complete: Whether a field that is not given has torchtitan's default; not so
            where arguments change the fields of a configuration by name.
    """
    settings.skip(*NAMES["skipped"])
    launch.read(settings, NAMES["degrees"], is_whole=is_complete)
    _read_shards(settings, launch, is_complete)
    _read_stages(settings, launch, is_complete)
    _read_batch(settings, launch)
    _read_state(settings, launch, is_complete)
    _read_recompute(settings, launch, is_complete)
    _read_kernels(settings, launch)
    launch.note_unpriced(settings, NAMES)


def _read_flavor(settings: Settings, launch: Launch, text: str) -> None:
    """Read the sizes of a model that `model_registry`, or a TOML file, names."""
    module, kind = settings.get("model.name"), settings.get("model.flavor")
    if module is not None and kind is not None:
        bundled = NAMES["bundled"].get(str(module.value), {}).get(str(kind.value))
        if bundled is not None:
            launch.set("model", bundled, kind)
    named = settings.get("model_spec.model_registry")
    if named is None:
        return
    found = [
        flavors[named.value]
        for family, flavors in NAMES["flavors"].items()
        if family in text.lower() and str(named.value) in flavors
    ]
    if len(found) != 1:
        launch.unset.append(
            f"{named.where}: model_registry({named.shown!r}): its sizes are left open"
        )
        return
    for name, size in found[0].items():
        launch.set(f"model.{name}", size, named)


def _read_kernels(settings: Settings, launch: Launch) -> None:
    """Read options of compilation, CUDA graphs, chunks of the loss, and overlap."""
    launch.read(settings, NAMES["async_tp"])
    parts = settings.get("compile.components")
    is_whole = parts is None or parts.value is None or "model" in str(parts.value)
    if found := settings.flag("compile.enable", "training.compile"):
        launch.set("training.compile", found[0] and is_whole, found[1])
        if parts is not None and not is_whole:
            launch.is_not_judged(parts, "the model is not compiled, and counts as such")
        elif found[0] and parts is not None and "loss" not in str(parts.value):
            launch.is_not_judged(parts, "the loss counts as compiled with the model")
    graphs = settings.flag("training.disable_cuda_graphs")
    if graphs and graphs[0] and _can_capture(launch):
        launch.set("training.cuda_graphs", False, graphs[1])
    launch.read(settings, NAMES["kernels"])
    split = settings.flag("parallelism.enable_loss_parallel")
    whole = settings.is_on("parallelism.disable_loss_parallel")
    if split and launch.value("tp") != 1:
        launch.set("training.loss_parallel", *split)
    elif whole and launch.value("tp") != 1:
        launch.set("training.loss_parallel", False, whole)


def _can_capture(launch: Launch) -> bool:
    """Return whether graphs could replay the kernels: not pipelines, nor experts."""
    return launch.value("pp") in (None, 1) and launch.value("ep") in (None, 1)


SHARDS = "parallelism.data_parallel_shard_degree"


def _read_shards(settings: Settings, launch: Launch, is_complete: bool) -> None:
    if is_complete or SHARDS in settings:
        launch.read_shards(settings, SHARDS)
    launch.read(settings, NAMES["reshard"], is_whole=is_complete)
    split = settings.flag("parallelism.enable_sequence_parallel")
    disabled = settings.is_on("parallelism.disable_sequence_parallel")
    if disabled and launch.value("tp") != 1:
        launch.set("sequence_parallel", False, disabled)
    else:
        split = split if launch.value("tp") != 1 else None
        launch.put("sequence_parallel", split, True if is_complete else None)


def _read_stages(settings: Settings, launch: Launch, is_complete: bool) -> None:
    name = "parallelism.pipeline_parallel_schedule"
    schedule = settings.word(NAMES["schedules"], name)
    if schedule:
        launch.set("schedule", *schedule)
        is_split = str(schedule[1].value).lower() in NAMES["has_chunks"]
        if (
            not is_split
            or "parallelism.pipeline_parallel_layers_per_stage" not in settings
        ):
            launch.set("vpp", STAGES_OF_A_RANK if is_split else 1)
    elif is_complete and name not in settings:
        launch.set("schedule", "1f1b")
        launch.set("vpp", 1)
    parts = settings.get("parallelism.module_fqns_per_model_part")
    if parts is not None and parts.value is not None:
        launch.set("stages", _layers_of_parts(parts), parts)
        launch.values.pop("vpp", None)
    count = settings.count("parallelism.pipeline_parallel_layers_per_stage")
    for where in ("first", "last"):
        settings.count(
            f"parallelism.pipeline_parallel_{where}_stage_less_layers", least=0
        )
    if count:
        launch.is_not_judged(count[1], "the stages are balanced best")


def _layers_of_parts(setting: Setting) -> list[int]:
    """Return the layers of each part of the model.

    Raises:
        SpecError: the value is no list of lists of names.
    """
    value: Any = setting.value
    is_list = isinstance(value, list) and all(isinstance(part, list) for part in value)
    if not is_list or not value:
        setting.refuse("expected a list of module names for each part")
    return [sum(str(name).startswith("layers.") for name in part) for part in value]


def _read_batch(settings: Settings, launch: Launch) -> None:
    launch.read(settings, NAMES["batch"])
    batch = settings.count("training.global_batch_size", least=-1)
    if batch and batch[0] > 0:
        launch.set("training.global_batch", *batch)
    _read_tokens(settings, launch)


TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"
STEP_TOKENS = "training.num_tokens_per_train_step"


def _read_tokens(settings: Settings, launch: Launch) -> None:
    """Read batches in tokens, as torchtitan counts them since 0.3.0.

    Raises:
        SpecError: they are no multiple of a sequence.
    """
    launch.put("training.seq_len", settings.count("training.max_context_length"))
    tokens = settings.count(TOKENS)
    step = settings.count(STEP_TOKENS, least=-1)
    rounds = settings.count("parallelism.num_pp_microbatches")
    length = launch.value("training.seq_len")
    for found, field in ((tokens, "micro_batch"), (step, "training.global_batch")):
        if found is None or found[0] == -1 or length is None:
            continue
        if found[0] % length:
            found[1].refuse(f"expected a multiple of the {length} tokens of a sequence")
        launch.set(field, found[0] // length, found[1])
    if tokens and length and rounds:
        launch.set("local_batch", tokens[0] // length * rounds[0], rounds[1])
        launch.set("pipeline_micro_batch", tokens[0] // length, tokens[1])


def _read_state(settings: Settings, launch: Launch, is_complete: bool) -> None:
    launch.read(settings, NAMES["state"], is_whole=is_complete)
    names = ("model.converters", "model_spec.converters", PRIMUS_MODEL)
    converters = settings.get(*names)
    kind = settings.word(NAMES["precisions"], "training.mixed_precision_param")
    if converters is not None and _FP8.search(str(converters.value)):
        launch.set("precision", "fp8", converters)
    else:
        launch.put("precision", kind, ["bf16", "fp8"] if is_complete else None)


_FP8 = re.compile(r"(?i)float8|-fp8\.yaml\Z")
"""A converter of modules, or the name of a file of Primus with that converter."""


def _read_recompute(settings: Settings, launch: Launch, is_complete: bool) -> None:
    names = ("activation_checkpoint.mode", "activation_checkpoint")
    setting = settings.get(*names)
    if setting is not None and setting.value is None and not setting.unset:
        launch.set("recompute", "none", setting)
    elif mode := settings.word(NAMES["policies"], *names):
        launch.set("recompute", *mode)
        every = settings.get("activation_checkpoint.selective_ac_option")
        is_other = every is not None and str(every.value) not in ("op", "1")
        if every is not None and is_other and mode[0] == "selective":
            launch.is_not_judged(every, "selective counts as per operation")
    elif (
        is_complete and setting is None and not any(name in settings for name in names)
    ):
        launch.set("recompute", "selective")


_FILE = re.compile(r"[\w./-]{1,200}\.(?:toml|py)", re.ASCII)
_POLICY = re.compile(r"activation[-_]checkpoint:([a-z_-]{1,40})")


def _words(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield the options of a command, and the policy of its last word."""
    plain = []
    for word in words:
        if found := _POLICY.fullmatch(word.text):
            at = Where(name, word.line)
            kind = found[1].replace("_", "-")
            yield Setting("activation_checkpoint.mode", kind, at, word.text[:21])
        else:
            plain.append(word)
    yield from options(plain, name)


def _name_files(settings: Settings, launch: Launch) -> None:
    """Name the files that have the rest: TOML, or a module beside the script."""
    file = settings.get("job.config_file")
    if file is not None and _FILE.fullmatch(str(file.value)):
        launch.files.append(file)
    module = settings.get("module")
    if module is None or _takes_own(settings, str(module.value), launch):
        return
    if re.fullmatch(r"\w{1,100}", str(module.value), re.ASCII):
        path = Argument(module.written, module.where.line)
        launch.files.append(option(path, [f"{module.value}.py"], launch.name))


def _takes_own(settings: Settings, module: str, launch: Launch) -> bool:
    """Return whether torchtitan has the configuration; keep the model that it names.

    That of `--module qwen3 --config qwen3_0_6b` is 0.6B of qwen3
    (torchtitan/models/NAME/config_registry.py).
    """
    flavors, config = NAMES["bundled"].get(module), settings.get("config")
    if flavors is None or config is None:
        return False
    name = str(config.value)
    for flavor, bundled in flavors.items():
        own = f"{module}_{re.sub('[.-]', '_', flavor.lower())}"
        if name == own or name.startswith(f"{own}_"):
            launch.set("model", bundled, config)
    told = f"{config.where}: {printable(str(config))}"
    launch.unset.append(f"{told}: what else it sets is left open")
    return True


IMPORTERS = importers(
    Format(
        "torchtitan",
        "torchtitan",
        "torchtitan",
        r"(?m)\btorchtitan[./]train\b|--parallelism\.\w|"
        r"^(?:from|import)[ \t]{1,9}torchtitan\b",
        {r"^(?:from|import)[ \t]+torchtitan\b": _read_python, "": _read_script},
    ),
    Format(
        "torchtitan_toml",
        "torchtitan",
        "torchtitan",
        r"(?m)^\[(?:parallelism|activation_checkpoint|training|job)\]"
        r"[ \t]*(?:#.*)?$",
        {"": _read_toml},
    ),
    Format(
        "torchtitan_yaml",
        "torchtitan",
        "torchtitan",
        r"(?m)^[ ]{1,9}framework[ \t]{0,9}:[ \t]{0,9}torchtitan[ \t]*$",
        {"": _read_yaml},
    ),
)
