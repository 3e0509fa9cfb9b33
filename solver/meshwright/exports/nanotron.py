"""Plans as a configuration of Nanotron."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.exports.files import (
    ExportedFile,
    Refusal,
    Sections,
    Setting,
    commented,
    is_like_llama,
    layer_refusals,
    model_page,
    unsaid,
    yaml_value,
)
from meshwright.exports.launch import TRIAL_STEPS, Program, launch_files
from meshwright.exports.target import Target, all_or_no_layers
from meshwright.frameworks.base.registry import framework_of, overlap_of
from meshwright.imports.launches.settings import OPTIONS, inverse
from meshwright.plans.plan import Plan
from meshwright.spec.spec import Spec

CONFIG = "nanotron.yaml"

NAMES = OPTIONS["nanotron"]
"""Its settings, as they are read."""

SCHEDULES = inverse(NAMES["engine"]["schedule"]["words"])
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
"""Words of `model.dtype` by precision."""

KERNELS = {"flash": "flash_attention_2", "flash2": "flash_attention_2", "cudnn": "sdpa"}
"""Words of `_attn_implementation` by the attention of a spec."""

MODELS = "nanotron/models/qwen.py: Qwen2DecoderLayer"
CHECK = "nanotron/config/config.py: Config.__post_init__"


def files(spec: Spec, plan: Plan) -> list[ExportedFile]:
    """Return the configuration of a plan, the script that starts it, and its model."""
    program = Program(
        title=f"{spec.title}: Nanotron",
        plan=plan,
        command=[
            '"${PROGRAM:?the path of run_train.py of Nanotron}"',
            f"--config-file {CONFIG}",
        ],
        environment=[
            Setting("CUDA_DEVICE_MAX_CONNECTIONS", 1, "as run_train.py asks for")
        ],
    )
    config = ExportedFile(name=CONFIG, text="".join(_yaml(_sections(spec, plan))))
    page = model_page(spec, "Nanotron", _notes(spec))
    return [config, *launch_files(spec, program), page]


def _yaml(sections: Sections) -> Iterator[str]:
    """Yield the lines of a configuration, each with its comment."""
    for name, settings in sections.items():
        depth = name.count(".") + 1 if name else 0
        if name:
            yield f"{'  ' * (depth - 1)}{name.rpartition('.')[2]}:\n"
        lines = (
            (f"{setting.name}: {yaml_value(setting.value)}", setting.why)
            for setting in settings
        )
        yield from commented(lines, indent="  " * depth)


def _sections(spec: Spec, plan: Plan) -> Sections:
    """Return the settings of a plan, in the order of the file."""
    training = spec.training
    sections: Sections = {
        "general": [Setting("project", "meshwright", "yours"), Setting("run", "plan")],
        "parallelism": [*_parallelism(spec, plan)],
        "tokens": [
            Setting("sequence_length", training.seq_len, "training.seq_len"),
            Setting("micro_batch_size", plan.micro_batch, "plan.micro_batch"),
            Setting(
                "batch_accumulation_per_replica",
                plan.microbatches,
                f"plan.microbatches: {training.global_batch} sequences a step",
            ),
            Setting("train_steps", TRIAL_STEPS, "a trial; yours"),
        ],
        "model": [
            Setting("dtype", DTYPES[plan.precision], f"plan.precision {plan.precision}")
        ],
        "model.init_method": [Setting("std", 0.02, "yours")],
        "model.model_config": [*_model(spec, plan)],
    }
    if spec.model.moe is not None:
        sections["model.model_config.moe_config"] = [*_experts(spec)]
    return sections | _optimizer(spec, plan) | _trial()


def _counts(rows: str, of: Any, section: str = "") -> Iterator[Setting]:
    """Yield the settings of rows of `options.yaml`, with the numbers of an object."""
    for field, row in NAMES[rows].items():
        value = getattr(of, field.rpartition(".")[2])
        yield Setting(row["count"].rpartition(".")[2], value, f"{section}{field}")


def _parallelism(spec: Spec, plan: Plan) -> Iterator[Setting]:
    yield Setting("dp", plan.dp_replicate * plan.dp_shard, "plan.dp")
    yield from _counts("degrees", plan, "plan.")
    engine = SCHEDULES[plan.schedule]
    yield Setting("pp_engine", engine, f"plan.schedule {plan.schedule}")
    mode = "REDUCE_SCATTER" if plan.sequence_parallel else "ALL_REDUCE"
    yield Setting("tp_mode", mode, "plan.sequence_parallel")
    hides = plan.tp > 1 and "tp" in overlap_of(spec)
    yield Setting("tp_linear_async_communication", hides, "training.overlap.tp")
    yield Setting("recompute_layer", plan.recompute == "full", "plan.recompute")


def _model(spec: Spec, plan: Plan) -> Iterator[Setting]:
    model = spec.model
    yield Setting("is_qwen2_config", True, "the class of the model")
    yield from _counts("sizes", model)
    longest = spec.training.seq_len
    yield Setting("max_position_embeddings", longest, "training.seq_len")
    yield Setting("tie_word_embeddings", model.tied_embeddings, "the model's")
    yield Setting("attention_bias", model.bias == "qkv", "model.bias")
    epsilon = model.details.norm_eps or 1e-6
    yield Setting("rms_norm_eps", epsilon, "model.details.norm_eps")
    yield Setting("rope_theta", model.details.rope_theta, "model.details.rope_theta")
    kernel = KERNELS[spec.training.attention]
    if plan.cp > 1:
        kernel = "llama3_ring_attention"
        yield Setting("ring_attn_heads_k_stride", 1, f"plan.cp {plan.cp}")
    yield Setting("_attn_implementation", kernel, "training.attention")
    fused = spec.training.fused
    has = framework_of(spec).fused if fused is None else fused
    yield Setting("_fused_rms_norm", "norm" in has, "training.fused")
    yield Setting("_fused_rotary_emb", "rope" in has, "training.fused")


def _experts(spec: Spec) -> Iterator[Setting]:
    moe = spec.model.moe
    assert moe is not None
    yield from _counts("experts", moe)
    yield Setting("enable_shared_expert", moe.shared_d_ff > 0, "model.moe.shared_d_ff")
    if moe.shared_d_ff:
        name = "shared_expert_intermediate_size"
        yield Setting(name, moe.shared_d_ff, "model.moe.shared_d_ff")


def _optimizer(spec: Spec, plan: Plan) -> Sections:
    training = spec.training
    rates: dict[str, Any] = {
        "learning_rate": 3e-4,
        "lr_warmup_steps": 2,
        "lr_warmup_style": "linear",
        "lr_decay_style": "cosine",
        "min_decay_lr": 1e-5,
    }
    adam = {"adam_eps": 1e-8, "adam_beta1": 0.9, "adam_beta2": 0.95}
    more: dict[str, Any] = {"name": "sgd"}
    if training.optimizer == "adamw":
        more = {"name": "adamW", **adam, "torch_adam_is_fused": True}
    return {
        "optimizer": [
            Setting("zero_stage", plan.zero, "plan.zero"),
            Setting(
                "accumulate_grad_in_fp32",
                training.gradients != "bf16",
                "training.gradients",
            ),
            Setting("weight_decay", 0.01, "yours"),
            Setting("clip_grad", 1.0, "yours"),
        ],
        "optimizer.optimizer_factory": [
            Setting(name, value, "training.optimizer" if name == "name" else "yours")
            for name, value in more.items()
        ],
        "optimizer.learning_rate_scheduler": [
            Setting(name, value, "yours") for name, value in rates.items()
        ],
    }


def _trial() -> Sections:
    """Return made-up data, and no checkpoint."""
    stage = {
        "name": "trial",
        "start_training_step": 1,
        "data": {"dataset": None, "seed": 42, "num_loading_workers": 1},
    }
    return {
        "": [Setting("data_stages", [stage], "made-up tokens: yours to change")],
        "checkpoints": [
            Setting("checkpoints_path", "checkpoints", "yours"),
            Setting("checkpoint_interval", 1000, "none in a trial"),
            Setting("save_final_state", False, "none in a trial"),
        ],
        "logging": [Setting("iteration_step_info_interval", 1, "every step")],
        "tokenizer": [Setting("tokenizer_name_or_path", None, "yours")],
    }


def _notes(spec: Spec) -> Iterator[str]:
    yield (
        f"`{CONFIG}` has the model in whole: Nanotron's Qwen2, which without biases is "
        "Llama."
    )
    if spec.model.details.rope_scaling is not None:
        yield "Its Qwen2 stretches no positions, as the model's `rope_scaling` does."
    yield "Data, tokenizer and rates are yours to change; ten steps are a trial."
    yield from unsaid(spec, "Nanotron", ("overlap.tp", "fused.norm", "fused.rope"))


def refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield the fields of a plan that Nanotron has no setting for."""
    model = spec.model
    if not is_like_llama(model) or model.first_dense_layers:
        yield Refusal("model", "is no Llama or Qwen2, with experts or without", MODELS)
    elif model.head_dim * model.n_heads != model.d_model:
        yield Refusal("model.head_dim", "is not d_model / n_heads", MODELS)
    yield from layer_refusals(model, "Nanotron")
    training = spec.training
    if training.optimizer not in ("adamw", "sgd"):
        sentence = f"{training.optimizer}: it has AdamW and SGD"
        yield Refusal("training.optimizer", sentence, CHECK)
    if plan.precision not in DTYPES:
        sentence = f"{plan.precision} is no dtype of its models"
        yield Refusal("precision", sentence, CHECK)
    if training.attention not in KERNELS:
        sentence = f"{training.attention} is none of its kernels"
        yield Refusal("training.attention", sentence, CHECK)
    if training.lora is not None:
        yield Refusal("training.lora", "it trains all weights", CHECK)
    check = "nanotron/config/parallelism_config.py: ParallelismArgs.recompute_layer"
    yield from all_or_no_layers(plan, check)


TARGET = Target(
    title="Nanotron",
    version="nanotron 0.4, commit 2411b02",
    framework="nanotron",
    refusals=refusals,
    files=files,
)
