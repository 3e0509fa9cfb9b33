"""verl: overrides of `ppo_megatron_trainer`, whose actor is Megatron Core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.imports.launches.command import (
    assignments,
    command_settings,
    read_launcher,
)
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.megatron import DEGREES, read_plan
from meshwright.imports.launches.megatron_options import read_model, read_precision
from meshwright.imports.launches.settings import (
    MOST_CHARACTERS,
    Setting,
    Settings,
    check_characters,
)
from meshwright.imports.launches.shell import Argument, read_script
from meshwright.imports.registry import LaunchImporter

ACTOR = "actor_rollout_ref.actor"

ELSEWHERE = (
    "data.", "trainer.", "algorithm.", "critic.", "reward_model.", "reward_manager.",
    "custom_reward_function.", "global_profiler.", "ray_kwargs.",
    "actor_rollout_ref.ref.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model.",
    f"{ACTOR}.optim.", f"{ACTOR}.checkpoint.", f"{ACTOR}.profiler.",
)  # fmt: skip
"""Sections without a setting of the actor's plan, beside what is read of them."""

HARMLESS = (
    *(f"{ACTOR}.{name}" for name in (
        "use_kl_loss", "kl_loss_coef", "kl_loss_type", "entropy_coeff", "clip_ratio",
        "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode",
        "ppo_epochs", "shuffle", "grad_clip", "strategy",
    )),
    "use_mbridge", "vanilla_mbridge", "use_dist_checkpointing", "load_weight",
    "dist_checkpointing_path", "dist_checkpointing_prefix", "seed",
)  # fmt: skip
"""Settings that change neither the plan of an update nor its price."""

RENAMED = {
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": "micro_batch_size",
    f"{ACTOR}.optim.optimizer": "optimizer",
    "trainer.nnodes": "nnodes",
    "trainer.n_gpus_per_node": "nproc_per_node",
}
"""Settings that other readers know by other names."""

CORE = (
    f"{ACTOR}.megatron.override_transformer_config.",
    f"{ACTOR}.megatron.override_ddp_config.",
    f"{ACTOR}.megatron.",
)
"""Sections of Megatron Core's settings, by its names."""

DTYPES = {"bfloat16": "bf16", "float16": "fp16"}


def parse(text: str, name: str) -> Launch:
    """Return the launch of a script.

    Raises:
        SpecError: no command has overrides of a Megatron actor, or a value is none
            that its field takes.
    """
    check_characters(text, name)
    script = read_script(text, name)
    launch = Launch("verl", "verl", "megatron", name)
    marks = ("tensor_model_parallel_size", "micro_batch_size", f"{ACTOR}.strategy")
    given = [*command_settings(script, marks, _words)]
    settings = Settings(given)
    read_launcher(script, text, settings, launch)
    settings.skip(*HARMLESS)
    settings.skip(
        *(setting.name for setting in given if setting.name.startswith(ELSEWHERE))
    )
    launch.read_name(settings, "actor_rollout_ref.model.path")
    _read_batch(settings, launch)
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


def _words(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield overrides by the names of Megatron Core; `null` is a default."""
    for setting in assignments(words, name):
        if setting.value in ("null", "None"):
            continue
        short = RENAMED.get(setting.name, setting.name)
        for section in CORE:
            short = short.removeprefix(section)
        value = str(setting.value).strip("'")  # as Hydra quotes what has signs
        yield Setting(short, value, setting.where, setting.written, setting.unset)


def _read_batch(settings: Settings, launch: Launch) -> None:
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


IMPORTERS = {
    "verl": LaunchImporter(
        sign=r"\bactor_rollout_ref\.actor\.megatron\.\w",
        parse=parse,
        most_characters=MOST_CHARACTERS,
    ),
}
