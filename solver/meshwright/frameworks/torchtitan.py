"""torchtitan; also used for MaxText and Paxml: XLA shards parameters the same way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.frameworks.base.framework import (
    FEW_GROUPS_OVERHEAD_GIB,
    Framework,
    Lever,
    LossPeak,
    Selective,
    all_layers,
)
from meshwright.frameworks.base.shared import (
    BALANCED_CONTEXT,
    COMPILES,
    CONTEXT_SHARDS,
    FSDP_OFFLOADS_ALL,
    NO_DRIVES,
    NO_MODULES_NAMED,
    NO_ZERO_1,
    PURE_BF16,
    WHOLE_KV_HEADS,
    fully_shard_state,
    loss_parts,
)
from meshwright.plans.columns import Bools, Ints
from meshwright.plans.rule import Rule, Words
from meshwright.plans.skeletons import PER_OP, Skeletons
from meshwright.spec.plan_fields import (
    DUALPIPE_V,
    ONE_F_ONE_B,
    PARAMETERS,
    ZERO_BUBBLE_H1,
)
from meshwright.spec.spec import Spec

VERSION = "torchtitan 0.3.0"
SCHEDULES = "torch 2.13 distributed/pipelining/schedules.py"
MESH = f"{VERSION} distributed/parallel_dims.py: build_mesh"

RULE_WORDS = {
    "heads_divisible": Words(
        f"{VERSION} models/common/decoder.py: update_from_config",
        "tensor_parallel_degree (…) must divide n_heads (…).",
    ),
    "mlp_divisible": Words(
        "torch 2.13 distributed/tensor/placement_types.py: Shard gives ranks unequal "
        "columns, with which a trainer is built, not priced here"
    ),
    "zero_bubble_recompute": Words(
        f"{SCHEDULES}: InterleavedZeroBubble is built beside checkpoints; what waits "
        "for gradients of weights then is not priced here"
    ),
    "batch_divisible": Words(
        f"{VERSION} trainer.py: Trainer.__init__",
        "global batch size must be multiple of local batch size times data-parallel "
        "degree (…)",
    ),
    "sequence_divisible": Words(
        f"{VERSION} trainer.py: Trainer.__init__",
        "Training sequence length (…) must be divisible by … for the configured "
        "sequence/context parallelism.",
    ),
}


def _expert_room(rows: Skeletons) -> Ints:
    """Return the ranks out of which expert-parallel groups are made."""
    return rows.dp_shard * rows.cp * rows.tp


def _sequence_has_chunks(spec: Spec, rows: Skeletons) -> Bools:
    chunks = rows.tp * np.where(rows.cp > 1, 2 * rows.cp, 1)
    return np.asarray(~rows.sequence_parallel | (spec.training.seq_len % chunks == 0))


def _has_whole_rounds(rows: Skeletons) -> Bools:
    rounds = np.maximum(rows.microbatches // rows.pp, 1)
    return np.asarray(rows.microbatches % rounds == 0)


DEGREE_RULES = (
    replace(
        WHOLE_KV_HEADS,
        source=f"{VERSION} models/common/decoder.py: update_from_config",
        fails_with="tensor_parallel_degree (…) must divide n_kv_heads (…).",
    ),
    Rule(
        "tied_embeddings_supported",
        "tied embeddings need pp = 1",
        f"{VERSION} models/common/decoder.py: update_from_config",
        lambda spec, rows: rows.pp == 1,
        "pp {pp}",
        is_inherited=True,
        concerns=lambda spec: spec.model.tied_embeddings,
        fails_with="Weight tying is not supported with Pipeline Parallel.",
    ),
    replace(
        BALANCED_CONTEXT,
        source=f"{VERSION} trainer.py: Trainer.__init__",
        fails_with=RULE_WORDS["sequence_divisible"].fails_with,
    ),
)

PLAN_RULES = (
    replace(
        NO_ZERO_1,
        source=f"{VERSION} distributed/fsdp.py: get_fsdp_reshard_after_forward_policy; "
        "reshard_after_forward never is 2, always is 3",
    ),
    replace(
        CONTEXT_SHARDS,
        source=f"{VERSION} distributed/full_dtensor.py: resolve_fsdp_mesh shards over "
        "dp_shard x cp whatever is asked",
    ),
    Rule(
        "sequence_chunks",
        "under sequence parallelism tp x 2 cp divides the sequence",
        f"{VERSION} trainer.py: Trainer.__init__",
        _sequence_has_chunks,
        "seq_len {spec.training.seq_len}, tp {tp}, cp {cp}",
        fails_with=RULE_WORDS["sequence_divisible"].fails_with,
    ),
    Rule(
        "expert_parallel_folds",
        "ep divides dp_shard x cp x tp",
        MESH,
        lambda spec, rows: _expert_room(rows) % rows.ep == 0,
        "ep {ep}, dp_shard {dp_shard}, cp {cp}, tp {tp}",
        concerns=lambda spec: spec.model.moe is not None,
    ),
    Rule(
        "expert_shards_state",
        "without ZeRO dp_shard x cp x tp / ep is 1, since experts are sharded over it",
        f"{MESH}; distributed/fsdp.py: apply_fsdp_to_decoder shards experts over efsdp",
        lambda spec, rows: (
            (rows.zero >= 2) | (rows.ep == 1) | (_expert_room(rows) == rows.ep)
        ),
        "zero {zero}, ep {ep}, dp_shard {dp_shard}, cp {cp}, tp {tp}",
        concerns=lambda spec: spec.model.moe is not None,
    ),
    Rule(
        "expert_tensor_parallel",
        "experts beside tensor parallelism need ep above 1 and sequence parallelism",
        f"{VERSION} models/common/moe_sharding.py: set_moe_sharding_config splits each "
        "expert over tp at ep 1, and tokens at sequence parallelism off, unpriced here",
        lambda spec, rows: (rows.tp == 1) | ((rows.ep > 1) & rows.sequence_parallel),
        "tp {tp}, ep {ep}",
        concerns=lambda spec: spec.model.moe is not None,
    ),
    Rule(
        "microbatches_fill_pipeline",
        "under 1F1B there are as many micro-batches as stages",
        f"{SCHEDULES}: Schedule1F1B",
        lambda spec, rows: (
            (rows.schedule != ONE_F_ONE_B)
            | (rows.vpp > 1)
            | (rows.microbatches >= rows.pp)
        ),
        "{microbatches} micro-batches, pp {pp}",
        fails_with="Number of microbatches (…) must be greater than or equal to the "
        "number of stages (…).",
    ),
    Rule(
        "interleaving_rounds",
        "under interleaving every round of about pp has the same number of "
        "micro-batches",
        f"{SCHEDULES}: ScheduleInterleaved1F1B",
        lambda spec, rows: (
            (rows.vpp == 1) | (rows.schedule != ONE_F_ONE_B) | _has_whole_rounds(rows)
        ),
        "vpp {vpp}, {microbatches} micro-batches, pp {pp}",
        fails_with="Interleaved 1F1B requires the number of microbatches to be a "
        "multiple of the number of rounds (…), but got ….",
    ),
    Rule(
        "zero_bubble_rounds",
        "a zero-bubble schedule has the same number of micro-batches in each round of "
        "about pp",
        f"{SCHEDULES}: ScheduleInterleavedZeroBubble, with one stage on each rank",
        lambda spec, rows: (rows.schedule != ZERO_BUBBLE_H1) | _has_whole_rounds(rows),
        "{microbatches} micro-batches, pp {pp}",
        fails_with="Zero bubble requires the number of microbatches to be a multiple "
        "of the number of rounds (…), but got ….",
    ),
    Rule(
        "dualpipe_v_batches",
        "DualPipeV has at least 2 pp micro-batches",
        f"{SCHEDULES}: ScheduleDualPipeV",
        lambda spec, rows: (
            (rows.schedule != DUALPIPE_V) | (rows.microbatches >= 2 * rows.pp)
        ),
        "{microbatches} micro-batches, pp {pp}",
        fails_with="DualPipeV requires at least as many microbatches as stages, but "
        "got ….",
    ),
    replace(
        NO_MODULES_NAMED,
        source=f"{VERSION} distributed/activation_checkpoint.py: SelectiveAC goes by "
        "operations",
    ),
    replace(
        FSDP_OFFLOADS_ALL,
        source=f"{VERSION} distributed/fsdp.py: enable_cpu_offload, CPUOffloadPolicy; "
        "of replicas that share nothing it is not priced here",
    ),
    replace(NO_DRIVES, source=f"{VERSION} config/configs.py: enable_cpu_offload alone"),
)

WRAPS_EVERY_BLOCK = all_layers(
    f"{VERSION} distributed/activation_checkpoint.py: apply wraps every block"
)

LEVERS = (
    Lever(
        "loss_chunks",
        loss_parts,
        "ChunkedLossWrapper.Config(num_chunks=N)",
        f"{VERSION} components/loss.py: ChunkedLossWrapper",
    ),
    replace(
        COMPILES,
        option="CompileConfig(enable=True)",
        source=f"{VERSION} config/configs.py: CompileConfig",
    ),
    Lever(
        "overlap.tp",
        (True,),
        "CompileConfig(enable_async_tensor_parallel=True)",
        f"{VERSION} distributed/tensor_parallel.py: maybe_enable_async_tp",
        beside="compile",
    ),
    Lever(
        "cuda_graphs",
        (True,),
        "TrainingConfig(disable_cuda_graphs=False)",
        f"{VERSION} trainer.py: _validate_cuda_graphs",
    ),
    Lever(
        "master_weights",
        ("none",),
        "TrainingConfig(dtype='bfloat16')",
        f"{VERSION} config/configs.py: TrainingConfig.dtype",
        "optimizer",
    ),
)

FRAMEWORK = Framework(
    title="torchtitan",
    kin="fsdp",
    mixed_state=fully_shard_state,
    levers=LEVERS,
    state_options=frozenset({PURE_BF16}),  # `training.dtype`
    degree_rules=DEGREE_RULES,
    plan_rules=PLAN_RULES,
    rule_words=RULE_WORDS,
    context_exchanges=("gather",),
    offloads=(PARAMETERS,),
    selective=Selective(unnamed=PER_OP),
    has_uneven_chunks=True,  # `module_fqns_per_model_part`
    makes_v=True,  # `ZBVZeroBubble`, `DualPipeV`
    selective_scope=WRAPS_EVERY_BLOCK,
    stops_recompute="compiled",
    full_scope=WRAPS_EVERY_BLOCK,
    # as PyTorch's, less the logit itself, which is dropped before; or its logarithms, a
    # gradient of zeros, the exponentials and their sum, all in fp32 (torch 2.13
    # distributed/tensor/parallel/loss.py)
    loss=LossPeak(whole=10, parallel=14),
    # The gradient in 16 bits and numbers of whole rows, since bbb1b61 of 2 April 2025
    # (pull request 1033, components/loss.py); or a gradient of zeros, which no kernel
    # shares with another since it is written by index, and its sum with the
    # exponentials, both in fp32: what torch 2.13's Inductor allocates for both
    compiled_loss=LossPeak(whole=2, parallel=8),
    loss_chunks=8,  # components/loss.py, `ChunkedLossWrapper`
    shards_gradients_after_pipeline=True,
    has_plain_norm=True,
    # models/common/attention.py: `FlexAttention`, `wrap_inductor_compiled_regions`
    has_compiled_attention=True,
    # models/common/moe.py: `GroupedExperts`; token_dispatcher.py: `combine`
    has_torch_experts=True,
    # Uncompiled (models/gpt_oss/moe.py): `GptOssGroupedExperts` takes a row of biases
    # for each result and adds it, 2 bytes and 6 forward, 2 backward, of three times the
    # width of a token; `swiglu` moves 130 bytes, an activation without limits 30
    expert_bias_passes=3 * (8 + 2) / 2 / 3,
    expert_limit_passes=(130 - 30) / 2 / 3,
    expert_limit_saved=3,  # gate and value as limited, the sigmoid
    overhead_gib=FEW_GROUPS_OVERHEAD_GIB,
    has_cast_weights=True,
    kernels="fsdp",  # PyTorch's, as plain FSDP runs
    # XLA shards fp32 parameters and gathers a bf16 copy of each layer, as FSDP does
    has_cuda_graphs=True,  # `training.disable_cuda_graphs` is false
    layer_dispatch=2.0,  # hooks before and after each layer
    programs=("automodel", "primus"),
    published_as=("torchtitan", "maxtext", "paxml"),
    sequence_parallel_since="",
)
