"""Nanotron's YAML, or a script that starts `run_train.py` with it."""

from __future__ import annotations

import math
import re

from meshwright.imports.launches.command import command_settings, read_launcher
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.settings import (
    MOST_CHARACTERS,
    Settings,
    check_characters,
    fields,
    number_of,
)
from meshwright.imports.launches.shell import read_script
from meshwright.imports.registry import LaunchImporter
from meshwright.reading.yaml_and_csv import parse_yaml

DEGREES = {
    "tp": "parallelism.tp",
    "pp": "parallelism.pp",
    "cp": "parallelism.context_parallel_size",
    "ep": "parallelism.expert_parallel_size",
}
"""Degrees of a plan, and the settings that hold them; `dp` is beside them."""

COUNTS = {
    "micro_batch": "tokens.micro_batch_size",
    "microbatches": "tokens.batch_accumulation_per_replica",
    "training.seq_len": "tokens.sequence_length",
}
"""Fields of a plan or a job, and the settings that hold them."""

SIZES = {
    "n_layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "vocab": "vocab_size",
}
"""Sizes of a model, and the fields of `model.model_config` that hold them."""

EXPERTS = {
    "n_experts": "num_experts",
    "top_k": "top_k",
    "d_ff": "moe_intermediate_size",
}
"""Sizes of experts, and the fields of `moe_config` that hold them."""

LLAMOE = {"n_experts": "moe_num_experts", "top_k": "num_experts_per_tok"}
"""The same of the older `LlaMoEConfig`: one expert by default, and its own class of
experts, which are as wide as `intermediate_size` and not gated (examples/moe/moe.py at
130c19b4)."""

SCHEDULES = {"1f1b": "1f1b", "afab": "gpipe"}
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": ["fp32", "tf32"]}
OPTIMIZERS = {"adamw": "adamw", "sgd": "sgd"}
MODES = {"reduce_scatter": True, "all_reduce": False}
"""Words of `tp_mode`: whether sequences are split where tensors are not."""

KERNELS = {
    "flash_attention_2": "flash2", "llama3_ring_attention": "flash2",
    "flex_attention": "flash", "sdpa": "cudnn", "ring": "flash2",
}  # fmt: skip

MODEL = "model.model_config"

_AS_COUNTED = (
    *(f"{MODEL}.{name}" for name in (
        "bos_token_id", "eos_token_id", "pad_token_id", "hidden_act", "use_cache",
        "initializer_range", "is_llama_config", "is_qwen2_config", "pretraining_tp",
        "max_position_embeddings", "rope_interleaved", "z_loss_enabled",
        "z_loss_coefficient", "ring_attn_heads_k_stride", "log_attn_probs",
        "_use_qkv_packed", "moe_config.router_aux_loss_coef",
    )),
    "model.ddp_bucket_cap_mb", "model.make_vocab_size_divisible_by",
    "model.init_method.std", "model.init_method.path", "model.init_method.use_mup",
    "optimizer.optimizer_factory.torch_adam_is_fused", "data_stages", "lighteval",
    "metrics_logging", "s3_upload", "parallelism.tp_recompute_allgather", "profiler",
    "optimizer.weight_decay_exclude_named_params",
    "optimizer.learning_rate_scheduler.learning_rate",
    *(f"optimizer.learning_rate_scheduler.{name}" for name in (
        "lr_decay_starting_step", "lr_decay_steps", "lr_decay_style",
        "lr_warmup_style", "min_decay_lr",
    )),
)  # fmt: skip
"""Settings whose values we assume anyway, or that change nothing that we price."""

NOT_JUDGED = {
    f"{MODEL}.sliding_window_size": "attention is priced over the whole sequence",
    f"{MODEL}.no_rope_layer": "all layers are priced alike",
    f"{MODEL}._use_doc_masking": "attention is priced over the whole sequence",
}
"""Settings that change time or memory, and the assumption that we price instead."""

_PLAIN = ("none", "false", "0")


def parse(text: str, name: str) -> Launch:
    """Return the launch of a configuration, or of a script that names one.

    Raises:
        SpecError: the text is neither, or a value is none that its key takes.
    """
    check_characters(text, name)
    launch = Launch("nanotron", "Nanotron", "nanotron", name)
    if _YAML.search(text):
        settings = Settings(fields(parse_yaml(text, name)))
        read_plan(settings, launch)
    else:
        script = read_script(text, name)
        settings = Settings(command_settings(script, ("config_file",)))
        if file := settings.file("config_file"):
            launch.files.append(file)
        read_launcher(script, text, settings, launch)
    launch.close(settings)
    return launch


def read_plan(settings: Settings, launch: Launch) -> None:
    """Read the plan, the job and the model.

    Raises:
        SpecError: a value is none that its key takes.
    """
    settings.skip(*_AS_COUNTED)
    for field, name in DEGREES.items():
        launch.set(field, *(settings.count(name) or (1,)))
    for field, name in COUNTS.items():
        launch.put(field, settings.count(name))
    if dp := settings.count("parallelism.dp"):
        degrees = [int(launch.value(field)) for field in DEGREES]
        launch.set("gpus", dp[0] * math.prod(degrees), dp[1])
        parts = [dp[0], launch.value("micro_batch"), launch.value("microbatches")]
        if None not in parts:
            launch.set("training.global_batch", math.prod(parts), dp[1])
    launch.set("vpp", 1)
    launch.set("offload", "none")
    engine = settings.word(SCHEDULES, "parallelism.pp_engine")
    launch.set("schedule", *(engine or ("gpipe",)))
    _read_tensor_parallelism(settings, launch)
    again = settings.flag("parallelism.recompute_layer")
    is_full = again is not None and again[0]
    launch.set("recompute", "full" if is_full else "none", again and again[1])
    _read_state(settings, launch)
    _read_model(settings, launch)
    launch.note_unpriced(settings, NOT_JUDGED, _PLAIN)


def _read_tensor_parallelism(settings: Settings, launch: Launch) -> None:
    mode = settings.word(MODES, "parallelism.tp_mode")
    if mode and mode[0] and launch.value("tp") == 1:
        launch.changes_nothing(mode[1], "the tensor-parallel size is 1")
    else:
        launch.set("sequence_parallel", *(mode or (False,)))
    hides = settings.flag("parallelism.tp_linear_async_communication")
    if hides and hides[0] and launch.value("tp") == 1:
        launch.changes_nothing(hides[1], "the tensor-parallel size is 1")
    elif hides:
        launch.set("training.overlap.tp", *hides)


def _read_state(settings: Settings, launch: Launch) -> None:
    stage = settings.count("optimizer.zero_stage", least=0)
    launch.set("zero", *(stage or (0,)))
    precision = settings.word(PRECISIONS, "model.dtype")
    launch.set("precision", *(precision or ("bf16",)))
    if wide := settings.flag("optimizer.accumulate_grad_in_fp32"):
        launch.set("training.gradients", "fp32" if wide[0] else "bf16", wide[1])
    launch.put(
        "training.optimizer",
        settings.word(OPTIMIZERS, "optimizer.optimizer_factory.name"),
    )


def _read_model(settings: Settings, launch: Launch) -> None:
    for field, name in SIZES.items():
        launch.put(f"model.{field}", settings.count(f"{MODEL}.{name}"))
    launch.set("model.gated_mlp", True)
    launch.set("model.norm", "rmsnorm")
    bias = settings.flag(f"{MODEL}.attention_bias")
    has_bias = bias is not None and bias[0]
    launch.set("model.bias", "qkv" if has_bias else "none", bias and bias[1])
    tied = settings.flag(f"{MODEL}.tie_word_embeddings")
    launch.set("model.tied_embeddings", *(tied or (False,)))
    for field, name in (("norm_eps", "rms_norm_eps"), ("rope_theta", "rope_theta")):
        setting = settings.get(f"{MODEL}.{name}")
        if setting is not None and setting.value is not None:
            launch.set(f"model.details.{field}", number_of(setting), setting)
    stretch = settings.get(f"{MODEL}.rope_scaling")
    if stretch is not None and stretch.value is not None:
        launch.is_not_judged(stretch, "no price depends on it")
    launch.put(
        "training.attention", settings.word(KERNELS, f"{MODEL}._attn_implementation")
    )
    for name, kind in (("_fused_rms_norm", "norm"), ("_fused_rotary_emb", "rope")):
        launch.put(f"training.fused.{kind}", settings.flag(f"{MODEL}.{name}"))
    _read_experts(settings, launch)


def _read_experts(settings: Settings, launch: Launch) -> None:
    section = f"{MODEL}.moe_config"
    settings.skip(section)
    for field, name in EXPERTS.items():
        launch.put(f"model.moe.{field}", settings.count(f"{section}.{name}"))
    settings.skip(f"{MODEL}.is_llamoe_config", f"{MODEL}.moe_capacity_factor")
    older = settings.count(f"{MODEL}.{LLAMOE['n_experts']}")
    if older and older[0] > 1:
        for field, name in LLAMOE.items():
            found = settings.count(f"{MODEL}.{name}")
            launch.set(f"model.moe.{field}", *(found or (1,)))
        launch.set("model.moe.d_ff", launch.value("model.d_ff"))
        launch.set("model.gated_mlp", False, older[1])
    width = settings.count(f"{section}.shared_expert_intermediate_size")
    if width and settings.is_on(f"{section}.enable_shared_expert"):
        launch.set("model.moe.shared_d_ff", *width)
    elif width:
        launch.changes_nothing(width[1], "enable_shared_expert is not on")
    words = {"alltoall": "alltoall", "allgather": "allgather"}
    settings.word(words, f"{section}.token_dispatcher_type")  # experts are not split
    layers = settings.get(f"{section}.layers")
    if layers is not None and layers.value not in (None, [-1]):
        launch.is_not_judged(layers, "all layers are priced with experts")


_YAML = re.compile(r"^(?:parallelism|tokens)[ \t]*:", re.M)

IMPORTERS = {
    "nanotron": LaunchImporter(
        sign=r"(?m)\A(?=[\s\S]{0,20000}^parallelism[ \t]{0,9}:)"
        r"(?=[\s\S]{0,20000}^tokens[ \t]{0,9}:)"
        r"|\brun_train\.py\b[\s\S]{0,400}--config-file\b",
        parse=parse,
        most_characters=MOST_CHARACTERS,
    ),
}
