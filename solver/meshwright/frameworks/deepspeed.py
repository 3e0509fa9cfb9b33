"""DeepSpeed; also used for Megatron-DeepSpeed and Colossal-AI, which are like it."""

from __future__ import annotations

from meshwright.frameworks.base.framework import Framework, StateBytes
from meshwright.frameworks.base.partition import Partition, larger_first
from meshwright.frameworks.base.recompute_scope import all_layers
from meshwright.frameworks.base.small_state import FROZEN_WEIGHTS
from meshwright.frameworks.limits import deepspeed as limits
from meshwright.plans.skeletons import GRADIENTS, OPTIMIZER, PARAMETERS
from meshwright.spec.training import Training


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


PARTITION = Partition(
    larger_first,
    "layers are split evenly, the first stages with one more",
    "deepspeed 0.19.8 runtime/pipe/module.py: _partition_layers by type; "
    "runtime/utils.py: partition_balanced",
)

FRAMEWORK = Framework(
    title="DeepSpeed",
    mixed_state=_state,
    partitions_activations=True,  # activation_checkpointing/checkpointing.py
    has_muon=True,  # runtime/zero/muon
    frozen_weights=FROZEN_WEIGHTS,  # with PEFT
    degree_rules=(*limits.DEGREE_RULES, PARTITION.rule),
    plan_rules=limits.PLAN_RULES,
    own_words=limits.OWN_WORDS,
    context_exchanges=("ulysses",),
    offloads=(OPTIMIZER, GRADIENTS, PARAMETERS),
    partition=PARTITION,
    full_scope=all_layers(
        f"{limits.VERSION} runtime/activation_checkpointing/checkpointing.py: "
        "checkpoint"
    ),
    asks_overlap=True,  # `overlap_comm`, but for ZeRO-3
    prefetched_params=5e7,  # `stage3_prefetch_bucket_size`
    keeps_stage_outputs=True,  # runtime/pipe/engine.py, `pipe_buffers['outputs']`
    keeps_fp8_copies=True,
    kernels="megatron",  # Megatron-DeepSpeed is Megatron-LM's model
    # Apex's norms, and Megatron-DeepSpeed's `scaled_masked_softmax_fusion` and
    # `bias_dropout_fusion`
    fused=frozenset({"norm", "softmax", "dropout"}),
    layer_dispatch=4.5,  # 0.9 ms, as Megatron-LM's
    published_as=("megatron-deepspeed", "deepspeed", "colossalai"),
    counts_ends_as_layers=False,  # partition_method 'type:transformer'
)
