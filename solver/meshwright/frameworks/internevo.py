"""InternEvo, with HybridZero."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.frameworks.base.framework import (
    Framework,
    Lever,
    Partition,
    StateBytes,
    larger_last,
    one_number,
)
from meshwright.frameworks.base.shared import (
    NO_CONTEXT_PARALLELISM,
    NO_OFFLOAD,
    ONLY_1F1B,
    WHOLE_EXPERTS,
    WHOLE_KV_HEADS,
    WHOLE_LAYERS_RECOMPUTED,
    ZERO_NEEDS_NO_PIPELINE,
)
from meshwright.plans.columns import Bools
from meshwright.plans.rule import Rule, Words
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.spec import Spec
from meshwright.spec.training import Training

VERSION = "InternEvo c628a8c"
LAUNCH = f"{VERSION} initialize/launch.py: args_sanity_check"
CONTEXT = f"{VERSION} core/context/parallel_context.py: init_parallel_groups"

RULE_WORDS = {
    "mlp_divisible": Words(
        f"{VERSION} model/ops/linear.py", "out_features (…) must be divisible by …"
    )
}


def _shards_all_experts(spec: Spec, rows: Skeletons) -> Bools:
    has_shards = (rows.zero == 1) & (rows.dp_replicate == 1)
    return np.asarray(has_shards | (rows.dp == 1))


def _spreads_experts(spec: Spec, rows: Skeletons) -> Bools:
    experts = spec.model.moe.n_experts if spec.model.moe else 1
    return np.asarray(rows.ep == np.minimum(rows.dp, experts))


DEGREE_RULES = (
    replace(
        WHOLE_KV_HEADS,
        source=f"{VERSION} model/modeling_internlm2.py: wk and wv are split by columns",
    ),
    replace(
        NO_CONTEXT_PARALLELISM,
        source=f"{VERSION} core/context/process_group_initializer.py: the sequence is "
        "split over the tensor group alone",
    ),
)

PLAN_RULES = (
    Rule(
        "zero_supported",
        "ZeRO is 0 or 1, or 3, which is PyTorch's FSDP",
        LAUNCH + "; train/pipeline.py: wrap_FSDP_model has FULL_SHARD alone",
        lambda spec, rows: rows.zero != 2,
        "zero {zero}",
    ),
    replace(
        ZERO_NEEDS_NO_PIPELINE,
        source=LAUNCH,
        fails_with="FSDP is not supportted when pipeline size > 1, please set pipeline "
        "size to 1 or disabled FSDP",
    ),
    Rule(
        "expert_shards_state",
        "experts need ZeRO-1 over all data-parallel ranks",
        LAUNCH,
        _shards_all_experts,
        "zero {zero}, dp_replicate {dp_replicate}",
        concerns=lambda spec: spec.model.moe is not None,
        fails_with="moe only support zero1, set zero1=dict(size=-1,...) can fix this",
    ),
    Rule(
        "expert_parallel_fixed",
        "ep is dp, but no more than the experts",
        CONTEXT,
        _spreads_experts,
        "ep {ep}, dp_shard {dp_shard}, dp_replicate {dp_replicate}",
        concerns=lambda spec: spec.model.moe is not None,
        fails_with="can not place the experts evenly",
    ),
    replace(
        WHOLE_EXPERTS,
        source=f"{VERSION} model/modules/mlp.py: experts are split over the tensor "
        "group, which is not priced here",
    ),
    replace(
        ONLY_1F1B, source=f"{VERSION} core/scheduler/pipeline_scheduler.py has no other"
    ),
    Rule(
        "interleaving_rounds",
        "under interleaving pp divides the micro-batches",
        f"{VERSION} core/scheduler/pipeline_scheduler.py: InterleavedPipelineScheduler",
        lambda spec, rows: (rows.vpp == 1) | (rows.microbatches % rows.pp == 0),
        "vpp {vpp}, {microbatches} micro-batches mod pp {pp} = {microbatches % pp}",
        fails_with="num_microbatches: … must be an integer multiple of pipeline "
        "parallel world size",
    ),
    replace(
        WHOLE_LAYERS_RECOMPUTED,
        source=f"{VERSION} initialize/launch.py: model.checkpoint is a share of the "
        "layers",
    ),
    replace(
        NO_OFFLOAD,
        source=f"{VERSION} solver/optimizer/hybrid_zero_optim.py has no such setting",
    ),
)


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
    kin="megatron",
    mixed_state=_state,
    levers=(
        Lever(
            "overlap.parameters",
            (True,),
            "hybrid_zero_optimizer = dict(overlap_sync_param=True)",
            f"{VERSION} solver/optimizer/hybrid_zero_optim.py: overlap_sync_param",
        ),
    ),
    degree_rules=(*DEGREE_RULES, PARTITION.rule),
    plan_rules=PLAN_RULES,
    rule_words=RULE_WORDS,
    partition=PARTITION,
    full_scope=one_number(f"{VERSION} model/modeling_llama.py: checkpoint_layer_num"),
    fused=frozenset({"norm", "rope", "loss"}),  # Apex's and flash-attn's
    overlap=frozenset({"gradients"}),  # all its configs: overlap_sync_param=False
    keeps_fp8_copies=True,
    # solver/optimizer/hybrid_zero_optim.py: `_partition_param_list`; `_reduce_and_copy`
    # has no `reduce_rank`, and `broadcast_params` goes through the ranks
    deals_tensors=True,
    layer_dispatch=2.0,  # modules with hooks
    published_as=("internevo",),
)
