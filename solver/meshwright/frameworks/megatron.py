"""Megatron-LM; also used for NeMo and Megatron-Bridge, which run its core."""

from __future__ import annotations

import numpy as np

from meshwright.frameworks.base.framework import Framework, StateBytes
from meshwright.frameworks.base.shared_rules import (
    KV_HEADS_REPEATED,
    NO_DRIVES,
    NO_ZERO_2_WITH_PIPELINE,
    ONLY_1F1B,
    is_alone,
    keeps_or,
)
from meshwright.frameworks.base.small_state import (
    STATE_OPTIONS,
    master_bytes,
    special_state,
)
from meshwright.plans.columns import Bools
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import KEEPS_ALL, OPTIMIZER, Skeletons
from meshwright.spec.spec import Spec
from meshwright.spec.training import Training

OFFLOADS_OPTIMIZER = Rule(
    "offload_supported",
    "only the optimizer is offloaded, and it is sharded if it can be",
    "Megatron-LM arguments.py: optimizer-cpu-offload, with the precision-aware "
    "and thus the distributed optimizer",
    lambda spec, rows: keeps_or(
        rows, (rows.offload == OPTIMIZER) & ((rows.zero >= 1) | is_alone(rows))
    ),
    "zero {zero}",
)


def _keeps_small_state(spec: Spec, rows: Skeletons) -> Bools:
    has_precise_optimizer = bool(special_state(spec.training) - {"fp8_weights"})
    stays = (rows.offload == KEEPS_ALL) | (not has_precise_optimizer)
    return np.asarray(((rows.zero >= 1) | is_alone(rows)) & stays)


DISTRIBUTED_STATE = Rule(
    "state_sharded",
    "primary fp8 weights and a precision-aware optimizer need ZeRO >= 1; the optimizer "
    "stays on the GPU then",
    "Megatron-LM 0.19.2 arguments.py: --fp8-param-gather; optimizer_config.py: "
    "use_precision_aware_optimizer, of Transformer Engine's Adam",
    _keeps_small_state,
    "zero {zero}",
    concerns=lambda spec: bool(special_state(spec.training)),
)


def _state(training: Training, moments: float) -> StateBytes:
    """Return the state of a parameter; gradients are added up in fp32.

    That is 2 + 4 + 12 bytes with Adam (Megatron-LM, docs on the distributed optimizer).
    NeMo adds gradients up and reduces them in bf16 (`grad_reduce_in_fp32` false). The
    precision-aware optimizer (optimizer_config.py) keeps moments in bf16, and beside
    bf16 weights the 16 bits that they lack (`store_param_remainders`).
    """
    main = 2 if training.gradients == "bf16" else 4
    return StateBytes(2, main, master_bytes(training) + moments, 2, main)


FRAMEWORK = Framework(
    title="Megatron-LM",
    mixed_state=_state,
    degree_rules=(KV_HEADS_REPEATED,),
    plan_rules=(
        NO_ZERO_2_WITH_PIPELINE,
        ONLY_1F1B,
        OFFLOADS_OPTIMIZER,
        NO_DRIVES,
        DISTRIBUTED_STATE,
    ),
    state_options=STATE_OPTIONS,
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
