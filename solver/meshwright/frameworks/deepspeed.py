"""DeepSpeed; also used for Megatron-DeepSpeed and Colossal-AI, which are like it."""

from __future__ import annotations

import numpy as np

from meshwright.frameworks.base.framework import Framework, StateBytes
from meshwright.frameworks.base.shared_rules import (
    KV_HEADS_REPEATED,
    NO_CONTEXT_PARALLELISM,
    NO_HYBRID_SHARDING,
    NO_INTERLEAVING,
    NO_SEQUENCE_PARALLELISM,
    NO_ZERO_2_WITH_PIPELINE,
    OFFLOADS_WHAT_IS_SHARDED,
    ONLY_1F1B,
    has_no_drives,
    is_alone,
    keeps_or,
)
from meshwright.plans.columns import Bools
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import GRADIENTS, OPTIMIZER, PARAMETERS, Skeletons
from meshwright.spec.spec import Spec
from meshwright.spec.training import Training


def _has_stage_for_drives(spec: Spec, rows: Skeletons) -> Bools:
    has_zero_3 = (rows.zero == 3) | (is_alone(rows) & (rows.pp == 1))
    return keeps_or(rows, np.asarray(has_zero_3 | has_no_drives(spec)))


DRIVES_NEED_ZERO_3 = Rule(
    "drives_supported",
    "NVMe drives need ZeRO-3",
    "DeepSpeed docs, config-json: offload_optimizer, device nvme (Rajbhandari et "
    "al. 2021, ZeRO-Infinity)",
    _has_stage_for_drives,
    "offload {offload} to {spec.training.offload_to}, zero {zero}",
)


def _state(training: Training, moments: float) -> StateBytes:
    """Return the state of a parameter, with the temporaries of an update.

    In fp16, and from ZeRO-2 on, the update flattens the gradients of a rank, 2 bytes,
    and casts them to fp32, 4 bytes (runtime/zero/stage_1_and_2.py, `step`). In bf16 up
    to ZeRO-1, `BF16_Optimizer` adds gradients up in fp32 and does not shard the sums
    (runtime/bf16_optimizer.py, `fp32_groups_gradients_flat`).
    """
    default = "bf16" if training.precision == "fp16" else "fp32"
    main = 4 if (training.gradients or default) == "fp32" else 0
    return StateBytes(2, 2, 4 + moments, 2, 2, main_gradients=main, copied=6)


FRAMEWORK = Framework(
    title="DeepSpeed",
    mixed_state=_state,
    degree_rules=(KV_HEADS_REPEATED, NO_CONTEXT_PARALLELISM, NO_HYBRID_SHARDING),
    plan_rules=(
        NO_ZERO_2_WITH_PIPELINE,
        NO_SEQUENCE_PARALLELISM,
        ONLY_1F1B,
        NO_INTERLEAVING,
        OFFLOADS_WHAT_IS_SHARDED,
        DRIVES_NEED_ZERO_3,
    ),
    offloads=(OPTIMIZER, GRADIENTS, PARAMETERS),
    prefetched_params=5e7,  # `stage3_prefetch_bucket_size`
    keeps_stage_outputs=True,  # runtime/pipe/engine.py, `pipe_buffers['outputs']`
    keeps_fp8_copies=True,
    published_as=("megatron-deepspeed", "deepspeed", "colossalai"),
    counts_ends_as_layers=False,  # partition_method 'type:transformer'
)
