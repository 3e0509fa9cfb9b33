"""Megatron Bridge: a dump of a recipe in YAML, overrides, or a recipe in Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from meshwright.imports.launches.command import (
    assignments,
    command_settings,
    options,
    read_launcher,
)
from meshwright.imports.launches.formats import python_settings
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.megatron import read_plan
from meshwright.imports.launches.megatron_options import (
    read_model,
    read_precision,
    read_small_state,
)
from meshwright.imports.launches.settings import (
    MOST_CHARACTERS,
    Setting,
    Settings,
    check_characters,
    fields,
)
from meshwright.imports.launches.shell import Argument, read_script
from meshwright.imports.registry import LaunchImporter
from meshwright.reading.yaml_and_csv import parse_yaml

SECTIONS = (
    "model", "train", "ddp", "optimizer", "dataset", "mixed_precision", "dist",
    "comm_overlap", "tokenizer", "checkpoint",
)  # fmt: skip
"""Sections of a recipe with options of the plan or the job."""

PRECISIONS = {
    "bf16_mixed": "bf16", "bf16": "bf16", "fp16_mixed": "fp16", "fp16": "fp16",
    "bf16_with_fp8_mixed": "fp8", "bf16_with_fp8_delayed_scaling_mixed": "fp8",
    "bf16_with_fp8_current_scaling_mixed": "fp8", "bf16_with_mxfp8_mixed": "fp8",
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8", "fp16_with_fp8_mixed": "fp8",
    "fp8_cs": "fp8", "fp8_ds": "fp8", "fp8_mx": "fp8", "fp8_sc": "fp8",
}  # fmt: skip
"""Names of recipes for mixed precision, and the precisions that they are."""

_PYTHON = re.compile(r"^(?:from|import)[ \t]+(?:megatron\.bridge|nemo)\b", re.M)
_YAML = re.compile(r"^model[ \t]*:[ \t]*$", re.M)
_WHOLE = ("num_layers", "hidden_size", "tensor_model_parallel_size")
"""Fields that only the whole of a recipe has."""

_MARKS = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size",
    "global_batch_size", "context_parallel_size", "tp", "pp", "mb", "gb",
)  # fmt: skip


def parse(text: str, name: str, function: str | None = None) -> Launch:
    """Return the launch of a recipe.

    Args:
        text: The file.
        name: Its name, for messages.
        function: That of a recipe in Python, where there are several.

    Raises:
        SpecError: the text is none, or a value is none that its field takes.
    """
    check_characters(text, name)
    launch = Launch("megatron_bridge", "Megatron Bridge", "megatron", name)
    if _PYTHON.search(text):
        given: Iterable[Setting] = _short(python_settings(text, name, function))
    elif _YAML.search(text):
        given = _short(fields(parse_yaml(text, name)))
    else:
        script = read_script(text, name)
        given = [*command_settings(script, _MARKS, _words)]
        read_launcher(script, text, Settings(given), launch)
    settings = Settings(given)
    settings.skip("model")  # the class of its provider
    is_complete = all(field in settings for field in _WHOLE)
    _read_precision(settings, launch)
    read_plan(settings, launch, is_complete=is_complete)
    read_small_state(settings, launch)
    read_model(settings, launch, is_complete=is_complete)
    launch.close(settings)
    return launch


def _words(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    return _short(chain(options(words, name), assignments(words, name)))


def _short(settings: Iterable[Setting]) -> Iterator[Setting]:
    """Yield settings by the last part of their names, if their section has it."""
    for setting in settings:
        section, _, rest = setting.name.partition(".")
        last = setting.name.rpartition(".")[2]
        if setting.value is None and not setting.written.startswith("-"):
            continue
        if (rest and section not in SECTIONS) or (
            section == "mixed_precision" and rest
        ):
            last = setting.name
        yield Setting(
            last, setting.value, setting.where, setting.written, setting.unset
        )


def _read_precision(settings: Settings, launch: Launch) -> None:
    """Read the precision; the recipe of mixed precision overrides other options."""
    named = settings.get("mixed_precision")
    is_known = named is not None and str(named.value).lower() in PRECISIONS
    recipe = settings.word(PRECISIONS, "mixed_precision") if is_known else None
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
    wide = settings.flag("mixed_precision.grad_reduce_in_fp32", "grad_reduce_in_fp32")
    if wide:
        launch.set("training.gradients", "fp32" if wide[0] else "bf16", wide[1])


IMPORTERS = {
    "megatron_bridge": LaunchImporter(
        sign=r"(?m)(?:^|[ \t])\+{0,2}(?:model\.(?:tensor|pipeline)_model_parallel_size"
        r"|train\.(?:micro|global)_batch_size)="
        r"|^(?:from|import)[ \t]{1,9}megatron\.bridge"
        r"|\A(?![\s\S]{0,20000}^(?:model_parallel|language_model|policy):)"
        r"(?=[\s\S]{0,20000}^[ \t]{1,9}tensor_model_parallel_size:)",
        parse=parse,
        most_characters=MOST_CHARACTERS,
    ),
}
