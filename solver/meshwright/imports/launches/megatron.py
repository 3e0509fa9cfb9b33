"""Arguments of Megatron-LM: alone, in a script with `pretrain_gpt.py`, or in YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.imports.launches.command import read_command, read_ranks
from meshwright.imports.launches.launch import FURTHER, Format, Launch, importers
from meshwright.imports.launches.megatron_options import (
    read_kernels,
    read_model,
    read_offload,
    read_overlap,
    read_precision,
    read_sharding,
    read_small_state,
)
from meshwright.imports.launches.settings import (
    OPTIONS,
    Setting,
    Settings,
    canonical,
    fields,
    words_of,
)
from meshwright.reading.document import Document
from meshwright.reading.yaml_and_csv import parse_yaml

LAYOUT_EXPECTED = (
    "expected a layout, such as Et*3|t*4|t*4|t*3L: E embedding, t layer, L loss"
)

MOST_OF_LAYOUT = 20_000
"""Most characters of a layout, after what is repeated is written out."""

_GROUP = re.compile(r"\(([^()]*)\)\*(\d{1,5})")
_REPEATED = re.compile(r"([^()*\d])\*(\d{1,5})")

_NAMES = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


NAMES, ADAPTERS = OPTIONS["megatron"], OPTIONS["adapters"]

DEGREES: Mapping[str, tuple[str, ...]] = NAMES["degrees"]
"""Degrees of a plan, and the names of the options that hold them."""


def _read_script(text: str, launch: Launch) -> Settings:
    settings = read_command(text, launch, NAMES["marks"])
    if "rollout_batch_size" in settings:
        settings.assume(NAMES["slime"], launch.name)
    read_arguments(settings, launch)
    return settings


def _read_swift(text: str, launch: Launch) -> Settings:
    """Read `megatron sft`, `pt` or `rlhf` of ms-swift."""
    settings = read_command(text, launch, NAMES["marks"])
    read_ranks(text, launch)
    settings.assume(NAMES["swift"], launch.name)
    settings.leave_out("none", "null")
    launch.read_name(settings, "model")
    launch.put("training.seq_len", settings.count("max_length"))
    read_arguments(settings, launch, has_model=False)
    tuner = settings.get("tuner_type", "train_type")
    if tuner is not None and str(tuner.value).startswith("lora"):
        launch.read_adapters(settings, ADAPTERS["swift"])
    elif (kind := settings.get("rlhf_type")) and str(kind.value) in NAMES["referred"]:
        launch.is_not_judged(kind, "the model that it compares with is not priced")
    return settings


def _read_yaml(text: str, launch: Launch) -> Settings:
    document = parse_yaml(text, launch.name)
    settings = Settings(launch.read_primus(document) or _settings(document))
    launch.read_primus_model(settings)
    read_arguments(settings, launch)
    if settings.is_on("lora.enabled"):
        launch.read_adapters(settings, ADAPTERS["primus"])
    return settings


def read_arguments(
    settings: Settings,
    launch: Launch,
    *,
    is_complete: bool = True,
    has_model: bool = True,
) -> None:
    """Read all options of Megatron Core, as `pretrain_gpt.py` has them.

    Args:
        settings: The options.
        launch: Gets the values.
        is_complete: Whether an option that is not given has the framework's default.
        has_model: Whether those of the model have, too.
    """
    read_plan(settings, launch, is_complete=is_complete)
    read_precision(settings, launch, is_complete=is_complete)
    read_small_state(settings, launch)
    read_model(settings, launch, is_complete=is_complete and has_model)
    if "hidden_size" not in settings:
        launch.read_name(settings, "hf_checkpoint")


def read_plan(settings: Settings, launch: Launch, *, is_complete: bool) -> None:
    """Read the plan and the job; see `read_model` for the parameters."""
    settings.skip(*NAMES["skipped"])
    for field, names in DEGREES.items():
        if found := settings.count(*names):
            launch.set(field, *found)
        elif is_complete and not any(name in settings for name in names):
            launch.set(field, 1)
    _read_stages(settings, launch, is_complete)
    _read_experts(settings, launch, is_complete)
    launch.read(settings, NAMES["sequence_parallel"], is_whole=is_complete)
    launch.read(settings, NAMES["batch"])
    read_recompute(settings, launch, is_complete=is_complete)
    read_sharding(settings, launch, is_complete=is_complete)
    read_offload(settings, launch, is_complete=is_complete)
    read_kernels(settings, launch)
    read_overlap(settings, launch, is_complete=is_complete)
    launch.note_unpriced(settings, NAMES)


def layers_of_stages(setting: Setting) -> list[int]:
    """Return the layers of each virtual stage, in the order of the layers.

    Raises:
        SpecError: it is no layout, or its embedding and loss are not at the ends.
    """
    stages = _stages(setting)
    text = "".join(stages)
    if not text or set(text) - set("Etm L"):
        setting.refuse(LAYOUT_EXPECTED)
    if not (text.startswith("E") and text.endswith("L")):
        setting.refuse(f"E stands first and L last; {LAYOUT_EXPECTED}")
    return [stage.count("t") for stage in stages]


def _stages(setting: Setting) -> list[str]:
    value = setting.value
    if isinstance(value, list):
        return [_stage(row, setting) for row in value]
    text = re.sub(r"[,\s]", "", str(value))
    text = _unrolled(_unrolled(text, _GROUP, setting), _REPEATED, setting)
    return text.split("|")


def _stage(row: Any, setting: Setting) -> str:
    """Return the letters of a stage that is a list of names."""
    if isinstance(row, str):
        return row
    names = row if isinstance(row, list) else [row]
    letters = [_NAMES.get(str(name).lower().rpartition(".")[2]) for name in names]
    if None in letters:
        setting.refuse(LAYOUT_EXPECTED)
    return "".join(filter(None, letters))


def _unrolled(text: str, pattern: re.Pattern[str], setting: Setting) -> str:
    size = len(text) + sum(
        len(found[1]) * int(found[2]) for found in pattern.finditer(text)
    )
    if size > MOST_OF_LAYOUT:
        setting.refuse(f"expected at most {MOST_OF_LAYOUT:,} layers and stages")
    return pattern.sub(lambda found: found[1] * int(found[2]), text)


METHODS = ("uniform", "block")


def _read_stages(settings: Settings, launch: Launch, is_complete: bool) -> None:
    chunks = settings.count(*NAMES["chunks"])
    size = settings.count("num_layers_per_virtual_pipeline_stage")
    layout = settings.get("pipeline_model_parallel_layout")
    layout = None if layout is None or layout.value in (None, "") else layout
    if layout is not None and chunks and not is_complete:
        chunks = None
    elif layout is not None and chunks and not chunks[1].written.startswith("-"):
        stages = chunks[0] * launch.value("pp")
        chunks = chunks if stages != len(_stages(layout)) else None
    given = [found[1] for found in (chunks, size) if found] + [*filter(None, [layout])]
    if len(given) > 1:
        other = f"{given[0]} ({given[0].where})"
        given[1].refuse(f"contradicts {other}; accepted: one of them")
    if layout is not None:
        launch.set("stages", layers_of_stages(layout), layout)
        _read_further(_stages(layout), layout, launch)
    elif chunks:
        launch.set("vpp", *chunks)
    elif size:
        launch.set("layers_per_chunk", *size)
    elif is_complete:
        launch.set("vpp", 1)
    if group := settings.count(*NAMES["group"]):
        launch.set("microbatch_group", *group)
    elif is_complete:
        launch.set("groups_are_pp", True)
    launch.read(settings, NAMES["ends"])
    if launch.framework == "megatron" and is_complete:
        launch.set("schedule", "1f1b")


def _read_further(stages: list[str], layout: Setting, launch: Launch) -> None:
    """Read the layers of a layout that predict further tokens."""
    if "m" in "".join(stages[:-1]):
        launch.is_not_judged(layout, "layers m are priced on the stage of L")
    if count := "".join(stages).count("m"):
        launch.set(FURTHER, count, layout)


def _read_experts(settings: Settings, launch: Launch, is_complete: bool) -> None:
    parts = settings.count("expert_tensor_parallel_size", "etp")
    has_experts = any(name in settings for name in ("num_experts", "num_moe_experts"))
    # A script may source the file that describes its model.
    has_model = is_complete and "hidden_size" in settings
    if parts and (has_experts or not has_model):
        launch.set("etp", *parts)
    elif parts:
        launch.changes_nothing(parts[1], "the model has no experts")
    elif is_complete and has_experts:
        launch.set("etp", launch.value("tp") or 1)  # as --tensor-model-parallel-size
    ep = launch.setting("ep")
    if has_model and ep is not None and launch.value("ep") > 1 and not has_experts:
        ep.refuse("without --num-experts; accepted: 1")


def read_recompute(settings: Settings, launch: Launch, *, is_complete: bool) -> None:
    """Read the layers or modules that are recomputed.

    Raises:
        SpecError: the method or the number of layers is missing, or contradicts.
    """
    words = {"full": "full", "selective": "selective"}
    kind = settings.word(words, "recompute_granularity")
    short = settings.is_on("recompute_activations")
    old = settings.is_on("checkpoint_activations")
    method = settings.word({word: word for word in METHODS}, "recompute_method")
    is_block = method is not None and method[0] == "block"
    count = settings.count("recompute_num_layers", least=int(not is_block))
    modules = settings.get("recompute_modules")
    if short and not kind:
        kind = "selective", short
    if old and not kind:  # Megatron-LM until 2022
        launch.set("recompute", "full", old)
        _read_idle(None, method, count, launch)
    elif kind and kind[0] == "full" and (layers := settings.get(LAYERS)):
        _read_layers(kind[1], layers, launch)
    elif kind and kind[0] == "full":
        _read_full(kind[1], method, count, launch)
    else:
        _read_idle(kind, method, count, launch)
    has_modules = modules is not None and modules.value is not None
    if kind and kind[0] == "selective":
        launch.set("recompute", *kind)
        if modules is not None and has_modules:
            launch.set("recompute_modules", words_of(modules), modules)
    elif modules is not None and has_modules and (kind or is_complete):
        launch.changes_nothing(modules, "recomputation is not selective")
    elif modules is not None and has_modules:
        launch.is_not_judged(modules, "recompute_granularity is not in the file")
    if not kind and not old and is_complete:
        launch.set("recompute", "none")


LAYERS = "recompute_layer_ids"
"""Layers that Primus recomputes, by their numbers from 0."""


def _read_layers(kind: Setting, layers: Setting, launch: Launch) -> None:
    launch.set("recompute", "full", kind)
    stages = launch.value("stages") or []
    chunks = len(stages) or (launch.value("pp") or 1) * (launch.value("vpp") or 1)
    of_chunk = -(-len(words_of(layers)) // chunks)
    launch.set("recompute_per_chunk", of_chunk, layers)
    launch.is_not_judged(layers, f"counts as {of_chunk} of each part of a pipeline")


def _read_full(
    kind: Setting,
    method: tuple[str, Setting] | None,
    count: tuple[int, Setting] | None,
    launch: Launch,
) -> None:
    dashes = "--recompute-" if kind.written.startswith("-") else "recompute_"
    if method is None:
        kind.refuse(f"expected {dashes}method uniform or block beside it")
    if count is None:
        kind.refuse(f"expected {dashes}num{dashes[-1]}layers beside it")
    if not count[0]:
        launch.set("recompute", "none", count[1])
        return
    launch.set("recompute", "full", kind)
    if method[0] == "block":
        launch.set("recompute_per_chunk", *count)
    elif launch.framework == "megatron":
        launch.set("recompute_segment", *count)
    elif count[0] > 1:
        why = "each layer counts as kept by itself, as with 1"
        launch.is_not_judged(count[1], why)


def _read_idle(
    kind: tuple[str, Setting] | None,
    method: tuple[str, Setting] | None,
    count: tuple[int, Setting] | None,
    launch: Launch,
) -> None:
    """Note a method or a number of layers without full recomputation."""
    if method and kind:
        method[1].refuse(f"contradicts {kind[1]} ({kind[1].where}); accepted: full")
    for found in (method, count):
        if found:
            launch.changes_nothing(found[1], "recomputation is not full")


ARGUMENTS = "MODEL_ARGS"


def _settings(document: Document) -> Iterator[Setting]:
    for setting in fields(document):
        section, _, name = setting.written.partition(".")
        if section == ARGUMENTS:
            value = None if setting.value is True else setting.value
            if setting.value is not False:
                yield Setting(canonical(name), value, setting.where, name)
        elif section in NAMES["yaml_sections"] or not name:
            short = name or section
            if setting.value is not None:
                yield Setting(
                    canonical(short), setting.value, setting.where, setting.written
                )


SWIFT = r"\bmegatron[ \t]{1,9}(?:sft|pt|rlhf)\b"
"""How ms-swift starts Megatron Core."""

MEGATRON = Format(
    "megatron",
    "Megatron-LM",
    "megatron",
    r"(?m)\A(?![\s\S]{0,20000}(?:--deepspeed\b|^MODEL_ARGS:))"
    r"(?=[\s\S]{0,20000}(?:--(?:tensor-model-parallel-size|micro-batch-size"
    rf"|pipeline-model-parallel-size|num-attention-heads)\b|{SWIFT}))",
    {SWIFT: _read_swift, "": _read_script},
)

MEGATRON_YAML = Format(
    "megatron_yaml",
    "Megatron-LM",
    "megatron",
    r"(?m)^(?:MODEL_ARGS|language_model|model_parallel"
    r"|[ ]{1,9}(?:pre|post)_trainer)[ \t]{0,9}:[ \t]*$",
    {"": _read_yaml},
)

IMPORTERS = importers(MEGATRON, MEGATRON_YAML)
