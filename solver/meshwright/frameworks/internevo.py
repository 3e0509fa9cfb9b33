"""InternEvo, with HybridZero."""

from __future__ import annotations

from meshwright.frameworks.base.framework import Framework, StateBytes
from meshwright.frameworks.base.shared_rules import (
    KV_HEADS_REPEATED,
    NO_CONTEXT_PARALLELISM,
    NO_HYBRID_SHARDING,
    NO_INTERLEAVING,
    NO_SEQUENCE_PARALLELISM,
    NO_ZERO_2_WITH_PIPELINE,
    ONLY_1F1B,
)
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import KEEPS_ALL
from meshwright.spec.training import Training

OFFLOADS_NOTHING = Rule(
    "offload_supported",
    "nothing is offloaded",
    "InternEvo: hybrid_zero_optimizer has no such setting",
    lambda spec, rows: rows.offload == KEEPS_ALL,
    "offload {offload}",
)


def _state(training: Training, moments: float) -> StateBytes:
    """Return the state of a parameter, with the temporaries of an update.

    InternEvo's optimizers cast gradients to fp32, 4 bytes, and update flat tensors at
    once, so that AdamW's root and quotient are as large as its moments (InternEvo,
    solver/optimizer/fsdp_optimizer.py; the same is inferred for HybridZero).
    """
    return StateBytes(2, 2, 4 + moments, 2, 2, copied=4 + moments)


FRAMEWORK = Framework(
    title="InternEvo",
    mixed_state=_state,
    degree_rules=(KV_HEADS_REPEATED, NO_CONTEXT_PARALLELISM, NO_HYBRID_SHARDING),
    plan_rules=(
        NO_ZERO_2_WITH_PIPELINE,
        NO_SEQUENCE_PARALLELISM,
        ONLY_1F1B,
        NO_INTERLEAVING,
        OFFLOADS_NOTHING,
    ),
    has_fused_loss=True,  # flash-attn's
    keeps_fp8_copies=True,
    published_as=("internevo",),
)
