"""NeMo: recipes of Megatron Bridge, as YAML, overrides or Python, and of Automodel.

Automodel trains by FSDP2; with experts or stages over ranks it is as torchtitan is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from meshwright.imports.launches.command import assignments, options, read_command
from meshwright.imports.launches.formats import python_settings
from meshwright.imports.launches.launch import Format, Launch, importers
from meshwright.imports.launches.megatron import read_plan
from meshwright.imports.launches.megatron_options import (
    read_model,
    read_precision,
    read_small_state,
)
from meshwright.imports.launches.settings import (
    OPTIONS,
    Setting,
    Settings,
    fields,
)
from meshwright.imports.launches.shell import Argument
from meshwright.reading.yaml_and_csv import parse_yaml

NAMES = OPTIONS["megatron_bridge"]


def _read_python(text: str, launch: Launch) -> Settings:
    given = python_settings(text, launch.name, launch.function)
    return _read(Settings(_short(given)), launch)


def _read_yaml(text: str, launch: Launch) -> Settings:
    return _read(Settings(_short(fields(parse_yaml(text, launch.name)))), launch)


def _read_script(text: str, launch: Launch) -> Settings:
    return _read(read_command(text, launch, NAMES["marks"], _words), launch)


def _read(settings: Settings, launch: Launch) -> Settings:
    settings.skip("model")  # the class of its provider
    is_complete = all(field in settings for field in NAMES["whole"])
    _read_precision(settings, launch)
    read_plan(settings, launch, is_complete=is_complete)
    read_small_state(settings, launch)
    read_model(settings, launch, is_complete=is_complete)
    return settings


def _words(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    return _short(chain(options(words, name), assignments(words, name)))


def _short(settings: Iterable[Setting]) -> Iterator[Setting]:
    """Yield settings by the last part of their names, if their section has it."""
    for setting in settings:
        section, _, rest = setting.name.partition(".")
        last = setting.name.rpartition(".")[2]
        if setting.value is None and not setting.written.startswith("-"):
            continue
        is_other = section not in NAMES["sections"] or section == "mixed_precision"
        yield replace(setting, name=setting.name if rest and is_other else last)


def _read_precision(settings: Settings, launch: Launch) -> None:
    """Read the precision; the recipe of mixed precision overrides other options."""
    named = settings.get("mixed_precision")
    precisions = NAMES["precisions"]
    is_known = named is not None and str(named.value).lower() in precisions
    recipe = settings.word(precisions, "mixed_precision") if is_known else None
    if named is not None and named.value and not is_known:
        launch.is_not_judged(named, "no GPU is priced in it")
    eight = settings.get("mixed_precision.fp8")
    brain = settings.is_on("mixed_precision.bf16")
    if recipe:
        launch.set("precision", *recipe)
    elif eight is not None and eight.value not in (None, False):
        launch.set("precision", "fp8", eight)
    elif brain:
        launch.set("precision", "bf16", brain)
    else:
        read_precision(settings, launch, is_complete=False)
        return
    settings.skip("bf16", "fp16", "fp8", "fp8_format")
    launch.read(settings, OPTIONS["megatron_model"]["sums"])


AUTO = OPTIONS["automodel"]


def _read_automodel(text: str, launch: Launch) -> Settings:
    given = [*fields(parse_yaml(text, launch.name))]
    off = {one.name for one in given if one.value is False}
    empty = ("none", None, 0)
    settings = Settings(
        one for one in given if one.name in off or one.value not in empty
    )
    settings.skip(*off)
    settings.skip_sections(AUTO["skipped_sections"])
    launch.read(settings, AUTO["plan"], is_whole=True)
    if (launch.value("pp"), launch.value("ep")) == (1, 1):
        launch.framework = "fsdp"
        launch.has_one_value("fsdp")
    if shards := settings.count("distributed.dp_size"):
        launch.set("dp_shard", shards[0] // launch.value("dp_replicate"), shards[1])
    else:
        launch.set("dp_shard_rest", True)
    launch.read_name(settings, *AUTO["model"])
    launch.read(settings, AUTO["batch"])
    packed = settings.count("packed_sequence.packed_sequence_size")
    alone = settings.count("dataset.seq_length", "dataset.seq_len")
    launch.put("training.seq_len", packed or alone)
    launch.note_unpriced(settings, AUTO)
    _read_weights(settings, launch)
    return settings


def _read_weights(settings: Settings, launch: Launch) -> None:
    """Read adapters, or that weights, updates and moments are in 16 bits alone."""
    launch.read_adapters(settings, OPTIONS["adapters"]["automodel"])
    if launch.value("training.lora.rank") is not None:
        return
    kept = settings.word(AUTO["types"], "model.torch_dtype")
    if not settings.is_on("optimizer.master_weights") and (not kept or kept[0]):
        launch.set("training.master_weights", "none", kept and kept[1])
        launch.set("training.moments", "bf16", kept and kept[1])


AUTOMODEL = Format(
    "automodel",
    "NeMo Automodel",
    "torchtitan",
    r"(?m)\A(?=[\s\S]{0,20000}^step_scheduler:)[\s\S]{0,20000}^distributed:",
    {"": _read_automodel},
)

MEGATRON_BRIDGE = Format(
    "megatron_bridge",
    "Megatron Bridge",
    "megatron",
    r"(?m)(?:^|[ \t])\+{0,2}(?:model\.(?:tensor|pipeline)_model_parallel_size"
    r"|train\.(?:micro|global)_batch_size)="
    r"|^(?:from|import)[ \t]{1,9}megatron\.bridge"
    r"|\A(?![\s\S]{0,20000}^(?:model_parallel|language_model|policy|modules):)"
    r"(?=[\s\S]{0,20000}^[ \t]{1,9}tensor_model_parallel_size:)",
    {
        r"^(?:from|import)[ \t]+(?:megatron\.bridge|nemo)\b": _read_python,
        r"^model[ \t]*:[ \t]*$": _read_yaml,
        "": _read_script,
    },
)

IMPORTERS = importers(AUTOMODEL, MEGATRON_BRIDGE)
