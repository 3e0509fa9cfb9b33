"""PyTorch FSDP by itself, as accelerate runs it."""

from __future__ import annotations

from dataclasses import replace

from meshwright.frameworks.base.framework import FEW_GROUPS_OVERHEAD_GIB, Framework
from meshwright.frameworks.base.fully_shard import fully_shard_state
from meshwright.frameworks.base.recompute_scope import all_layers
from meshwright.frameworks.base.shared_rules import (
    FSDP_OFFLOADS_ALL,
    NO_CONTEXT_PARALLELISM,
    NO_DRIVES,
    NO_SEQUENCE_PARALLELISM,
    NO_ZERO_1,
    WHOLE_LAYERS_RECOMPUTED,
)
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import PARAMETERS

NO_TENSOR_PARALLELISM = Rule(
    "tensor_parallel_supported",
    "plain FSDP has no tensor parallelism",
    "PyTorch FSDP",
    lambda spec, rows: rows.tp == 1,
    "tp {tp}",
    is_inherited=True,
)

NO_PIPELINE = Rule(
    "pipeline_supported",
    "plain FSDP has no pipeline",
    "PyTorch FSDP",
    lambda spec, rows: rows.pp == 1,
    "pp {pp}",
    is_inherited=True,
)

CHECKPOINTS = "accelerate 1.15.0 utils/fsdp_utils.py: fsdp2_apply_ac"

NO_EXPERT_PARALLELISM = Rule(
    "expert_parallel_supported",
    "no expert parallelism",
    "PyTorch FSDP",
    lambda spec, rows: rows.ep == 1,
    "ep {ep}",
)

FRAMEWORK = Framework(
    title="PyTorch FSDP",
    mixed_state=fully_shard_state,
    degree_rules=(NO_TENSOR_PARALLELISM, NO_PIPELINE, NO_CONTEXT_PARALLELISM),
    plan_rules=(
        NO_ZERO_1,
        NO_SEQUENCE_PARALLELISM,
        NO_EXPERT_PARALLELISM,
        replace(WHOLE_LAYERS_RECOMPUTED, source=CHECKPOINTS),
        FSDP_OFFLOADS_ALL,
        NO_DRIVES,
    ),
    offloads=(PARAMETERS,),
    full_scope=all_layers(CHECKPOINTS),
    overhead_gib=FEW_GROUPS_OVERHEAD_GIB,
    has_cast_weights=True,
    # flash-attention trains fp32 parameters under autocast, one replica per GPU
    published_as=("fsdp", "flash-attention"),
)
