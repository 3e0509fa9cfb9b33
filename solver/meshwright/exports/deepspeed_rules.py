"""What DeepSpeed cannot be told of a plan."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.exports.refusals import Refusal
from meshwright.exports.target import all_or_no_layers, layers, listed
from meshwright.plans.plan import Plan
from meshwright.spec.spec import Spec

PIPE = "deepspeed/runtime/pipe/module.py"
CHECKPOINTING = (
    "deepspeed/runtime/activation_checkpointing/checkpointing.py: checkpoint"
)


LAYER_CLASS = "transformer"
"""What the name of a layer's class has in it, by which DeepSpeed tells layers apart."""


def refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield what of a plan DeepSpeed cannot be told."""
    check = f"{PIPE}: activation_checkpoint_interval" if plan.pp > 1 else CHECKPOINTING
    yield from all_or_no_layers(plan, check)
    if len({*layers(plan)}) > 1:
        sentence = f"layers {listed(layers(plan))}: stages are balanced, not given"
        yield Refusal("stages", sentence, f"{PIPE}: _partition_layers")
    if plan.tp > spec.model.n_kv_heads and plan.pp == 1:
        sentence = (
            f"{plan.tp}, above {spec.model.n_kv_heads} KV heads: some ranks get none"
        )
        check = "deepspeed/module_inject/tp_shard.py: get_shard_size"
        yield Refusal("tp", sentence, check)
    if spec.model.moe is not None:
        yield from _expert_refusals(plan)
    if (
        spec.training.gradients == "bf16"
        and plan.zero <= 1
        and plan.precision == "fp16"
    ):
        check = "deepspeed/runtime/engine.py: _configure_optimizer"
        yield Refusal("training.gradients", "bf16 beside fp16 weights", check)


def _expert_refusals(plan: Plan) -> Iterator[Refusal]:
    if plan.zero == 3 and plan.ep == 1:
        sentence = "3 with native experts: only AutoEP shards their weights"
        check = "deepspeed/runtime/engine.py: _validate_zero3_moe_compatibility"
        yield Refusal("zero", sentence, check)
    if plan.tp == 1:
        return
    folding = "deepspeed/module_inject/auto_ep_folding.py: validate_folding_global"
    if plan.pp > 1:
        sentence = f"{plan.tp} beside pp {plan.pp} and experts: AutoEP needs pp 1 there"
        yield Refusal("tp", sentence, folding)
    if plan.ep == 1:
        yield Refusal("ep", "1 beside tensor parallelism: AutoEP needs ep > 1", folding)
    if plan.offload != "none":
        sentence = f"{plan.offload} beside experts and tp {plan.tp}"
        yield Refusal("offload", sentence, folding)
