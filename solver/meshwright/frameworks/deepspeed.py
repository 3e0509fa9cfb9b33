"""DeepSpeed; also used for Megatron-DeepSpeed and Colossal-AI, which are like it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.frameworks.base.framework import (
    Framework,
    Lever,
    Partition,
    StateBytes,
    all_layers,
    larger_first,
)
from meshwright.frameworks.base.shared import (
    COMPILES,
    EIGHT_BIT_MOMENTS,
    FREEZES_ENDS,
    FROZEN_WEIGHTS,
    FUSES_ATTENTION,
    NO_HYBRID_SHARDING,
    NO_INTERLEAVING,
    NO_SEQUENCE_PARALLELISM,
    OFFLOADS_WHAT_IS_SHARDED,
    ONLY_1F1B,
    QUANTISES_FROZEN,
    SCORES_BEFORE,
    WHOLE_EXPERTS,
    WHOLE_LAYERS_RECOMPUTED,
    ZERO_NEEDS_NO_PIPELINE,
    has_no_drives,
    keeps_or,
    loss_parts,
)
from meshwright.plans.columns import Bools
from meshwright.plans.rule import Rule, Words
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.plan_fields import GRADIENTS, OPTIMIZER, PARAMETERS
from meshwright.spec.spec import Spec
from meshwright.spec.training import Training

VERSION = "deepspeed 0.19.8"
ULYSSES = f"{VERSION} runtime/sequence_parallel/ulysses_sp.py"
FOLDING = f"{VERSION} module_inject/auto_ep_folding.py: validate_folding_global"

UNEVEN = Words(
    f"{VERSION} module_inject/tp_shard.py: get_shard_size_list gives ranks unequal "
    "parts, not priced here"
)

RULE_WORDS = {
    "heads_divisible": UNEVEN,
    "mlp_divisible": UNEVEN,
    "shared_experts_divisible": UNEVEN,
    "batch_divisible": Words(
        f"{VERSION} runtime/config.py: _batch_assertion",
        "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * "
        "world_size",
    ),
    "recompute_segments_supported": Words(
        f"{VERSION} runtime/pipe/module.py: _is_checkpointable leaves alone a segment "
        "that the embedding or the head is in"
    ),
    "context_divisible": Words(
        f"{ULYSSES}: UlyssesSPDataLoaderAdapter",
        "batch's seqlen=… isn't divisible by sp-size=…",
    ),
}


def _has_whole_kv_heads(spec: Spec, rows: Skeletons) -> Bools:
    kv_heads = spec.model.n_kv_heads
    is_repeated = (rows.pp > 1) & (rows.tp % kv_heads == 0)
    return np.asarray((kv_heads % rows.tp == 0) | is_repeated)


def _splits_heads(spec: Spec, rows: Skeletons) -> Bools:
    heads, kv_heads = spec.model.n_heads, spec.model.n_kv_heads
    splits_kv = (kv_heads % rows.cp == 0) | (rows.cp % kv_heads == 0)
    return np.asarray((heads % rows.cp == 0) & splits_kv)


DEGREE_RULES: tuple[Rule, ...] = (
    Rule(
        "kv_heads_divisible",
        "tp divides the KV heads, or is a multiple of them beside a pipeline",
        f"{VERSION} module_inject/tp_shard.py: get_shard_size leaves ranks beyond the "
        "KV heads without attention, and gives others unequal parts, not priced here",
        _has_whole_kv_heads,
        "{spec.model.n_kv_heads} KV heads, tp {tp}, pp {pp}",
    ),
    Rule(
        "context_splits_heads",
        "cp, which is Ulysses, divides the query heads, and divides the KV heads or "
        "is a multiple of them",
        f"{ULYSSES}: UlyssesSPAttentionHF",
        _splits_heads,
        "{spec.model.n_heads} heads, {spec.model.n_kv_heads} KV heads, cp {cp}",
        fails_with="Attention head count … is not divisible by SP size …",
    ),
    Rule(
        "context_stands_alone",
        "cp, which is Ulysses, needs tp = pp = 1",
        f"{VERSION} runtime/pipe/topology.py: a grid of pipe, data and model; engine.py"
        ": _configure_tensor_parallel_states replaces the groups of Ulysses",
        lambda spec, rows: (rows.cp == 1) | (rows.tp * rows.pp == 1),
        "cp {cp}, tp {tp}, pp {pp}",
        is_inherited=True,
    ),
    replace(
        NO_HYBRID_SHARDING,
        source=f"{VERSION} runtime/engine.py: ZeRO shards over the whole "
        "data-parallel group",
    ),
)

PLAN_RULES = (
    replace(
        ZERO_NEEDS_NO_PIPELINE,
        source=f"{VERSION} runtime/pipe/engine.py: PipelineEngine.__init__",
        fails_with="ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
    ),
    replace(
        NO_SEQUENCE_PARALLELISM,
        source=f"{VERSION} module_inject/auto_tp.py: AutoTP sums whole activations",
    ),
    Rule(
        "expert_parallel_shards",
        "ZeRO-3 beside expert parallelism needs cp = 1",
        f"{VERSION} runtime/engine.py: _validate_zero3_moe_compatibility",
        lambda spec, rows: (rows.ep == 1) | (rows.zero < 3) | (rows.cp == 1),
        "zero {zero}, ep {ep}, cp {cp}",
        concerns=lambda spec: spec.model.moe is not None,
        fails_with="AutoEP with ZeRO Stage 3 does not support sequence parallelism yet "
        "(sequence_parallel_size=…).",
    ),
    replace(
        WHOLE_EXPERTS,
        source=f"{FOLDING} takes tp at ep > 1, pp = 1, without offload, where it "
        "gathers results over tp, which is not priced here",
    ),
    replace(
        ONLY_1F1B, source=f"{VERSION} runtime/pipe/schedule.py: TrainSchedule alone"
    ),
    replace(
        NO_INTERLEAVING,
        source=f"{VERSION} runtime/pipe/module.py: PipelineModule has a stage a rank",
    ),
    replace(
        WHOLE_LAYERS_RECOMPUTED,
        source=f"{VERSION} runtime/pipe/module.py: activation_checkpoint_interval",
    ),
    replace(
        OFFLOADS_WHAT_IS_SHARDED,
        source=f"{VERSION} runtime/engine.py: _configure_zero_optimizer reads "
        "offload_optimizer from stage 1 on, offload_param at 3; gradients follow the "
        "optimizer from 2 on",
        fails_with="CPUAdam param is on … and must be 'cpu', make sure you enabled "
        "'offload_optimizer'",
    ),
    Rule(
        "offload_fraction_supported",
        "a part of the optimizer is offloaded under ZeRO-3 alone",
        f"{VERSION} runtime/zero/config.py: offload_ratio_check",
        lambda spec, rows: keeps_or(rows, np.asarray(rows.zero == 3)),
        "zero {zero}, fraction {spec.training.offload_fraction}",
        concerns=lambda spec: spec.training.offload_fraction < 1,
        fails_with="Partial offloading only supported for ZeRO Stage 3.",
    ),
    Rule(
        "drives_supported",
        "NVMe drives need ZeRO-3",
        f"{VERSION} runtime/zero/stage_1_and_2.py knows the device cpu alone (see also "
        "Rajbhandari et al. 2021, ZeRO-Infinity)",
        lambda spec, rows: keeps_or(
            rows, np.asarray((rows.zero == 3) | has_no_drives(spec))
        ),
        "zero {zero}",
    ),
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


PARTITION = Partition(
    larger_first,
    "layers are split evenly, the first stages with one more",
    "deepspeed 0.19.8 runtime/pipe/module.py: _partition_layers by type; "
    "runtime/utils.py: partition_balanced",
)

LEVERS = (
    SCORES_BEFORE,
    Lever(
        "loss_chunks",
        loss_parts,
        "TiledFusedLogitsLoss(..., shards=N, ...) in place of head and loss",
        f"{ULYSSES}: TiledFusedLogitsLoss",
    ),
    FUSES_ATTENTION,
    replace(COMPILES, option="engine.compile()", source=f"{VERSION} runtime/engine.py"),
    Lever(
        "overlap.gradients",
        (True,),
        '"zero_optimization": {"overlap_comm": true}',
        f"{VERSION} runtime/zero/config.py: overlap_comm",
    ),
    Lever(
        "partition_activations",
        (True,),
        '"activation_checkpointing": {"partition_activations": true}',
        f"{VERSION} runtime/activation_checkpointing/checkpointing.py",
    ),
    Lever(
        "gradients",
        ("bf16",),
        '"data_types": {"grad_accum_dtype": "bf16"}',
        f"{VERSION} runtime/config.py: get_data_types_params",
        "rounding",
    ),
    replace(
        EIGHT_BIT_MOMENTS,
        option='bitsandbytes.optim.AdamW8bit, "zero_allow_untested_optimizer": true',
    ),
    FREEZES_ENDS,
    QUANTISES_FROZEN,
)

FRAMEWORK = Framework(
    title="DeepSpeed",
    kin="deepspeed",
    mixed_state=_state,
    levers=LEVERS,
    partitions_activations=True,  # activation_checkpointing/checkpointing.py
    on_host=frozenset({"full-cpu"}),  # `activation_checkpointing.cpu_checkpointing`
    matrix_optimizers=frozenset({"muon"}),  # runtime/zero/muon
    frozen_weights=FROZEN_WEIGHTS,  # with PEFT
    trained_ends=frozenset({"mixed"}),  # its optimizer has an fp32 copy
    degree_rules=(*DEGREE_RULES, PARTITION.rule),
    plan_rules=PLAN_RULES,
    rule_words=RULE_WORDS,
    context_exchanges=("ulysses",),
    offloads=(OPTIMIZER, GRADIENTS, PARAMETERS),
    partition=PARTITION,
    full_scope=all_layers(
        f"{VERSION} runtime/activation_checkpointing/checkpointing.py: checkpoint"
    ),
    has_reference=True,  # trl trainer/dpo_trainer.py
    asks_overlap=True,  # `overlap_comm`, but for ZeRO-3
    updated_params=1e9,  # runtime/zero/config.py: sub_group_size
    prefetched_params=5e7,  # `stage3_prefetch_bucket_size`
    keeps_stage_outputs=True,  # runtime/pipe/engine.py, `pipe_buffers['outputs']`
    keeps_fp8_copies=True,
    kernels="megatron",  # Megatron-DeepSpeed is Megatron-LM's model
    # Apex's norms, and Megatron-DeepSpeed's `scaled_masked_softmax_fusion` and
    # `bias_dropout_fusion`
    fused=frozenset({"norm", "softmax", "dropout"}),
    layer_dispatch=4.5,  # 0.9 ms, as Megatron-LM's
    whole_layer_dispatch=2.0,  # a model of Transformers
    hook_dispatch=0.8,  # runtime/zero/parameter_offload.py: _register_deepspeed_module
    bucket_params=5e8,  # runtime/zero/config.py: `reduce_bucket_size`
    programs=(
        *("accelerate", "axolotl", "lightning", "llama-factory"),
        *("megatron-deepspeed", "peft", "transformers", "trl"),
    ),
    published_as=("megatron-deepspeed", "deepspeed", "colossalai"),
    counts_ends_as_layers=False,  # partition_method 'type:transformer'
)
