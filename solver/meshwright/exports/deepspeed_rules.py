"""What DeepSpeed cannot be told of a plan."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.exports.refusals import Refusal
from meshwright.exports.target import all_or_no_layers
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
    if (
        spec.training.gradients == "bf16"
        and plan.zero <= 1
        and plan.precision == "fp16"
    ):
        check = "deepspeed/runtime/engine.py: _configure_optimizer"
        yield Refusal("training.gradients", "bf16 beside fp16 weights", check)
