"""InternEvo, with HybridZero."""

from __future__ import annotations

from meshwright.frameworks.base.framework import Framework, StateBytes
from meshwright.frameworks.base.partition import Partition, larger_last
from meshwright.frameworks.base.recompute_scope import one_number
from meshwright.frameworks.limits import internevo as limits
from meshwright.spec.training import Training


def _state(training: Training, moments: float) -> StateBytes:
    """Return the state of a parameter, with the temporaries of an update.

    InternEvo's optimizers cast gradients to fp32, 4 bytes, and update flat tensors at
    once, so that AdamW's root and quotient are as large as its moments (InternEvo,
    solver/optimizer/fsdp_optimizer.py; the same is inferred for HybridZero).
    """
    return StateBytes(2, 2, 4 + moments, 2, 2, copied=4 + moments)


PARTITION = Partition(
    larger_last,
    "layers are split evenly, the last stages with one more",
    "InternEvo c628a8c solver/pipeline_utils.py: partition_uniform",
)

FRAMEWORK = Framework(
    title="InternEvo",
    mixed_state=_state,
    degree_rules=(*limits.DEGREE_RULES, PARTITION.rule),
    plan_rules=limits.PLAN_RULES,
    own_words=limits.OWN_WORDS,
    partition=PARTITION,
    full_scope=one_number(
        f"{limits.VERSION} model/modeling_llama.py: checkpoint_layer_num"
    ),
    fused=frozenset({"norm", "rope", "loss"}),  # Apex's and flash-attn's
    overlap=frozenset({"gradients"}),  # all its configs: overlap_sync_param=False
    keeps_fp8_copies=True,
    layer_dispatch=2.0,  # modules with hooks
    published_as=("internevo",),
)
