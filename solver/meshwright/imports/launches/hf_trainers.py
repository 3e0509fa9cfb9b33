"""Axolotl, LLaMA-Factory and TRL: their YAML, or a script that starts one of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from meshwright.catalog import weights_of
from meshwright.imports.launches.command import (
    option,
    options,
    read_command,
    read_gpus,
    read_ranks,
)
from meshwright.imports.launches.formats import called_settings
from meshwright.imports.launches.launch import FieldValue, Format, Launch, importers
from meshwright.imports.launches.settings import (
    OPTIONS,
    Setting,
    Settings,
    fields,
    words_of,
)
from meshwright.imports.launches.shell import Script, read_script
from meshwright.reading.document import Where
from meshwright.reading.yaml_and_csv import parse_yaml
from meshwright.spec.training import LIGER_FUSED
from meshwright.spec.units import GIB


@dataclass(frozen=True)
class TrainerNames:
    """The names that one of the programs has for the settings of a launch."""

    title: str
    names: Mapping[str, str]
    """By field of a plan or a job, the name of the setting."""
    recomputes: tuple[str, bool]
    """The switch of recomputation, and its value where every layer is recomputed."""
    offloads: tuple[str, bool | str]
    """The option by which the inputs of recomputed layers wait in host memory."""
    skipped: Collection[str] = ()
    moves_all_of_adapters: bool = False
    """Whether all that layers save leaves beside adapters, and none is recomputed."""
    recomputes_by_itself: bool = False
    """Whether every layer is recomputed where the switch is not given."""
    adapters: Mapping[str, Any] = field(default_factory=dict)
    """Rank of adapters, and the inputs that they drop, where none is given."""
    adapts_by_itself: bool = False
    """Whether adapters are trained where the file does not say what is."""
    is_plain_alone: bool = False
    """Whether its command starts replicas where its file shards nothing."""
    halves_weights: bool = False
    """Whether weights are loaded, and trained, in bf16 where nothing shards them."""
    accumulates: int | None = 1
    """Micro-batches of a step where no option says how many; None if ranks do."""
    reference: str = "bf16"
    """In which a model to compare with is loaded where no option says it."""
    loss_tokens: int | None = None
    """Tokens of which the loss has logits at a time, where no other loss is asked."""
    tile_tokens: int | None = None
    """Tokens that a tiled MLP takes at a time where no option says how many parts."""

    def loss_chunks(self, seq_len: int, micro_batch: int) -> int:
        """Return the parts that the loss takes one after another, 1 for a whole one."""
        tokens = seq_len * micro_batch
        return -(-tokens // self.loss_tokens) if self.loss_tokens else 1


PROGRAMS = {name: TrainerNames(**told) for name, told in OPTIONS["trainers"].items()}

NAMES = OPTIONS["trainer"]
"""Options that the programs share, with the Trainer that is below them."""


def _read_python(text: str, launch: Launch) -> Settings:
    """Read the arguments with which a program of one's own calls the Trainer."""
    given = called_settings(text, launch.name, OPTIONS["trainer_calls"])
    # A model that is made elsewhere in the file is not named where it is passed.
    settings = Settings(one for one in given if not (one.unset and one.name == "model"))
    is_unsloth = UNSLOTH.search(text) is not None
    launch.title = "Unsloth" if is_unsloth else "Trainer of transformers"
    launch.put("training.seq_len", settings.count(*NAMES["lengths"]))
    # unsloth/models/llama.py: `get_peft_model`, and peft/tuners/lora/config.py
    adapters = {"usual_rank": 16 if is_unsloth else 8}
    tokens = None if is_unsloth else PROGRAMS["trl"].loss_tokens  # Unsloth has its own
    program = replace(PROGRAMS["trl"], adapters=adapters, loss_tokens=tokens)
    read_trainer(settings, launch, program, is_whole=TRL.search(text) is not None)
    if is_unsloth:
        _assume_unsloth(launch)
    return settings


LOGIT_BYTES, MOST_LOGITS_GIB = 16, 4
"""Bytes per logit at work in Unsloth's loss, and what a part of it has at most
(unsloth_zoo 002a0c9 fused_losses/cross_entropy_loss.py: `get_chunk_size`); of a GPU
with less than 8 GiB free it has less."""


def _assume_unsloth(launch: Launch) -> None:
    """Keep what Unsloth does by itself, on one GPU or replicas, by kernels of its own.

    Adapters that drop no input are fused (unsloth/kernels/fast_lora.py), and the loss
    is made in a multiple of four parts.
    """
    launch.unsharded |= NAMES["unsharded"]
    has_adapters = launch.value("training.lora.rank") is not None
    if has_adapters and not launch.value("training.lora.dropout"):
        launch.set("training.lora.adapters", "fused")
    length, vocab = launch.value("training.seq_len"), launch.size_of_model("vocab")
    if length is not None and vocab is not None:
        logits = length * (launch.value("micro_batch") or 1) * vocab
        parts = logits * LOGIT_BYTES / GIB / MOST_LOGITS_GIB
        launch.set("training.loss_chunks", 4 * ceil(parts / 4) if parts > 1 else 1)


TRL = re.compile(r"\b(?:SFT|DPO|GRPO|KTO|ORPO|RLOO|Reward)Config\(")
"""Calls of TRL, which recomputes unless told."""

UNSLOTH = re.compile(r"(?m)^(?:from|import)[ \t]{1,9}unsloth\b")


def _read(text: str, launch: Launch) -> Settings:
    """Read a configuration, or a script that names one or has its options."""
    name, program = launch.name, PROGRAMS[launch.kind]
    if named := named_config(text, name):
        for words in read_script(text, name).runs:
            if any("torchrun" in word.text for word in words):
                read_gpus(Settings(options(words, name)), launch)
        if program.is_plain_alone and "--deepspeed" not in text:
            launch.unsharded |= NAMES["unsharded"]
        launch.files.append(named)
        read_program(text, launch)
        return Settings(())
    if SWIFT.search(text):
        return _read_swift(text, launch)
    if FACTORY.search(text):
        settings = read_command(text, launch, FACTORY_MARKS)
        read_trainer(settings, launch, program, is_whole=True)
        read_ranks(text, launch)
        launch.unsharded |= NAMES["unsharded"]
    elif TRAINER.search(text):
        launch.title = "Trainer of transformers"
        settings = read_command(text, launch, MARKS)
        read_arguments(settings, launch, text)
    else:
        settings = Settings(fields(parse_yaml(text, name)))
        launch.put("training.seq_len", settings.count(*NAMES["lengths"]))
        read_trainer(settings, launch, program, is_whole=True)
        if program.is_plain_alone:
            launch.unsharded |= NAMES["unsharded"]
        is_half = launch.value("precision") in (None, "bf16")
        is_adam = launch.value("training.optimizer") in (None, "adamw", "adamw-8bit")
        is_full = launch.value("training.lora.rank") is None
        if program.halves_weights and is_half and is_adam and is_full:
            launch.unsharded["training.master_weights"] = "none"
        if program.recomputes_by_itself:  # Where that is off, a file of FSDP may do it.
            launch.unsharded.pop("recompute", None)
    return settings


FACTORY = re.compile(r"\bllamafactory-cli[ ]train[ \\\n]{1,20}--")
"""A start of LLaMA-Factory with options, in place of a file."""

FACTORY_MARKS = ("finetuning_type", "cutoff_len", "per_device_train_batch_size")


def read_program(text: str, launch: Launch) -> None:
    """Read whether the program of TRL that a command starts is that of pairs."""
    found = OF_TRL.search(text)
    if found is not None and found[1] is not None:
        launch.has_pairs = True
        launch.set("compares", True)


OF_SWIFT = r"\bswift[ ](?:sft|pt|rlhf)\b"
"""Starts of the trainers of ms-swift."""

SWIFT = re.compile(OF_SWIFT)

SWIFT_MARKS = ("per_device_train_batch_size", "max_length", "tuner_type", "train_type")
"""Options of which each training of ms-swift has one."""


def _read_swift(text: str, launch: Launch) -> Settings:
    """Read a start of ms-swift: the Trainer's options, its own, and its variables."""
    program = PROGRAMS["swift"]
    launch.title = program.title
    settings = read_command(text, launch, SWIFT_MARKS)
    if "swift rlhf" in text:
        settings.assume({"rlhf_type": "dpo"}, launch.name)
    read_trainer(settings, launch, program, is_whole=True)
    read_ranks(text, launch)
    if (found := settings.word(NAMES["swift_types"], "torch_dtype")) is not None:
        launch.set("precision", *found)
    _read_swift_files(settings, launch)
    launch.unsharded |= NAMES["unsharded"]
    return settings


def _read_swift_files(settings: Settings, launch: Launch) -> None:
    """Read what files say that ms-swift brings, where an option names one of them."""
    file, shards = settings.file("deepspeed"), settings.get("fsdp")
    if file is not None:
        launch.read(settings, NAMES["swift_tensors"], is_whole=True)
    if file is not None and str(file.value) in NAMES["swift_files"]:
        launch.files.remove(file)
        for field, value in NAMES["swift_files"][str(file.value)].items():
            launch.set(field, value, file)
        launch.set("training.overlap.gradients", False, file)
        launch.has_one_value("deepspeed")
    if shards is not None and shards.value == "fsdp2":
        launch.values["recompute"] = FieldValue("full", shards)


MARKS = ("per_device_train_batch_size",)
"""The option by which arguments of the Trainer are told from others."""

TRAINER = re.compile(r"--per_device_train_batch_size\b")


OF_TRL = re.compile(r"\btrl(?:/scripts/|\.scripts\.|[ ])(?:sft|(dpo))\b")
"""Starts of programs of TRL, whose defaults count; a group for that of pairs."""


def read_arguments(settings: Settings, launch: Launch, text: str = "") -> bool:
    """Read the arguments of a program with the Trainer, and return whether it is one.

    Recomputation stays open where they do not name it and `text` starts no program of
    TRL: that has it on, the Trainer off.
    """
    if not any(name in settings for name in MARKS):
        return False
    launch.put("training.seq_len", settings.count(*NAMES["lengths"]))
    is_whole = OF_TRL.search(text) is not None
    read_program(text, launch)
    read_trainer(settings, launch, PROGRAMS["trl"], is_whole=is_whole)
    return True


def program_of(script: Script, name: str) -> list[Setting]:
    """Return the program in Python that the last launch of a script starts, if any."""
    words = (word for words in script.runs for word in words)
    found = [word for word in words if word.text.endswith(".py")]
    return [option(found[-1], [found[-1].text], name)] if found else []


def read_trainer(
    settings: Settings, launch: Launch, program: TrainerNames, *, is_whole: bool
) -> None:
    """Read the Trainer's settings; `is_whole` where the others have their defaults."""
    launch.usual, launch.fills_auto = "fsdp", True
    settings.skip(*program.skipped, *NAMES["skipped"], *OPTIONS["fsdp"]["skipped"])
    launch.note_unpriced(settings, NAMES)
    for value, named in program.names.items():
        launch.put(value, settings.count(named))
    if is_whole:
        launch.put("microbatches", None, program.accumulates)
    _read_pairs(settings, launch, program)
    launch.put("cp", settings.count("sequence_parallel_size"))  # ms-swift
    launch.read_name(settings, "base_model", "model_name_or_path", "model")
    _read_kernels(settings, launch)
    _read_liger(settings, launch)
    _read_tiles(settings, launch, program)
    if is_whole:
        _read_loss(settings, launch, program)
    _read_adapters(settings, launch, program if is_whole else None)
    has_fsdp = _read_sharding(settings, launch)
    _read_recompute(settings, launch, program, has_fsdp)
    is_silent = program.recomputes[0] not in settings
    if is_whole and is_silent and program.recomputes_by_itself:
        launch.set("recompute", "full")
    _read_offload(settings, launch, program)


_PROGRAM = re.compile(
    r"\b(?:axolotl(?:\.cli\.train|[ ]train)|llamafactory(?:\.launcher|-cli[ ]train)"
    r"|trl(?:\.scripts\.|[ ])(?:sft|dpo)|[\w-]{1,60}\.py)"
    r"(?:[ \\\n]{1,20}--config)?[ \\\n]{1,20}"
    r"([\w./-]{1,200}\.ya?ml)",
    re.ASCII,
)


def named_config(text: str, name: str) -> Setting | None:
    """Return the configuration that a command of one of the programs names."""
    for found in _PROGRAM.finditer(text):
        before = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        if "#" not in before:  # files of settings say in comments what starts them
            line = text.count("\n", 0, found.start()) + 1
            return Setting("config", found[1], Where(name, line), "config")
    return None


def _read_kernels(settings: Settings, launch: Launch) -> None:
    """Read attention, the optimizer and compilation."""
    launch.read(settings, NAMES["kernels"])
    if muon := settings.is_on("use_muon"):
        launch.set("training.optimizer", "muon", muon)
    else:
        launch.read(settings, NAMES["optimizer"])
    for name in ("fp8", "bf16", "fp16"):
        setting = settings.is_on(name)
        if setting and not launch.value("precision"):
            launch.set("precision", name, setting)
    packs = settings.flag("sample_packing", "packing")
    if packs and packs[0]:
        launch.ignored.append(packs[1].written)
    elif packs:
        launch.is_not_judged(packs[1], "every row is priced as long as the longest")


LIGER_CHUNKS = 32
"""Parts in which Liger computes the loss: vocab / d_model, here that of Llama 3 8B
(Liger-Kernel ops/fused_linear_cross_entropy.py: `inc_factor`)."""


CUT_LOSS = "CutCrossEntropyPlugin"
"""Axolotl's kernel of the loss that keeps no logits, on where the plugin is named
(integrations/cut_cross_entropy/args.py); it is priced as Liger's."""


def _read_liger(settings: Settings, launch: Launch) -> None:
    """Read what Liger's kernels fuse."""
    for name, fused in NAMES["liger"].items():
        if setting := settings.is_on(name):
            kinds = LIGER_FUSED if fused == "all" else (fused,)
            for kind in kinds:
                launch.set(f"training.fused.{kind}", True, setting)
            if "loss" in kinds:
                launch.set("training.loss_chunks", LIGER_CHUNKS, setting)
    plugins, cuts = settings.get("plugins"), settings.flag("cut_cross_entropy")
    is_cut = cuts is None or cuts[0]
    if plugins is not None and CUT_LOSS in str(plugins.value) and is_cut:
        launch.set("training.fused.loss", True, plugins)
        launch.set("training.loss_chunks", LIGER_CHUNKS, plugins)


def _read_pairs(settings: Settings, launch: Launch, program: TrainerNames) -> None:
    """Read training on pairs of answers, and the frozen model to compare them with.

    That is loaded as options say, or the program by itself, whatever is done to what is
    trained; or its scores are there before the training begins.
    """
    kind, loss = settings.get(*NAMES["kinds"]), settings.get("pref_loss")
    settings.skip("pref_beta", "pref_ftx", "rlhf_beta")
    if kind is not None and str(kind.value) in NAMES["paired"]:
        launch.has_pairs = True
        asked = {str(one.value) for one in (kind, loss) if one is not None}
        launch.set("compares", asked.isdisjoint(NAMES["alone"]), kind)
    if known := settings.is_on("precompute_ref_log_probs"):
        launch.set("reference_format", None, known)
    else:
        launch.set("reference_format", program.reference)
        launch.read(settings, {"reference_format": NAMES["reference_format"]})
    if other := settings.get("ref_model", "ref_model_quantization_bit"):
        launch.is_not_judged(other, "it compares with a copy of what it trains")


def _read_loss(settings: Settings, launch: Launch, program: TrainerNames) -> None:
    """Read whether the loss has logits of some tokens at a time.

    TRL's has, but beside Liger, which brings its own, and in training by preferences.
    """
    if program.loss_tokens is None:
        return
    setting = settings.get("loss_type")
    is_compared = settings.get(*NAMES["kinds"]) is not None
    is_fused = "training.fused.loss" in launch.values
    usual = "" if is_fused or is_compared else "chunked_nll"
    loss = setting.value if setting is not None else usual
    length = launch.value("training.seq_len")
    if loss == "chunked_nll" and length is not None:
        chunks = program.loss_chunks(length, launch.value("micro_batch") or 1)
        launch.set("training.loss_chunks", chunks)


def _read_tiles(settings: Settings, launch: Launch, program: TrainerNames) -> None:
    """Read in how many parts MLPs take what a rank has of a sequence."""
    tiled = settings.is_on("tiled_mlp", "use_tiled_mlp")
    parts, length = (
        settings.count("tiled_mlp_num_shards"),
        launch.value("training.seq_len"),
    )
    if tiled is None:
        return
    if parts is not None:
        chunks = parts[0]
    elif program.tile_tokens is not None and length is not None:
        chunks = ceil(length / (launch.value("cp") or 1) / program.tile_tokens)
    else:
        chunks = 1
    if chunks > 1:
        launch.set("training.mlp_chunks", chunks, tiled)
    else:
        launch.is_not_judged(tiled, NAMES["unpriced"]["unsloth_tiled_mlp"])


def _read_adapters(
    settings: Settings, launch: Launch, program: TrainerNames | None
) -> None:
    """Read the rank, the targets and the frozen weights of adapters.

    Args:
        settings: What the Trainer is told.
        launch: What is read.
        program: The one whose defaults count; none where the file is not all of it.
    """
    kind = settings.get("adapter", "finetuning_type", "tuner_type", "train_type")
    is_lora = settings.is_on("use_peft", "use_lora", "use_qlora") is not None
    if kind is not None and str(kind.value) in ("lora", "qlora"):
        is_lora = True
    elif kind is not None and kind.value not in (None, "full"):
        launch.is_not_judged(kind, "all weights are priced as trained")
    elif kind is None and program is not None:
        is_lora |= program.adapts_by_itself
    names = OPTIONS["adapters"]["trainer"]
    rank = settings.read(names["rank"])
    bits = settings.get("quantization_bit", "quant_bits")
    is_lora |= "lora_dim" in settings and rank is not None and rank[0] > 0
    settings.skip("lora_alpha", "lora_target_linear", *NAMES["weights"])
    if not is_lora:
        settings.get(*names["targets"])
        settings.skip(*names["dropout"], *names["whole"])
        return
    usual = {} if program is None else program.adapters
    launch.read_adapters(settings, {**names, **usual}, are_there=True)
    if (whole := settings.get(*names["whole"])) and whole.value not in (None, "", []):
        launch.train_whole(whole, words_of(whole))
    for name, weights in NAMES["weights"].items():
        if setting := settings.is_on(name):
            launch.set("training.lora.weights", weights, setting)
    if bits is not None and (frozen := NAMES["bits"].get(str(bits.value))):
        launch.set("training.lora.weights", frozen, bits)
    if (model := launch.setting("model")) and (kept := weights_of(str(model.value))):
        launch.values.setdefault("training.lora.weights", FieldValue(kept, model))
    _read_fused_adapters(settings, launch)


def _read_fused_adapters(settings: Settings, launch: Launch) -> None:
    """Read Axolotl's kernels of adapters, which are Unsloth's and drop no input."""
    kernels = [*filter(None, map(settings.is_on, NAMES["fused_adapters"]))]
    drops = launch.value("training.lora.dropout")
    if len(kernels) == len(NAMES["fused_adapters"]) and not drops:
        launch.set("training.lora.adapters", "fused", kernels[0])
    else:
        for kernel in kernels:
            launch.is_not_judged(kernel, "adapters are priced apart from matrices")


def _read_sharding(settings: Settings, launch: Launch) -> bool:
    """Read what shards the state; return whether that is FSDP, in this file."""
    if file := settings.file("deepspeed"):
        launch.framework = "deepspeed"
        launch.files.append(file)
        launch.has_one_value("transformers")
        return False
    words = settings.get("fsdp_config.sharding_strategy", "fsdp")
    asked = str(words.value).lower() if words is not None and words.value else ""
    again = settings.flag("fsdp_config.reshard_after_forward")
    if again is None and words is not None and asked:
        again = "shard_grad_op" not in asked and "zero2" not in asked, words
    if again is None:
        return False
    if words is not None and asked.endswith(".json"):
        launch.is_not_judged(words, "its file is not read: all state counts as sharded")
    if words is not None and "hybrid" in asked:
        launch.set("has_replicas", True, words)
    launch.framework = "fsdp"
    launch.has_one_value("fsdp")
    launch.assume({"tp": 1, "cp": 1, "dp_replicate": 1})
    launch.set("zero", 3 if again[0] else 2, again[1])
    version = settings.count("fsdp_config.version", "fsdp_version") or (0, None)
    read_offload(settings, launch, version[0], is_on="offload" in asked)
    if repeated := settings.is_on("fsdp_config.activation_checkpointing"):
        launch.set("recompute", "full", repeated)
    return True


def read_offload(
    settings: Settings, launch: Launch, version: int, *, is_on: bool = False
) -> None:
    """Read whether FSDP keeps weights on the host, unless told.

    The first version of FSDP holds gradients there.
    """
    offload, setting = settings.flag("fsdp_config.offload_params") or (is_on, None)
    launch.set("offload", "parameters" if offload else "none", setting)
    if offload and version == 1:
        launch.set("training.holds_gradients", True, setting)


def _read_recompute(
    settings: Settings, launch: Launch, program: TrainerNames, has_fsdp: bool
) -> None:
    """Read whether every layer is recomputed.

    Where the switch is off, FSDP's own file may still have it on: a program comes with
    none unless it is read too, but arguments in YAML come beside one.
    """
    name, is_full = program.recomputes
    setting = settings.get(name)
    reentrant = settings.is_on("gradient_checkpointing_kwargs.use_reentrant")
    if setting is not None and _leaving(setting):
        launch.set("recompute", "full", setting)
        return
    found = settings.flag(name)
    if found is not None and found[0] == is_full:
        launch.set("recompute", "full", found[1])
        if reentrant is not None and has_fsdp:
            launch.set("training.reentrant", True, reentrant)
        return
    is_known = has_fsdp or bool(launch.framework)
    is_all = is_known or not launch.name.endswith((".yaml", ".yml", ".json"))
    if found is not None and launch.value("recompute") is None and is_all:
        launch.set("recompute", "none", found[1] if is_known else None)


def _leaving(setting: Setting) -> Collection[str]:
    """Return what an option moves off the GPU, and how; nothing where it is off."""
    words: Mapping[str, list[str]] = NAMES["leaving"].get(setting.name, {})
    return words.get(str(setting.value).lower(), ())


def _read_offload(settings: Settings, launch: Launch, program: TrainerNames) -> None:
    """Read whether what layers keep for their backward leaves the GPU.

    Hooks move whatever is saved: the input of a layer that is recomputed, and all that
    another saves, which is not priced.
    """
    is_lora = launch.value("training.lora.rank") is not None
    for name in NAMES["leaving"]:
        setting = settings.get(name)
        if setting is None or not (leaving := _leaving(setting)):
            continue
        moves_all, waits = "all" in leaving, "waits" in leaving
        if moves_all and is_lora and program.moves_all_of_adapters:
            launch.values["recompute"] = FieldValue("none", setting)
        is_said = launch.setting("recompute") is not None
        is_open = program.recomputes[0] in settings and not is_said
        if "drives" in leaving:
            launch.is_not_judged(setting, "what layers keep is priced on the GPU")
        elif is_open:  # so that options for recomputed layers mean something
            launch.values.pop("recompute", None)
            launch.is_not_judged(setting, "another file says if layers are recomputed")
        else:
            launch.keep_inputs_on_host(setting, moves_all=moves_all, waits=waits)


BY_ACCELERATE = r"[^#\n]{0,400}\baccelerate[ ]{1,9}launch\b"
"""A line that starts a program by Accelerate, and is no comment."""

_CALLS = r"(?=[\s\S]{0,20000}\b(?:\w{3,10}Config|\w{0,10}TrainingArguments)\()"

IN_PYTHON = (
    r"\A(?=[\s\S]{0,20000}(?:^|\n)(?:from|import)[ \t]{1,9}"
    rf"(?:trl|transformers|unsloth|peft)\b){_CALLS}"
)
"""The sign of a file of Python that calls the Trainer."""

_NOT_ACCELERATE = rf"\A(?![\s\S]{{0,20000}}(?:^|\n){BY_ACCELERATE})"

_SIGNS = {
    "axolotl": _NOT_ACCELERATE
    + r"(?=[\s\S]{0,20000}(?:^|\n)base_model[ \t]{0,9}:"
    + r"|[\s\S]{0,20000}\baxolotl(?:\.cli\.train|[ ]train)\b)",
    "llama_factory": _NOT_ACCELERATE
    + r"(?=[\s\S]{0,20000}(?:^|\n)(?:cutoff_len|finetuning_type)[ \t]{0,9}:"
    + r"|[\s\S]{0,20000}\bllamafactory(?:\.launcher|-cli)\b)",
    "trl": rf"{IN_PYTHON}|{_NOT_ACCELERATE}"
    + r"(?![\s\S]{0,20000}(?:^|\n)(?:cutoff_len|finetuning_type)[ \t]{0,9}:)"
    + r"(?=[\s\S]{0,20000}(?:^|\n)per_device_train_batch_size[ \t]{0,9}:"
    + r"|[\s\S]{0,20000}\btrl(?:\.scripts\.|[ ])(?:sft|dpo)\b"
    + rf"|[\s\S]{{0,20000}}{OF_SWIFT}"
    + r"|[\s\S]{0,20000}[ ]--per_device_train_batch_size\b)",
}

IMPORTERS = importers(
    *(
        Format(
            kind, PROGRAMS[kind].title, "", sign, {IN_PYTHON: _read_python, "": _read}
        )
        for kind, sign in _SIGNS.items()
    )
)
