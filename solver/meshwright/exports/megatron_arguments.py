"""Arguments of Megatron-LM on the state of training and on communication."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.exports.files import Refusal, Setting
from meshwright.frameworks.base.registry import (
    context_exchange_of,
    framework_of,
    overlap_of,
)
from meshwright.frameworks.base.shared import special_state
from meshwright.imports.launches import megatron_options as options
from meshwright.imports.launches.megatron_options import SHARDING
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import to_unplaced_row
from meshwright.spec.spec import Spec
from meshwright.spec.training import ContextExchange, Training


def hides_experts(spec: Spec, plan: Plan) -> bool:
    """Return whether messages of experts hide: asked for, there, and accepted."""
    if "ep" not in overlap_of(spec) or plan.ep == 1:
        return False
    return bool(framework_of(spec).hides_experts(to_unplaced_row(plan))[0])


OPTIMIZERS = {name: word for word, name in options.OPTIMIZERS.items()}
STRATEGIES = {stage: word for word, stage in SHARDING.items()}
"""The words that `imports` reads, by what they mean."""


def state_refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield what of a plan's state Megatron-LM cannot be told."""
    optimizer = spec.training.optimizer
    if optimizer not in OPTIMIZERS:
        check = "megatron/training/arguments.py: choices of --optimizer"
        yield Refusal("training.optimizer", f"{optimizer}: no such choice", check)
    is_split = plan.tp > 1 and plan.repeats_layers
    if spec.training.partition_activations and not is_split:
        sentence = "needs full recomputation and tensor parallelism"
        check = "megatron/training/arguments.py: distribute_saved_activations"
        yield Refusal("training.partition_activations", sentence, check)
    if spec.training.lora is not None:
        sentence = (
            "what is written here pretrains all weights; adapters need Megatron "
            "Bridge's `finetune` with `peft.lora.LoRA(target_modules, dim)`"
        )
        check = "megatron/training/arguments.py: no argument freezes weights"
        yield Refusal("training.lora", sentence, check)
    if _keeps_moments_alone(spec.training, plan):
        sentence = "fp32 beside bf16 moments: it keeps remainders then"
        check = "megatron/core/optimizer/optimizer_config.py: store_param_remainders"
        yield Refusal("training.master_weights", sentence, check)


def is_precision_aware(training: Training) -> bool:
    """Return whether Adam keeps less than fp32 moments and fp32 weights."""
    return bool(special_state(training) - {"fp8_weights"})


def _keeps_moments_alone(training: Training, plan: Plan) -> bool:
    """Return whether moments are in bf16, beside fp32 copies of bf16 weights."""
    has_16_bits = training.fp8_weights == "copies" or plan.precision != "fp8"
    is_wide = training.master_weights == "fp32"
    return training.moments == "bf16" and is_wide and has_16_bits


def state_arguments(spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield the arguments on what is kept, in which format and where."""
    yield from _precision(spec, plan)
    yield Setting(
        "--optimizer", OPTIMIZERS[spec.training.optimizer], "training.optimizer"
    )
    yield from _sharding(plan)
    yield from _overlap(spec, plan)
    if is_precision_aware(spec.training):
        why = "training.moments, training.master_weights"
        yield Setting("--use-precision-aware-optimizer", why=why)
        for name in ("--exp-avg-dtype", "--exp-avg-sq-dtype"):
            yield Setting(name, spec.training.moments, "training.moments")
    if spec.training.partition_activations:
        why = "training.partition_activations"
        yield Setting("--distribute-saved-activations", why=why)
    if layers := spec.training.offload_activations:
        name = "--cpu-offloading-num-layers"
        yield Setting(name, layers, "training.offload_activations")
    if plan.offload == "optimizer":
        yield Setting("--optimizer-cpu-offload", why="plan.offload optimizer")
        share = spec.training.offload_fraction
        why = "all of it" if share == 1 else "training.offload_fraction"
        yield Setting("--optimizer-offload-fraction", share, why)
        yield Setting("--use-precision-aware-optimizer", why="the offload needs it")


def _precision(spec: Spec, plan: Plan) -> Iterator[Setting]:
    if plan.precision == "fp8":
        yield Setting("--bf16", why="plan.precision fp8: what is no matmul")
        yield Setting("--fp8-format", "hybrid", "plan.precision fp8")
        yield Setting("--fp8-recipe", "delayed", "one scale per tensor")
        if spec.training.fp8_weights == "primary":
            yield Setting("--fp8-param-gather", why="training.fp8_weights")
    elif plan.precision in ("bf16", "fp16"):
        yield Setting(f"--{plan.precision}", why="plan.precision")
    if plan.precision in ("fp8", "bf16"):
        if spec.training.gradients == "bf16":
            yield Setting("--grad-reduce-in-bf16", why="training.gradients")
        else:
            name = "--accumulate-allreduce-grads-in-fp32"
            yield Setting(
                name, why="training.gradients; Megatron-LM's default for bf16"
            )
    elif spec.training.gradients == "fp32" and plan.precision == "fp16":
        name = "--accumulate-allreduce-grads-in-fp32"
        yield Setting(name, why="training.gradients")


def _overlap(spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield what hides which traffic; Megatron-LM's gathers need reductions."""
    overlap = overlap_of(spec)
    if "gradients" in overlap and (plan.zero >= 1 or plan.dp_replicate > 1):
        yield Setting("--overlap-grad-reduce", why="training.overlap.gradients")
        if "parameters" in overlap and plan.zero >= 1:
            yield Setting("--overlap-param-gather", why="training.overlap.parameters")
    if "tp" in overlap and plan.tp > 1 and plan.sequence_parallel:
        yield Setting("--tp-comm-overlap", why="training.overlap.tp")
    if hides_experts(spec, plan):
        why = "training.overlap.ep"
        yield Setting("--overlap-moe-expert-parallel-comm", why=why)
    if "pp" not in overlap and plan.vpp > 1:
        yield Setting("--no-overlap-p2p-communication", why="training.overlap.pp")


def _sharding(plan: Plan) -> Iterator[Setting]:
    if plan.zero >= 1:
        yield Setting("--use-distributed-optimizer", why=f"plan.zero {plan.zero}")
    if plan.zero >= 2:
        yield Setting("--use-megatron-fsdp", why=f"plan.zero {plan.zero}")
        name = "--data-parallel-sharding-strategy"
        yield Setting(name, STRATEGIES[plan.zero], f"plan.zero {plan.zero}")
        yield Setting("--ckpt-format", "fsdp_dtensor", "Megatron-FSDP's checkpoints")
        yield Setting(
            "--init-model-with-meta-device", why="no GPU holds the whole model"
        )
    if plan.zero >= 1 and plan.dp_replicate > 1:
        name = "--num-distributed-optimizer-instances"
        yield Setting(name, plan.dp_replicate, "plan.dp_replicate")
        if plan.zero >= 2:
            yield Setting(
                "--outer-dp-sharding-strategy", "no_shard", "replicas are whole"
            )


_TYPES: dict[ContextExchange, str] = {
    "ring": "p2p",
    "gather": "all_gather",
    "ulysses": "a2a",
}

_REASONS: dict[ContextExchange, str] = {
    "ring": "a ring, as its time is counted",
    "gather": "keys and values are gathered, as their time is counted",
    "ulysses": "tokens for heads, as their time is counted",
}


def cp_comm_type(spec: Spec) -> tuple[str, str]:
    """Return the value of `--cp-comm-type`, and why it is that."""
    exchange = context_exchange_of(spec)
    return _TYPES[exchange], _REASONS[exchange]
