"""Plans as a recipe of Megatron Bridge."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.escape import printable
from meshwright.exports import megatron
from meshwright.exports.bridge_model import model_fields
from meshwright.exports.files import ExportedFile, Setting, commented
from meshwright.exports.launch import Program, launch_files
from meshwright.exports.megatron_state import STRATEGIES, is_precision_aware
from meshwright.exports.model_page import model_page
from meshwright.exports.target import Target
from meshwright.exports.unsaid import unsaid
from meshwright.frameworks.base.registry import overlap_of
from meshwright.plans.plan import Plan
from meshwright.spec.spec import Spec
from meshwright.spec.training import Overlaps, Training

FILE = "meshwright_plan.py"

PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "fp32": None,
    "tf32": None,
}

_TEXT = '''"""A plan for Megatron Bridge; launch.sh beside it starts it."""

# {title}
# {plan}

import torch
from megatron.bridge.models.{module} import {provider}
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.pretrain import pretrain
from torch.nn.functional import {activation}


def plan() -> ConfigContainer:
    """Return the configuration of the plan, on made-up data."""
    cfg = _pretrain_common()
    cfg.model = {provider}(
{model}    )
{settings}    return cfg


if __name__ == "__main__":
    pretrain(plan(), forward_step)
'''


def files(spec: Spec, plan: Plan) -> list[ExportedFile]:
    """Return the recipe of a plan, the script that starts it, and its model."""
    program = Program(
        title=f"{spec.title}: Megatron Bridge",
        plan=plan,
        command=[FILE],
        environment=megatron.environment(plan),
    )
    notes = [
        f"`{FILE}` builds the model from the spec's numbers; to start from Hugging "
        "Face weights, let `AutoBridge.from_hf_pretrained(...).to_megatron_provider()` "
        "make `cfg.model` and set the fields of the plan on it.",
        "Data are made up: give `cfg.dataset`, `cfg.tokenizer` and the rate of the "
        "optimizer.",
        *unsaid(spec, "Megatron Bridge", megatron.SAID),
    ]
    page = model_page(spec, "Megatron Bridge", notes)
    config = ExportedFile(name=FILE, text=config_text(spec, plan))
    return [config, *launch_files(spec.cluster, program), page]


def config_text(spec: Spec, plan: Plan) -> str:
    """Return the recipe, a line with its comment per number."""
    model = [(f"{own.name}={_code(own)},", own.why) for own in model_fields(spec, plan)]
    settings = [
        (f"cfg.{own.name} = {_set_code(own)}", own.why) for own in _sets(spec, plan)
    ]
    is_latent = spec.model.mla is not None
    return _TEXT.format(
        title=printable(spec.title),
        plan=plan,
        module="mla_provider" if is_latent else "gpt_provider",
        provider="MLAModelProvider" if is_latent else "GPTModelProvider",
        activation="silu" if spec.model.gated_mlp else "gelu",
        model="".join(commented(model, indent="        ")),
        settings="".join(commented(settings, indent="    ")),
    )


def _code(own: Setting) -> str:
    """Return a value as Python writes it; some are names."""
    is_name = own.name in ("activation_func", "pipeline_dtype")
    return str(own.value) if is_name else repr(own.value)


def _set_code(own: Setting) -> str:
    """Return a value as Python writes it; a precision is made an object, to change."""
    if own.name.endswith("_dtype"):
        return str(own.value)
    is_name = own.name == "mixed_precision" and own.value
    return f"get_mixed_precision_config({own.value!r})" if is_name else repr(own.value)


def _sets(spec: Spec, plan: Plan) -> Iterator[Setting]:
    training = spec.training
    yield Setting("train.micro_batch_size", plan.micro_batch, "plan.micro_batch")
    why = f"training.global_batch: {plan.microbatches} micro-batches per step"
    yield Setting("train.global_batch_size", training.global_batch, why)
    yield Setting("dataset.seq_length", training.seq_len, "training.seq_len")
    yield Setting("tokenizer.tokenizer_type", "NullTokenizer", "yours to change")
    yield Setting("tokenizer.vocab_size", spec.model.vocab, "model.vocab")
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
    yield from _small_state(training, plan)
    if training.partition_activations:
        name = "model.distribute_saved_activations"
        yield Setting(name, True, "training.partition_activations")
    if training.offload_activations:
        why = "training.offload_activations"
        yield Setting("model.cpu_offloading", True, why)
        name = "model.cpu_offloading_num_layers"
        yield Setting(name, training.offload_activations, why)
    if plan.offload == "optimizer":
        yield Setting("optimizer.optimizer_cpu_offload", True, "plan.offload optimizer")
        share = training.offload_fraction
        why = "all of it" if share == 1 else "training.offload_fraction"
        yield Setting("optimizer.optimizer_offload_fraction", share, why)
        name = "optimizer.use_precision_aware_optimizer"
        yield Setting(name, True, "the offload needs it")


def _small_state(training: Training, plan: Plan) -> Iterator[Setting]:
    """Yield the settings of the precision-aware optimizer, where it is one."""
    if not is_precision_aware(training):
        return
    why = "training.moments, training.master_weights"
    yield Setting("optimizer.use_precision_aware_optimizer", True, why)
    moments = f"torch.{'bfloat16' if training.moments == 'bf16' else 'float32'}"
    for name in ("optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype"):
        yield Setting(name, moments, "training.moments")


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
    refusals=megatron.refusals,
    files=files,
)
