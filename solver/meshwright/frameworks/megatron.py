"""Megatron-LM; also used for NeMo and Megatron-Bridge, which run its core."""

from __future__ import annotations

from meshwright.frameworks.base.framework import Framework, StateBytes
from meshwright.frameworks.base.shared_rules import (
    KV_HEADS_REPEATED,
    NO_DRIVES,
    NO_ZERO_2_WITH_PIPELINE,
    ONLY_1F1B,
    is_alone,
    keeps_or,
)
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import OPTIMIZER
from meshwright.spec.training import Training

OFFLOADS_OPTIMIZER = Rule(
    "offload_supported",
    "only the optimizer is offloaded, and it is sharded if it can be",
    "Megatron-LM arguments.py: optimizer-cpu-offload, with the precision-aware "
    "and thus the distributed optimizer",
    lambda spec, rows: keeps_or(
        rows, (rows.offload == OPTIMIZER) & ((rows.zero >= 1) | is_alone(rows))
    ),
    "offload {offload}, zero {zero}",
)


def _state(training: Training, moments: float) -> StateBytes:
    """Return the state of a parameter; gradients are added up in fp32.

    That is 2 + 4 + 12 bytes with Adam (Megatron-LM, docs on the distributed optimizer).
    NeMo adds gradients up and reduces them in bf16 (`grad_reduce_in_fp32` false).
    """
    main = 2 if training.gradients == "bf16" else 4
    return StateBytes(2, main, 4 + moments, 2, main)


FRAMEWORK = Framework(
    title="Megatron-LM",
    mixed_state=_state,
    degree_rules=(KV_HEADS_REPEATED,),
    plan_rules=(NO_ZERO_2_WITH_PIPELINE, ONLY_1F1B, OFFLOADS_OPTIMIZER, NO_DRIVES),
    offloads=(OPTIMIZER,),
    fused_kernels="all",  # Transformer Engine's norms, `bias_swiglu_fusion`
    has_fused_loss=True,  # Transformer Engine's
    has_separate_gradients=True,
    keeps_fp8_copies=True,
    pads_vocabulary=True,  # to 128 per GPU, `--make-vocab-size-divisible-by`
    has_native_attention=True,
    published_as=("megatron", "nemo"),
    sequence_parallel_since="2023",
    has_tuned_chunks=True,
)
