"""Reinforcement learning: overrides of verl, and the YAML of NeMo-RL.

Read is the update of the policy: verl's actor of `ppo_megatron_trainer`, which is
Megatron Core, and NeMo-RL's policy, which Megatron Core or FSDP trains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from meshwright.imports.launches.command import (
    assignments,
    command_settings,
    read_gpus,
    read_launcher,
)
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.megatron import DEGREES, read_plan
from meshwright.imports.launches.megatron_options import read_model, read_precision
from meshwright.imports.launches.settings import (
    LONGEST_SHOWN,
    MOST_CHARACTERS,
    Setting,
    Settings,
    check_characters,
    fields,
)
from meshwright.imports.launches.shell import Argument, read_script
from meshwright.imports.registry import LaunchImporter
from meshwright.reading.document import Document
from meshwright.reading.yaml_and_csv import parse_yaml

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}

ACTOR = "actor_rollout_ref.actor"

VERL_ELSEWHERE = (
    "data.", "trainer.", "algorithm.", "critic.", "reward_model.", "reward_manager.",
    "custom_reward_function.", "global_profiler.", "ray_kwargs.",
    "actor_rollout_ref.ref.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model.",
    f"{ACTOR}.optim.", f"{ACTOR}.checkpoint.", f"{ACTOR}.profiler.",
)  # fmt: skip
"""Sections without a setting of the actor's plan, beside what is read of them."""

VERL_HARMLESS = (
    *(f"{ACTOR}.{name}" for name in (
        "use_kl_loss", "kl_loss_coef", "kl_loss_type", "entropy_coeff", "clip_ratio",
        "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode",
        "ppo_epochs", "shuffle", "grad_clip", "strategy",
    )),
    "use_mbridge", "vanilla_mbridge", "use_dist_checkpointing", "load_weight",
    "dist_checkpointing_path", "dist_checkpointing_prefix", "seed",
)  # fmt: skip
"""Settings that change neither the plan of an update nor its price."""

VERL_RENAMED = {
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": "micro_batch_size",
    f"{ACTOR}.optim.optimizer": "optimizer",
    "trainer.nnodes": "nnodes",
    "trainer.n_gpus_per_node": "nproc_per_node",
}
"""Settings that other readers know by other names."""

VERL_CORE = (
    f"{ACTOR}.megatron.override_transformer_config.",
    f"{ACTOR}.megatron.override_ddp_config.",
    f"{ACTOR}.megatron.",
)
"""Sections of Megatron Core's settings, by its names."""


def parse_verl(text: str, name: str) -> Launch:
    """Return the launch of a script.

    Raises:
        SpecError: no command has overrides of a Megatron actor, or a value is none
            that its field takes.
    """
    check_characters(text, name)
    script = read_script(text, name)
    launch = Launch("verl", "verl", "megatron", name)
    marks = ("tensor_model_parallel_size", "micro_batch_size", f"{ACTOR}.strategy")
    given = [*command_settings(script, marks, _overrides)]
    settings = Settings(given)
    read_launcher(script, text, settings, launch)
    settings.skip(*VERL_HARMLESS)
    settings.skip(
        *(setting.name for setting in given if setting.name.startswith(VERL_ELSEWHERE))
    )
    launch.read_name(settings, "actor_rollout_ref.model.path")
    _read_update(settings, launch)
    read_precision(settings, launch, is_complete=False)
    read_model(settings, launch, is_complete=False)
    dtype = settings.word(DTYPES, "dtype")
    launch.set("precision", *(dtype or ("bf16",)))
    read_plan(settings, launch, is_complete=False)
    defaults = dict.fromkeys(DEGREES, 1) | {"recompute": "none", "offload": "none"}
    defaults |= {"schedule": "1f1b", "zero": 1}
    if launch.value("stages") is None:
        defaults["vpp"] = 1
    launch.assume(defaults)
    if launch.value("sequence_parallel") is None and launch.value("tp") > 1:
        launch.set("sequence_parallel", True)
    for part in ("param", "grad", "optimizer"):
        if setting := settings.is_on(f"{part}_offload"):
            launch.is_not_judged(setting, "it leaves while answers are written")
    launch.close(settings)
    return launch


def _overrides(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield overrides by the names of Megatron Core; `null` is a default."""
    for setting in assignments(words, name):
        if setting.value in ("null", "None"):
            continue
        short = VERL_RENAMED.get(setting.name, setting.name)
        for section in VERL_CORE:
            short = short.removeprefix(section)
        value = str(setting.value).strip("'")  # as Hydra quotes what has signs
        yield Setting(short, value, setting.where, setting.written, setting.unset)


def _read_update(settings: Settings, launch: Launch) -> None:
    """Read the sequences of an update: answers of all prompts, of their full length."""
    prompts = settings.count(f"{ACTOR}.ppo_mini_batch_size")
    answers = settings.count("actor_rollout_ref.rollout.n")
    if prompts:
        count = prompts[0] * (answers[0] if answers else 1)
        launch.set("training.global_batch", count, prompts[1])
    lengths = [
        settings.count(f"data.max_{part}_length") for part in ("prompt", "response")
    ]
    if lengths[0] and lengths[1]:
        total = lengths[0][0] + lengths[1][0]
        launch.set("training.seq_len", total, lengths[1][1])
    if setting := settings.is_on(f"{ACTOR}.use_dynamic_bsz"):
        launch.is_not_judged(setting, "micro-batches of the given number are priced")
    settings.skip(f"{ACTOR}.use_dynamic_bsz")


MEGATRON, TENSORS = "policy.megatron_cfg.", "policy.dtensor_cfg."

NEMO_CORE = (f"{MEGATRON}optimizer.", f"{MEGATRON}distributed_data_parallel_config.")
"""Sections of Megatron Core's settings, by its names, beside `MEGATRON` itself."""

NEMO_RENAMED = {
    "policy.train_global_batch_size": "global_batch_size",
    "policy.train_micro_batch_size": "micro_batch_size",
    "policy.max_total_sequence_length": "seq_length",
    f"{MEGATRON}fp8_cfg.fp8": "fp8",
    "cluster.num_nodes": "nnodes",
    "cluster.gpus_per_node": "nproc_per_node",
}
"""Settings that other readers know by other names."""

NEMO_ELSEWHERE = (
    "grpo.", "ppo.", "sft.", "dpo.", "rm.", "distillation.", "async_rl.", "loss_fn.",
    "checkpointing.", "data.", "data_plane.", "env.", "logger.", "teacher", "value",
    "cluster.", "policy.tokenizer", "policy.scheduler", "policy.optimizer",
    "policy.generation.", "policy.generation_batch_size", "policy.quant_",
    "policy.make_sequence_length_divisible_by", "policy.max_grad_norm",
    "policy.dynamic_batching.", "policy.sequence_packing.", "policy.logprob_chunk_size",
    "policy.offload_optimizer_for_logprob", "policy.refit_buffer_size_gb",
    f"{MEGATRON}scheduler.", f"{MEGATRON}converter_type", f"{MEGATRON}pipeline_dtype",
    f"{TENSORS}_v2", f"{TENSORS}enabled", f"{TENSORS}custom_parallel_plan",
)  # fmt: skip
"""Settings that change neither the plan of an update nor its price."""

NEMO_HARMLESS = (
    "enabled", "empty_unused_memory_level", "freeze_moe_router", "params_dtype",
    "moe_router_bias_update_rate", "clip_grad", "sgd_momentum", "env_vars",
    "fp8_cfg.enabled", "fp8_cfg.fp8_recipe", "fp8_cfg.fp8_param",
)  # fmt: skip
"""The same in Megatron Core's sections."""

DEFAULTS = "defaults"
"""The setting that names a file with all that this one leaves out."""

UNJUDGED = {
    DEFAULTS: "what it sets and this file does not is left open",
    "policy.dynamic_batching.enabled": "sequences are priced at their full length",
    "policy.sequence_packing.enabled": "sequences are priced at their full length",
    "policy.generation.vllm_cfg.gpu_memory_utilization": "the engine is taken to free "
    "its memory before an update; what it keeps: limits.reserved_gib",
}
"""Settings that our price does not follow, and the assumption in their place."""

AGAIN = f"{MEGATRON}recompute_"
"""Settings that count where `activation_checkpointing` is on."""

_REFERENCES = re.compile(r"\$\{([\w.]{1,200})\}")
_PRODUCT = re.compile(r"\$\{mul:\s*\$\{[\w.]+\},\s*\$\{[\w.]+\}\}")


def parse_nemo_rl(text: str, name: str) -> Launch:
    """Return the launch of a configuration.

    Raises:
        SpecError: neither Megatron Core nor DTensor is enabled, or a value is none that
            its field takes.
    """
    check_characters(text, name)
    document = parse_yaml(text, name)
    given = Settings(fields(document))
    is_core = given.is_on(f"{MEGATRON}enabled") is not None
    launch = Launch("nemo_rl", "NeMo-RL", "megatron" if is_core else "fsdp", name)
    settings = Settings(_settings(document, given, is_core=is_core))
    read_gpus(settings, launch)
    launch.read_name(settings, "policy.model_name")
    _note(settings, launch)
    if is_core:
        _read_core(settings, launch)
    else:
        _read_tensors(settings, launch)
    precision = settings.word(DTYPES, "policy.precision")
    if launch.value("precision") is None:
        launch.put("precision", precision)
    launch.close(settings)
    return launch


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
        short = NEMO_RENAMED.get(setting.name, setting.name)
        if not short.startswith((*NEMO_ELSEWHERE, AGAIN)):
            for section in (*NEMO_CORE, MEGATRON):
                short = short.removeprefix(section)
        value, unset = _value(setting, given)
        yield Setting(short, value, setting.where, setting.written, unset)


def _value(setting: Setting, given: Settings) -> tuple[Any, tuple[str, ...]]:
    """Return the value of a setting, and what of it the file does not set.

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
    """Note what the price does not follow, and skip what does not move it."""
    for name, why in UNJUDGED.items():
        setting = settings.get(name)
        if setting is not None and setting.value is not False:
            launch.is_not_judged(setting, why)
    micro = settings.count("micro_batch_size")
    scored = settings.count("policy.logprob_batch_size")
    if micro and scored and scored[0] > micro[0]:
        why = "log-probabilities of more sequences than an update has at a time"
        launch.is_not_judged(scored[1], f"{why} are not in the memory")
    settings.skip(
        *(n for n in settings.names if n.startswith(NEMO_ELSEWHERE)), *NEMO_HARMLESS
    )


def _read_core(settings: Settings, launch: Launch) -> None:
    """Read a policy that Megatron Core trains."""
    _read_recompute(settings, launch)
    read_precision(settings, launch, is_complete=False)
    read_plan(settings, launch, is_complete=False)
    read_model(settings, launch, is_complete=False)
    defaults = dict.fromkeys(DEGREES, 1) | {"schedule": "1f1b", "zero": 1}
    if launch.value("stages") is None and launch.value("layers_per_chunk") is None:
        defaults["vpp"] = 1
    defaults |= {"sequence_parallel": False, "offload": "none"}
    if DEFAULTS not in settings:
        launch.assume(defaults)
    if settings.is_on("peft.enabled"):
        launch.put("training.lora.rank", settings.count("peft.dim"))


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
    for field, word in (("tp", "tensor"), ("cp", "context")):
        found = settings.count(f"{TENSORS}{word}_parallel_size")
        launch.put(field, found, otherwise=1 if is_whole else None)
    experts = settings.count(f"{TENSORS}expert_parallel_size")
    if experts and experts[0] > 1:
        launch.is_not_judged(experts[1], "experts are priced on the GPUs of one rank")
    launch.put("micro_batch", settings.count("micro_batch_size"))
    launch.put("training.global_batch", settings.count("global_batch_size"))
    launch.put("training.seq_len", settings.count("seq_length"))
    if split := settings.is_on(f"{TENSORS}sequence_parallel"):
        launch.is_not_judged(split, "norms are priced on all tokens of a tp group")
    for field, name, value in (
        ("recompute", "activation_checkpointing", "full"),
        ("offload", "cpu_offload", "parameters"),
    ):
        on = settings.is_on(f"{TENSORS}{name}")
        if on or is_whole:
            launch.set(field, value if on else "none", on)
    launch.set("zero", 3)
    if settings.is_on(f"{TENSORS}lora_cfg.enabled"):
        launch.put("training.lora.rank", settings.count(f"{TENSORS}lora_cfg.dim"))


IMPORTERS = {
    "verl": LaunchImporter(
        sign=r"\bactor_rollout_ref\.actor\.megatron\.\w",
        parse=parse_verl,
        most_characters=MOST_CHARACTERS,
    ),
    "nemo_rl": LaunchImporter(
        sign=r"(?m)^policy:[\s\S]{0,20000}^[ \t]{1,9}(?:megatron|dtensor)_cfg:",
        parse=parse_nemo_rl,
        most_characters=MOST_CHARACTERS,
    ),
}
