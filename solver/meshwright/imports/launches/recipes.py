"""torchtune, LitGPT and LLM Foundry: their YAML, or a command that starts one of them.

All shard by PyTorch's FSDP. Options of a command count in the place of those of the
YAML that it names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from meshwright.imports.launches.command import (
    FLAGS,
    LAUNCHER,
    assignments,
    option,
    options,
    read_command,
)
from meshwright.imports.launches.launch import FieldValue, Format, Launch, importers
from meshwright.imports.launches.settings import (
    OPTIONS,
    Setting,
    Settings,
    fields,
    words_of,
)
from meshwright.imports.launches.shell import Argument
from meshwright.reading.yaml_and_csv import parse_yaml

TUNE, LIT, FOUNDRY = (OPTIONS[name] for name in ("torchtune", "litgpt", "llm_foundry"))

Read = Callable[[Settings, Launch, bool], None]
"""Reads the settings of a program, which are all that count where a file is whole."""

Words = Callable[[Sequence[Argument], str], Iterator[Setting]]

_YAML = (".yaml", ".yml")


def _read_yaml(read: Read, text: str, launch: Launch) -> Settings:
    """Read a configuration, which may stand under `parameters` of a job."""
    found = fields(parse_yaml(text, launch.name))
    given = {one.name.removeprefix("parameters."): one for one in found}
    given |= {one.name: one for one in launch.overrides}
    settings = Settings(_filled(given))
    read(settings, launch, True)
    return settings


MOST_NAMED = 9
"""Most settings that name one another, as `${max_seq_len}` does."""


def _filled(given: Mapping[str, Setting]) -> Iterator[Setting]:
    """Yield settings with the values of those that they name, as OmegaConf has them."""
    for name, setting in given.items():
        one = replace(setting, name=name)
        for _ in range(MOST_NAMED):
            other = given.get(one.unset[0].lower()) if one.unset else None
            if other is not None:
                one = replace(one, value=other.value, unset=other.unset)
        yield one


def _read_script(read: Read, words: Words, text: str, launch: Launch) -> Settings:
    """Read a command, and name the configuration whose options it replaces."""
    mark = "command" if launch.kind == "litgpt" else "config"
    settings = read_command(text, launch, [mark], words)
    file = settings.file("config")
    read(settings, launch, file is None)
    if file is not None and str(file.value).endswith(_YAML):
        launch.files.append(file)
        away = {*LAUNCHER, *FLAGS, "config"} - {"num_nodes"}  # LitGPT's
        launch.overrides = [one for one in settings if one.name not in away]
        # Defaults depend on what that file says.
        said = launch.values.items()
        launch.values = {field: one for field, one in said if one.setting is not None}
        launch.has_one_value("fsdp")
    return settings


def _read_plan(
    settings: Settings, launch: Launch, names: Mapping[str, Any], is_whole: bool
) -> None:
    """Read the options that stand in one row each."""
    settings.skip(*names["skipped"])
    settings.skip_sections(names["skipped_sections"])
    launch.has_one_value("fsdp")
    launch.read(settings, names["plan"], is_whole=is_whole)
    launch.note_unpriced(settings, names)


def _read_shards(settings: Settings, launch: Launch, name: str) -> None:
    """Read the number of ranks that share the state; others are all that are left."""
    shards = settings.count(name, least=-1)
    if shards is not None and shards[0] > 0:
        launch.set("dp_shard", *shards)


def _keep_pure(launch: Launch) -> None:
    """Keep that weights, gradients and moments are all in the bf16 of the matmuls."""
    launch.set("training.master_weights", "none", launch.setting("precision"))
    launch.set("training.gradients", "bf16")


WIDE = {"training.lora.weights": "fp32", "training.lora.adapters": "autocast"}
"""Adapters and frozen weights in fp32, which matmuls in 16 bits cast."""


def _assigns(word: Argument) -> bool:
    return "=" in word.text and not word.text.startswith("-")


def read_torchtune(settings: Settings, launch: Launch, is_whole: bool) -> None:
    """Read the configuration of a recipe of torchtune."""
    _read_plan(settings, launch, TUNE, is_whole)
    if eight := settings.is_on("enable_fp8_training"):
        launch.values["precision"] = FieldValue("fp8", eight)
    _read_shards(settings, launch, "data_parallel_shard_dim")
    if (launch.value("cp") or 1) > 1:
        launch.read(settings, TUNE["exchange"], is_whole=True)
    plan = settings.get("tensor_parallel_plan._component_")
    if plan is not None and (launch.value("tp") or 1) > 1:
        launch.is_not_judged(plan, "sequences are priced as whole between matmuls")
    if away := settings.is_on("enable_activation_offloading"):
        streams = settings.flag("activation_offloading_use_streams")
        waits = streams is not None and not streams[0]
        launch.keep_inputs_on_host(away, moves_all=True, waits=waits)
    _read_builder(settings, launch, is_whole)
    kind = launch.setting("training.optimizer")
    is_adamw = launch.value("training.optimizer") == "adamw"
    if kind is not None and is_adamw and str(kind.value).startswith("bitsandbytes"):
        told = "its moments in fp32, which may move to the host, are priced in bf16"
        launch.is_not_judged(kind, told)
    if (chunks := settings.count("loss.num_output_chunks")) is not None:
        launch.set("training.loss_chunks", *chunks)
    else:
        launch.read(settings, TUNE["chunks"])
    if launch.value("precision") in ("bf16", "fp8"):
        _keep_pure(launch)
    if launch.value("training.compile") is False:
        launch.set("training.fused.norm", False)  # modules/rms_norm.py
    packs = settings.flag("dataset.packed")
    if packs is not None and not packs[0]:
        launch.is_not_judged(packs[1], "every row is priced as long as the longest")


_BUILDER = re.compile(
    r"torchtune\.models\.(\w{1,60})(?:\.\w{1,60})?\.(?:(q?lora)_)?(\w{1,80})", re.ASCII
)
_NAMED = re.compile(
    r"(?!.*\.ya?ml\Z)(\w{1,60})/([\w.]{1,40}?)_(?:.{0,80}?(q?lora))?.{0,80}"
)
"""The name of a configuration that torchtune brings, `llama3_1/8B_lora`."""


def _read_builder(settings: Settings, launch: Launch, is_whole: bool) -> None:
    """Read the model and its adapters, as the function says that builds them."""
    built, config = settings.get("model._component_"), settings.get("config")
    found = _BUILDER.fullmatch(str(built.value)) if built is not None else None
    kind = found[2] if found else None
    if found is not None:
        launch.set("model", _model_of(found[1], found[3]), built)
    elif config is not None and (named := _NAMED.fullmatch(str(config.value))):
        launch.set("model", _model_of(named[1], named[2]), config)
        launch.unset.append(f"{config.where}: {config}: what it sets is left open")
        kind = named[3]
    else:
        launch.read_name(settings, "model._component_")
    if "model.num_layers" in settings:
        launch.read(settings, TUNE["sizes"])
        launch.assume(TUNE["block"])
    listed = settings.get("model.lora_attn_modules")
    if not kind and listed is None:
        return
    is_quantised = kind == "qlora" or settings.is_on("model.quantize_base")
    launch.set("training.lora.weights", "nf4" if is_quantised else "bf16", built)
    usual = {} if is_whole else {"usual_rank": None}
    launch.read_adapters(settings, {**TUNE["adapters"], **usual})
    if listed is not None:
        targets = [TUNE["matrices"].get(one, one) for one in words_of(listed)]
        has_mlp = settings.is_on("model.apply_lora_to_mlp") is not None
        targets += TUNE["mlp"] if has_mlp else []
        launch.set("training.lora.targets", targets, listed)


def _model_of(family: str, builder: str) -> str:
    """Return the name of a model, such as `qwen2.5-1.5b` of `qwen2_5_1_5b`."""
    size = builder.lower().removeprefix(f"{family}_")
    size = re.sub(r"(?<=\d)_(?=\d{1,3}b)", ".", size).replace("_", "-")
    is_apart = size != builder or builder[0].isdigit()
    return f"{family.replace('_', '.')}-{size}" if is_apart else builder


def _words_of_tune(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield the options of `tune run`, and those of a recipe that trains."""
    texts = [word.text for word in words]
    if "run" not in texts or not {*TUNE["no_training"]}.isdisjoint(texts):
        return
    given = words[texts.index("run") + 1 :]
    yield from options([word for word in given if not _assigns(word)], name)
    for word in given:
        if word.text.endswith("_single_device") and "/" not in word.text:
            yield option(Argument("--nproc_per_node", word.line), ["1"], name)
    for one in assignments(given, name):
        is_class = one.name in TUNE["components"]
        yield replace(one, name=f"{one.name}._component_") if is_class else one


def read_litgpt(settings: Settings, launch: Launch, is_whole: bool) -> None:
    """Read the arguments of a command of LitGPT."""
    kind = _kind_of_lit(settings)
    _read_plan(settings, launch, LIT, is_whole)
    _read_ranks(settings, launch, kind, is_whole)
    launch.assume(LIT["usual"][kind] if is_whole else {})
    gpus = launch.value("gpus")
    launch.assume({"zero": 3, "offload": "none", "tp": 1, "cp": 1})
    launch.set("training.compile", kind == "pretrain")
    if kind != "pretrain":
        launch.set("training.fused.norm", False)  # model.py: RMSNorm
    if kind == "pretrain" or gpus:
        is_repeated = kind != "pretrain" and gpus > 1
        launch.set("recompute", "full" if is_repeated else "none")
    if gpus != 1:
        launch.set("training.gradient_sync", "last")  # `no_backward_sync`
    if kind == "full" and launch.value("training.optimizer") in (None, "adamw"):
        launch.set("training.foreach", True)
    _read_types(settings, launch, kind)
    if kind == "lora":
        _read_lora(settings, launch)
    if "model_config.n_layer" in settings:
        launch.read(settings, LIT["sizes"])
    elif (named := settings.get("checkpoint_dir", "model_name")) is not None:
        short = str(named.value).rstrip("/").rpartition("/")[2]
        launch.set("model", short, named)


def _kind_of_lit(settings: Settings) -> str:
    """Return which of its trainings a command or a configuration is for."""
    command = settings.get("command")
    named = "checkpoint_dir" in settings
    usual = "lora" if "lora_r" in settings else "full" if named else "pretrain"
    return usual if command is None else _COMMANDS.get(str(command.value), usual)


def _read_ranks(settings: Settings, launch: Launch, kind: str, is_whole: bool) -> None:
    """Read the number of GPUs, which are those of a host for `auto` and -1."""
    devices = settings.count("devices", least=-1)
    nodes = settings.count("num_nodes") or (1, None)
    if devices is not None and devices[0] > 0:
        launch.set("gpus", devices[0] * nodes[0], devices[1])
    elif is_whole and kind != "pretrain" and "devices" not in settings:
        launch.set("gpus", *nodes)
    if kind == "pretrain":  # HYBRID_SHARD
        launch.set("dp_replicate", *nodes)


def _read_types(settings: Settings, launch: Launch, kind: str) -> None:
    """Read in which types weights and gradients are kept."""
    setting = settings.get("precision")
    if setting is None or setting.value is None:
        launch.set("precision", ["bf16", "fp16"])  # as the GPU has it, mixed
    word = str(setting.value) if setting is not None and setting.value else ""
    if word == "bf16-true":
        _keep_pure(launch)
    elif setting is not None and word == "16-true":
        launch.is_not_judged(setting, "weights of the optimizer are priced in fp32")
    elif kind != "lora" and word != "32-true" and launch.value("gpus") != 1:
        # lightning 7f0c343, fabric/plugins/precision/fsdp.py
        launch.set("training.gradients", "bf16")
    if kind == "lora" and not word.endswith("-true"):
        launch.assume(WIDE)


def _read_lora(settings: Settings, launch: Launch) -> None:
    """Read adapters, and what of the frozen weights is quantised."""
    launch.read_adapters(settings, LIT["adapters"])
    launch.read(settings, LIT["weights"])
    targets: list[str] = []
    for name, (matrices, is_usual) in LIT["matrices"].items():
        found = settings.flag(name)
        targets += matrices if (found[0] if found else is_usual) else []
    if targets:
        launch.set("training.lora.targets", targets)


_COMMANDS: dict[str, str] = {
    word: kind for kind, words in LIT["commands"].items() for word in words
}


def _words_of_lit(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield the options of `litgpt`, its command, and the model that stands alone."""
    texts = [word.text.rpartition("/")[2] for word in words]
    at = texts.index("litgpt") + 1 if "litgpt" in texts else len(texts)
    size = 2 if "_".join(texts[at : at + 2]) in _COMMANDS else 1
    command, given = "_".join(texts[at : at + size]), words[at + size :]
    if command not in _COMMANDS:
        return
    yield option(Argument("command", words[at].line), [command], name)
    if given and not given[0].text.startswith("-"):
        alone = "model_name" if command == "pretrain" else "checkpoint_dir"
        yield option(Argument(alone, given[0].line), [given[0].text], name)
    yield from options(given, name)


def read_foundry(settings: Settings, launch: Launch, is_whole: bool) -> None:
    """Read a configuration of LLM Foundry's `train.py`."""
    _read_plan(settings, launch, FOUNDRY, is_whole)
    launch.assume({"offload": "none", "cp": 1})
    _read_fsdp(settings, launch, is_whole)
    for one in map(settings.get, settings.starting_with(["compile_config"])):
        if one is not None and one.value is not None:
            launch.set("training.compile", True)
    kind = settings.get("model.name")
    if kind is not None and kind.value == "mpt_causal_lm":
        _read_mpt(settings, launch)
    else:
        launch.read(settings, FOUNDRY["hub"] if kind else FOUNDRY["mpt"])
        launch.read_name(settings, "model.pretrained_model_name_or_path")
    launch.read_adapters(settings, FOUNDRY["adapters"])
    is_low = launch.value("precision") in ("bf16", "fp16")
    if launch.value("training.lora.rank") is not None and is_low:
        if eight := settings.is_on("model.load_in_8bit"):
            launch.set("training.lora.weights", "int8", eight)
        launch.assume(WIDE)  # models/consts.py: `_MASTER_WEIGHTS_PRECISION`
    packed = settings.get("train_loader.dataset.packing_ratio")
    loader = settings.get("train_loader.name")
    is_packed = packed is not None and packed.value is not None
    if loader is not None and loader.value == "finetuning" and not is_packed:
        launch.is_not_judged(loader, "every row is priced as long as the longest")


def _read_fsdp(settings: Settings, launch: Launch, is_whole: bool) -> None:
    """Read what is sharded; without a section of FSDP nothing is."""
    alone = settings.get("fsdp_config")
    if not (settings.starting_with(["fsdp_config."]) or (alone and alone.value)):
        is_known = is_whole and not settings.starting_with(["deepspeed_config"])
        launch.assume({"zero": 0, "recompute": "none"} if is_known else {})
        return
    launch.read(settings, FOUNDRY["shards"], is_whole=is_whole)
    if launch.value("precision") not in ("bf16", "fp16", "fp8"):
        launch.values.pop("training.gradients", None)  # no type is lower
    _read_shards(settings, launch, "fsdp_config.data_parallel_shard_degree")
    setting = launch.setting("zero")
    is_hybrid = setting and str(setting.value).lower().startswith("hybrid")
    if is_hybrid and "dp_replicate" not in launch.values:
        launch.set("has_replicas", True, setting)
    reentrant = settings.flag("fsdp_config.activation_checkpointing_reentrant")
    if launch.value("recompute") == "full":
        launch.set("training.reentrant", *(reentrant or (True,)))
    if away := settings.is_on("fsdp_config.activation_cpu_offload"):
        launch.keep_inputs_on_host(away, moves_all=True, waits=True)


def _read_mpt(settings: Settings, launch: Launch) -> None:
    """Read the sizes of an MPT."""
    launch.read(settings, FOUNDRY["mpt"], is_whole=True)
    ratio, setting = settings.number("model.expansion_ratio") or (4, None)
    usual = int(launch.value("model.d_model") * ratio), setting
    width = settings.count("model.ffn_config.ffn_hidden_size") or usual
    launch.set("model.d_ff", *width)
    if launch.value("model.moe.n_experts"):
        launch.set("model.moe.d_ff", *width)
    learned = settings.flag("model.learned_pos_emb")
    turned = settings.is_on("model.attn_config.rope")
    if not (turned or launch.value("model.alibi") or (learned and not learned[0])):
        length = settings.count("model.max_seq_len") or (2048, None)
        launch.set("model.learned_positions", *length)


def _words_of_foundry(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield the options of `composer`, the configuration and what replaces it."""
    at = [index for index, word in enumerate(words) if word.text.endswith("train.py")]
    if not at:
        return
    for one in options(words[: at[0]], name):
        yield replace(one, name=FOUNDRY["launcher"].get(one.name, one.name))
    given = words[at[0] + 1 :]
    for word in given:
        if word.text.endswith(_YAML) and not _assigns(word):
            yield option(Argument("config", word.line), [word.text], name)
    yield from assignments(given, name)


def _with(*lines: str) -> str:
    """Return a pattern of texts with lines that begin so, near their start."""
    return "".join(rf"(?=[\s\S]{{0,20000}}?^{line}[ \t]{{0,9}}:)" for line in lines)


_CLASS = r"\b_component_[ \t]{0,9}:[ \t]{0,9}torchtune\."
_MICRO = r"[ \t]{1,9}micro_batch_size"
_BATCH = r"[ \t]{0,9}(?:global_train_batch_size|device_train_microbatch_size)"


def _format(
    kind: str, title: str, read: Read, words: Words, *, sign: str, form: str, start: str
) -> Format:
    """Return a program with its readers of settings and of the words of a command.

    Args:
        kind: Its name among the kinds of files.
        title: Its name.
        read: Reads its settings.
        words: Yields the settings in the words of a command.
        sign: The pattern of its YAML, and of no other.
        form: The pattern that tells its YAML from a script.
        start: The pattern of a command that starts it.
    """
    return Format(
        kind,
        title,
        "fsdp",
        rf"(?m)\A(?:{sign})|^[^#\n]{{0,400}}\b{start}",
        {form: partial(_read_yaml, read), "": partial(_read_script, read, words)},
    )


IMPORTERS = importers(
    _format(
        "torchtune",
        "torchtune",
        read_torchtune,
        _words_of_tune,
        sign=_with("model", "optimizer") + rf"(?=[\s\S]{{0,20000}}?{_CLASS})",
        form=_CLASS,
        start=r"tune[ ]{1,9}run[ ]",
    ),
    _format(
        "litgpt",
        "LitGPT",
        read_litgpt,
        _words_of_lit,
        sign=_with("(?:checkpoint_dir|model_name|out_dir)", "train", _MICRO),
        form=r"^train[ \t]*:",
        start=r"litgpt[ ]{1,9}(?:finetune|pretrain)",
    ),
    _format(
        "llm_foundry",
        "LLM Foundry",
        read_foundry,
        _words_of_foundry,
        sign=_with(_BATCH, r"[ \t]{0,9}train_loader"),
        form=rf"^{_BATCH}[ \t]*:",
        start=r"composer\b[^#\n]{0,400}\btrain\.py\b",
    ),
)
