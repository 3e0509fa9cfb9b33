"""Megatron-LM; also used for NeMo and Megatron-Bridge, which run its core."""

from __future__ import annotations

import numpy as np

from meshwright.frameworks.base.framework import Framework, Selective, StateBytes
from meshwright.frameworks.base.selective import named_sets
from meshwright.frameworks.base.shared_rules import (
    KV_HEADS_REPEATED,
    NO_DRIVES,
    NO_ZERO_2_WITH_PIPELINE,
    ONLY_1F1B,
    is_alone,
    keeps_or,
)
from meshwright.plans.columns import Bools
from meshwright.plans.recomputation import (
    ALL_MODULES,
    LAYERNORM,
    MOE_ACT,
    SET_BITS,
)
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import OPTIMIZER, SELECTIVE, Skeletons
from meshwright.spec.gpu import PRECISIONS
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

MODULES_NAMED = Rule(
    "recompute_supported",
    "selective recomputation names modules that the layers have",
    "Megatron-LM (megatron-core 0.19.2) transformer_config.py: recompute_modules",
    lambda spec, rows: (
        (rows.recompute != SELECTIVE)
        | np.isin(rows.recompute_modules, named_sets(spec))
    ),
    "recompute {recompute}, modules {recompute_modules}",
)


def _keeps_scales(_spec: Spec, rows: Skeletons) -> Bools:
    repeated = SET_BITS[rows.recompute_modules] & (LAYERNORM | MOE_ACT)
    return np.asarray((rows.precision != PRECISIONS.index("fp8")) | (repeated == 0))


DELAYED_SCALES_KEPT = Rule(
    "recompute_fp8",
    "in fp8 with delayed scaling neither layernorm nor moe_act is recomputed",
    "Megatron-LM (megatron-core 0.19.2) transformer_config.py: recompute_modules",
    _keeps_scales,
    "modules {recompute_modules}",
    fails_with="Delayed scaling does not support moe_act and layernorm recompute for "
    "fp8.",
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
    plan_rules=(
        NO_ZERO_2_WITH_PIPELINE,
        ONLY_1F1B,
        MODULES_NAMED,
        DELAYED_SCALES_KEPT,
        OFFLOADS_OPTIMIZER,
        NO_DRIVES,
    ),
    offloads=(OPTIMIZER,),
    selective=Selective(modules=ALL_MODULES),
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
