"""Reinforcement learning: overrides of verl, options of OpenRLHF, NeMo-RL's YAML.

Read is the update of the policy: verl's actor and NeMo-RL's policy, which Megatron
Core or FSDP trains, and OpenRLHF's actor under DeepSpeed. The trainers of verl and
OpenRLHF on examples are read by the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from meshwright.imports.launches.command import (
    NODES,
    RANKS,
    assignments,
    options,
    read_command,
    read_gpus,
)
from meshwright.imports.launches.launch import Format, Launch, importers
from meshwright.imports.launches.megatron import DEGREES, read_arguments
from meshwright.imports.launches.settings import (
    LONGEST_SHOWN,
    OPTIONS,
    Setting,
    Settings,
    fields,
)
from meshwright.imports.launches.shell import Argument
from meshwright.reading.document import Document
from meshwright.reading.yaml_and_csv import parse_yaml

ACTOR = "actor_rollout_ref.actor"

VERL, NEMO, OPEN = (OPTIONS[name] for name in ("verl", "nemo_rl", "openrlhf"))


def _read_verl(text: str, launch: Launch) -> Settings:
    settings = read_command(text, launch, VERL["marks"], _overrides)
    settings.skip(*VERL["skipped"], "train_batch_size", "max_length")
    launch.read_name(settings, "model_path")
    _read_update(settings, launch)
    launch.note_unpriced(settings, VERL)
    launch.read(settings, VERL["precision"], is_whole=True)
    if VERL_CORE.search(text):
        _read_verl_core(settings, launch)
    else:
        _read_verl_sharded(settings, launch)
    settings.skip_sections(VERL["skipped_sections"])
    return settings


VERL_CORE = re.compile(
    r"megatron_trainer|actor\.megatron\.|\b(?:strategy|engine)=megatron\b"
)
"""How an actor that Megatron Core trains is told from one under FSDP."""


def _read_verl_core(settings: Settings, launch: Launch) -> None:
    read_arguments(settings, launch, is_complete=False)
    defaults = dict.fromkeys(DEGREES, 1) | {"recompute": "none", "offload": "none"}
    defaults |= {"schedule": "1f1b", "zero": 1}
    if launch.value("stages") is None:
        defaults["vpp"] = 1
    launch.assume(defaults)
    if launch.value("sequence_parallel") is None and launch.value("tp") > 1:
        launch.set("sequence_parallel", True)


def _read_verl_sharded(settings: Settings, launch: Launch) -> None:
    """Read an actor under FSDP, or what verl tunes on examples, under FSDP too."""
    launch.framework = "fsdp"
    launch.has_one_value("fsdp")
    launch.assume({"tp": 1})
    launch.read(settings, VERL["sharded"], is_whole=True)
    if setting := settings.is_on("activation_offload"):
        launch.keep_inputs_on_host(setting, moves_all=True)
    if not settings.starting_with([ACTOR]):
        launch.read(settings, VERL["examples"])
    launch.read_shards(settings, "fsdp_size")
    _read_micro_batch(settings, launch)
    launch.read_adapters(settings, OPTIONS["adapters"]["verl"])


def _read_micro_batch(settings: Settings, launch: Launch) -> None:
    """Read sequences of a rank at a time, by tokens, by the rank, or of all ranks."""
    tokens = settings.count(f"{ACTOR}.ppo_max_token_len_per_gpu")
    of_rank = settings.count("micro_batch_size")
    of_all = settings.count("global_micro_batch_size")
    length, gpus = launch.value("training.seq_len"), launch.value("gpus")
    if tokens and length and settings.is_on(f"{ACTOR}.use_dynamic_bsz"):
        launch.set("micro_batch", max(1, tokens[0] // length), tokens[1])
    elif of_rank:
        launch.set("micro_batch", *of_rank)
    elif of_all and gpus:
        count = of_all[0] * launch.value("cp") // gpus
        launch.set("micro_batch", max(1, count), of_all[1])
    elif of_all:
        launch.is_not_judged(of_all[1], "how many GPUs share it is not in the file")


def _overrides(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield overrides by the names of Megatron Core, and ranks that torchrun starts.

    `null` is a default.
    """
    ranks = (*NODES, *RANKS)
    yield from (one for one in options(words, name) if one.name in ranks)
    for setting in assignments(words, name):
        if setting.value in ("null", "None"):
            continue
        short = VERL["renamed"].get(setting.name, setting.name)
        for section in VERL["core"]:
            short = short.removeprefix(section)
        # Hydra quotes what has signs.
        yield replace(setting, name=short, value=str(setting.value).strip("'"))


def _read_update(settings: Settings, launch: Launch) -> None:
    """Read the sequences of an update: answers of all prompts, of their full length."""
    prompts = settings.count(f"{ACTOR}.ppo_mini_batch_size")
    answers = settings.count("actor_rollout_ref.rollout.n")
    if prompts:
        count = prompts[0] * (answers[0] if answers else 1)
        launch.set("training.global_batch", count, prompts[1])
    _read_length(settings, launch, "data.max_prompt_length", "data.max_response_length")


def _read_length(settings: Settings, launch: Launch, *names: str) -> None:
    """Keep the length of a sequence, which is a question and its answer."""
    asked, answered = map(settings.count, names)
    if asked and answered:
        launch.set("training.seq_len", asked[0] + answered[0], answered[1])


MEGATRON, TENSORS = "policy.megatron_cfg.", "policy.dtensor_cfg."

DEFAULTS = "defaults"
"""The setting that names a file with all that this one leaves out."""

AGAIN = f"{MEGATRON}recompute_"
"""Settings that count where `activation_checkpointing` is on."""

_REFERENCES = re.compile(r"\$\{([\w.]{1,200})\}")
_PRODUCT = re.compile(r"\$\{mul:\s*\$\{[\w.]+\},\s*\$\{[\w.]+\}\}")


def _read_nemo_rl(text: str, launch: Launch) -> Settings:
    document = parse_yaml(text, launch.name)
    given = Settings(fields(document))
    is_core = given.is_on(f"{MEGATRON}enabled") is not None
    launch.framework = "megatron" if is_core else "fsdp"
    settings = Settings(_settings(document, given, is_core=is_core))
    read_gpus(settings, launch)
    launch.read_name(settings, "policy.model_name")
    _note(settings, launch)
    if not given.starting_with([MEGATRON, TENSORS]):
        launch.framework = ""  # The file that it names for its defaults says so.
        launch.read(settings, NEMO["batch"])
    elif is_core:
        _read_core(settings, launch)
    else:
        _read_tensors(settings, launch)
    precision = settings.word(NEMO["precisions"], "policy.precision")
    if launch.value("precision") is None:
        launch.put("precision", precision)
    if given.starting_with(PAIRED):
        launch.has_pairs = True  # nemo_rl/algorithms/dpo.py and rm.py
    return settings


PAIRED = ("dpo.", "rm.")
"""Sections of trainings on pairs of answers."""


def _settings(
    document: Document, given: Settings, *, is_core: bool
) -> Iterator[Setting]:
    """Yield the settings of the backend that trains, by Megatron Core's names."""
    idle = TENSORS if is_core else MEGATRON
    has_eight = given.is_on(f"{MEGATRON}fp8_cfg.enabled") is not None
    for setting in fields(document):
        if setting.name.startswith(idle) or setting.value is None:
            continue
        if setting.name == f"{MEGATRON}fp8_cfg.fp8" and not has_eight:
            continue
        short = NEMO["renamed"].get(setting.name, setting.name)
        if not short.startswith((*NEMO["skipped_sections"], AGAIN)):
            for section in NEMO["core"]:
                short = short.removeprefix(section)
        value, unset = _value(setting, given)
        yield Setting(short, value, setting.where, setting.written, unset)


def _value(setting: Setting, given: Settings) -> tuple[Any, tuple[str, ...]]:
    """Return the value of a setting, and its variables that the file does not set.

    OmegaConf puts values of other settings, and the product of two, in their places.
    """
    text = setting.value
    if not isinstance(text, str) or "${" not in text:
        return text, setting.unset
    names = _REFERENCES.findall(text)
    found = [given.get(name) for name in names]
    values = [one.value for one in found if one is not None and not one.unset]
    if len(values) == len(names) == 1 and text == f"${{{names[0]}}}":
        return values[0], ()
    are_numbers = all(type(value) is int for value in values)
    if _PRODUCT.fullmatch(text) and len(values) == 2 and are_numbers:
        return values[0] * values[1], ()
    return text, (text[:LONGEST_SHOWN],)


def _note(settings: Settings, launch: Launch) -> None:
    """Note settings that the price does not follow; skip those that do not move it."""
    launch.note_unpriced(settings, NEMO)
    micro = settings.count("micro_batch_size")
    scored = settings.count("policy.logprob_batch_size")
    if micro and scored and scored[0] > micro[0]:
        why = "log-probabilities of more sequences than an update has at a time"
        launch.is_not_judged(scored[1], f"{why} are not in the memory")
    settings.skip(*NEMO["skipped"])
    settings.skip_sections(NEMO["skipped_sections"])


def _read_core(settings: Settings, launch: Launch) -> None:
    """Read a policy that Megatron Core trains."""
    _read_recompute(settings, launch)
    read_arguments(settings, launch, is_complete=False)
    defaults = dict.fromkeys(DEGREES, 1) | {"schedule": "1f1b", "zero": 1}
    if launch.value("stages") is None and launch.value("layers_per_chunk") is None:
        defaults["vpp"] = 1
    defaults |= {"sequence_parallel": False, "offload": "none"}
    if DEFAULTS not in settings:
        launch.assume(defaults)
    if settings.is_on("peft.enabled"):
        launch.read_adapters(settings, OPTIONS["adapters"]["nemo_rl"])


def _read_recompute(settings: Settings, launch: Launch) -> None:
    """Read recomputation: of all, or of modules (nemo_rl/models/megatron/setup.py)."""
    again = settings.is_on("activation_checkpointing")
    words = {"full": "full", "selective": "selective"}
    kind = settings.word(words, f"{AGAIN}granularity")
    modules = settings.get(f"{AGAIN}modules")
    mode = kind[0] if kind else "full"
    if again or DEFAULTS not in settings:
        launch.set("recompute", mode if again else "none", again)
    if again and mode == "selective" and modules is not None:
        names = modules.value if isinstance(modules.value, list) else [modules.value]
        launch.set("recompute_modules", [str(name) for name in names], modules)


def _read_tensors(settings: Settings, launch: Launch) -> None:
    """Read a policy that FSDP trains, with tensor and context parallelism."""
    launch.has_one_value("fsdp")
    is_whole = DEFAULTS not in settings
    launch.read(settings, NEMO["degrees"], is_whole=is_whole)
    experts = settings.count(f"{TENSORS}expert_parallel_size")
    if experts and experts[0] > 1:
        launch.is_not_judged(experts[1], "experts are priced on the GPUs of one rank")
    launch.read(settings, NEMO["batch"])
    if split := settings.is_on(f"{TENSORS}sequence_parallel"):
        launch.is_not_judged(split, "norms are priced on all tokens of a tp group")
    launch.read(settings, NEMO["kept"], is_whole=is_whole)
    launch.set("zero", 3)
    if settings.is_on(f"{TENSORS}lora_cfg.enabled"):
        launch.read_adapters(settings, OPTIONS["adapters"]["nemo_rl_sharded"])


def _read_openrlhf(text: str, launch: Launch) -> Settings:
    """Read OpenRLHF's trainers, the names of whose options have sections since 0.9."""
    settings = read_command(text, launch, OPEN["marks"])
    settings.skip_sections(OPEN["skipped_sections"])
    launch.read_name(settings, *OPEN["model"])
    launch.has_one_value("deepspeed")
    launch.read(settings, OPEN["plan"], is_whole=True)
    launch.read_adapters(settings, OPTIONS["adapters"]["openrlhf"])
    ring = settings.count(*OPEN["ring"])
    if ring and ring[0] > 1:
        launch.is_not_judged(ring[1], "each sequence is priced on one GPU")
    _read_length(settings, launch, "prompt_max_len", "generate_max_len")
    launch.note_unpriced(settings, OPEN)
    return settings


IMPORTERS = importers(
    Format(
        "openrlhf",
        "OpenRLHF",
        "deepspeed",
        r"\bopenrlhf\.cli\.train_\w",
        {"": _read_openrlhf},
    ),
    Format(
        "verl",
        "verl",
        "megatron",
        r"\bactor_rollout_ref\.actor\.\w|\bverl\.trainer\.(?:fsdp_)?sft_trainer\b",
        {"": _read_verl},
    ),
    Format(
        "nemo_rl",
        "NeMo-RL",
        "",
        r"(?m)^policy:[\s\S]{0,20000}^[ \t]{1,9}(?:megatron|dtensor)_cfg:"
        r"|^defaults:[ \t][^\n]{1,200}\.yaml\b[\s\S]{0,20000}^policy:",
        {"": _read_nemo_rl},
    ),
)
