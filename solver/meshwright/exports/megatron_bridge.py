"""Plans as a recipe of Megatron Bridge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

from meshwright.escape import in_markdown, printable
from meshwright.exports.files import (
    TEXTS,
    ExportedFile,
    Setting,
    commented,
    model_page,
    unsaid,
)
from meshwright.exports.launch import TRIAL_STEPS, Program, launch_files
from meshwright.exports.megatron import (
    DTYPES,
    SAID,
    STRATEGIES,
    core_settings,
    environment,
    hidden_layer_traffic,
    memory_settings,
)
from meshwright.exports.megatron import refusals as megatron_refusals
from meshwright.exports.megatron_model import activation, model_settings
from meshwright.exports.target import Target, rounds_text
from meshwright.frameworks.base.registry import fused_of, overlap_of
from meshwright.plans.plan import Plan
from meshwright.spec.spec import Spec
from meshwright.spec.training import Overlaps


def model_fields(spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield the fields of a provider, which holds the degrees of a plan too."""
    yield from core_settings(spec, plan)
    yield from model_settings(spec.model)
    yield Setting("vocab_size", spec.model.vocab, "model.vocab, before padding")
    yield Setting("should_pad_vocab", True, "to a multiple of 128 x tp")
    yield Setting("seq_length", spec.training.seq_len, "training.seq_len")
    fused = "loss" in fused_of(spec)
    yield Setting("cross_entropy_loss_fusion", fused, "training.fused")
    yield from hidden_layer_traffic(spec, plan)
    if plan.vpp > 1:
        is_hidden, why = "pp" in overlap_of(spec), "training.overlap.pp"
        yield Setting("overlap_p2p_comm", is_hidden, why)
        yield Setting("batch_p2p_comm", not is_hidden, "one or the other")
    if plan.zero >= 2:
        yield Setting("init_model_with_meta_device", True, "no GPU holds all of it")
        yield Setting("gradient_accumulation_fusion", False, "not with Megatron-FSDP")


FILE = "meshwright_plan.py"

PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "fp32": None,
    "tf32": None,
}

HUBS = (
    "meta-llama/", "Qwen/", "deepseek-ai/", "google/gemma", "mistralai/Mistral-",
)  # fmt: skip
"""Beginnings of names on the hub that `AutoBridge` makes providers of."""

FUNCTIONS = {"squared_relu": "megatron.core.activations"}
"""Where activations are imported from; all others are PyTorch's."""


def files(spec: Spec, plan: Plan) -> list[ExportedFile]:
    """Return the recipe of a plan, the script that starts it, and its model."""
    program = Program(
        title=f"{spec.title}: Megatron Bridge",
        plan=plan,
        command=[FILE],
        environment=environment(spec, plan),
    )
    notes = [*_notes(spec), *unsaid(spec, "Megatron Bridge", SAID)]
    page = model_page(spec, "Megatron Bridge", notes)
    config = ExportedFile(name=FILE, text=config_text(spec, plan))
    return [config, *launch_files(spec, program), page]


def _notes(spec: Spec) -> Iterator[str]:
    if hub := _hub(spec):
        yield (
            f"`{FILE}` takes the model of {in_markdown(hub)} on the Hugging Face hub, "
            "with random weights: `load_weights=True` starts from those of the hub. A "
            "gated one needs `HF_TOKEN`; of its files `config.json` alone is read."
        )
    else:
        yield f"`{FILE}` builds the model from the spec's numbers."
    yield (
        "Data are made up: give `cfg.dataset`, `cfg.tokenizer` and the rate of the "
        "optimizer, and more than ten steps."
    )


def _hub(spec: Spec) -> str | None:
    """Return the model's name on the hub, if Bridge can make a provider of it."""
    hub = spec.model.details.hub
    return hub if hub is not None and hub.startswith(HUBS) else None


def config_text(spec: Spec, plan: Plan) -> str:
    """Return the recipe, a line with its comment per number."""
    hub, function = _hub(spec), activation(spec.model)
    latent = spec.model.mla is not None
    module = "mla_provider" if latent else "gpt_provider"
    provider = "MLAModelProvider" if latent else "GPTModelProvider"
    made = f"{provider}()"
    imports = [f"from megatron.bridge.models.{module} import {provider}"]
    if hub:
        made = f"AutoBridge.from_hf_pretrained({hub!r}).to_megatron_provider("
        made += "load_weights=False)"
        imports = ["from megatron.bridge import AutoBridge"]
    folder = FUNCTIONS.get(function, "torch.nn.functional")
    imports += [*_IMPORTS, f"from {folder} import {function}"]
    fields = [
        replace(setting, name=f"model.{setting.name}")
        for setting in model_fields(spec, plan)
    ]
    if hub and not spec.model.mtp_layers:
        # A provider of the hub's model has those that its config.json names.
        fields.append(Setting("model.mtp_num_layers", None, "model.mtp_layers 0"))
    lines = [(f"cfg.model = {made}", "model.details.hub" if hub else "")]
    lines += [
        (f"cfg.{setting.name} = {_code(setting)}", setting.why)
        for setting in (*fields, *_sets(spec, plan))
    ]
    return TEXTS["megatron_bridge"].format(
        title=printable(spec.title),
        plan=plan,
        imports="\n".join(sorted(imports)),
        lines="".join(commented(lines, indent="    ")),
    )


_IMPORTS = (
    "from megatron.bridge.recipes.common import _pretrain_common",
    "from megatron.bridge.training.config import ConfigContainer",
    "from megatron.bridge.training.gpt_step import forward_step",
    "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
    "from megatron.bridge.training.pretrain import pretrain",
)


def _code(setting: Setting) -> str:
    """Return a value as Python writes it; some are names.

    A precision is made an object, whose fields can be changed.
    """
    name, value = setting.name, setting.value
    if name == "mixed_precision" and value:
        return f"get_mixed_precision_config({value!r})"
    is_type = name.endswith("_dtype") and str(value).startswith("torch.")
    is_name = is_type or name == "model.activation_func"
    return str(value) if is_name else repr(value)


def _sets(spec: Spec, plan: Plan) -> Iterator[Setting]:
    training = spec.training
    yield Setting("train.micro_batch_size", plan.micro_batch, "plan.micro_batch")
    why = f"training.global_batch: {rounds_text(plan)}"
    yield Setting("train.global_batch_size", training.global_batch, why)
    yield Setting("dataset.seq_length", training.seq_len, "training.seq_len")
    yield Setting("tokenizer.tokenizer_type", "NullTokenizer", "yours to change")
    yield Setting("tokenizer.vocab_size", spec.model.vocab, "model.vocab")
    yield from _short_run(plan)
    precision = PRECISIONS[plan.precision]
    yield Setting("mixed_precision", precision, f"plan.precision {plan.precision}")
    is_wide = training.gradients != "bf16"
    # What a precision says comes after `ddp`, and overwrites it.
    of = "mixed_precision" if precision else "ddp"
    yield Setting(f"{of}.grad_reduce_in_fp32", is_wide, "training.gradients")
    if plan.precision == "fp8":
        is_primary = training.fp8_weights == "primary"
        name = "mixed_precision.fp8_param_gather"
        yield Setting(name, is_primary, "training.fp8_weights")
    yield from _sharding(plan, overlap_of(spec))
    optimizer = {"adamw": "adam"}.get(training.optimizer, training.optimizer)
    yield Setting("optimizer.optimizer", optimizer, "training.optimizer")
    for setting in memory_settings(training, plan):
        is_type = setting.name.endswith("_dtype")
        value = DTYPES[setting.value] if is_type else setting.value
        yield replace(setting, value=value)


def _short_run(plan: Plan) -> Iterator[Setting]:
    """Yield the settings of a short run, in a folder that no other plan has."""
    folder = f"run-{sha256(str(plan).encode()).hexdigest()[:8]}"
    why = "yours; the recipe's default is 300,000"
    yield Setting("train.train_iters", TRIAL_STEPS, why)
    yield Setting("validation.eval_iters", 0, "nothing but steps of training is timed")
    yield Setting("validation.eval_interval", 1000, "train_iters is divided by it")
    yield Setting("scheduler.lr_warmup_iters", 2, "below train_iters")
    yield Setting("logger.log_interval", 1, "every step")
    yield Setting("logger.log_throughput", True, "TFLOP/s beside the step time")
    yield Setting("logger.tensorboard_dir", f"{folder}/tensorboard", "of this plan")
    why = "of this plan: another plan's checkpoint is not loaded"
    for name in ("save", "load"):
        yield Setting(f"checkpoint.{name}", f"{folder}/checkpoints", why)


def _sharding(plan: Plan, overlap: Overlaps) -> Iterator[Setting]:
    why = f"plan.zero {plan.zero}"
    is_distributed = plan.zero >= 1
    yield Setting("ddp.use_distributed_optimizer", is_distributed, why)
    yield Setting("optimizer.use_distributed_optimizer", is_distributed, why)
    name, is_hidden = "ddp.overlap_grad_reduce", "gradients" in overlap
    yield Setting(name, is_hidden, "training.overlap.gradients")
    is_hidden = is_hidden and plan.zero >= 1 and "parameters" in overlap
    name = "ddp.overlap_param_gather"
    yield Setting(name, is_hidden, "training.overlap.parameters")
    name = "ddp.data_parallel_sharding_strategy"
    strategy = STRATEGIES[plan.zero if plan.zero >= 2 else 0]
    yield Setting(name, strategy, why)
    yield Setting("ddp.use_megatron_fsdp", plan.zero >= 2, why)
    if plan.zero >= 2:
        yield Setting(
            "ddp.average_in_collective", False, "Megatron-FSDP averages itself"
        )
        yield Setting("checkpoint.ckpt_format", "fsdp_dtensor", "Megatron-FSDP's own")
    if plan.zero >= 1 and plan.dp_replicate > 1:
        name = "ddp.num_distributed_optimizer_instances"
        yield Setting(name, plan.dp_replicate, "plan.dp_replicate")
    yield Setting("dist.use_tp_pp_dp_mapping", False, "ranks are tp-cp-ep-dp-pp")


TARGET = Target(
    title="Megatron Bridge",
    version="megatron-bridge 0.6.2, megatron-core 0.19.2",
    framework="megatron",
    refusals=megatron_refusals,
    files=files,
)
