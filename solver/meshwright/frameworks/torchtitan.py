"""torchtitan; also used for MaxText and Paxml: XLA shards parameters the same way."""

from __future__ import annotations

from meshwright.frameworks.base.framework import FEW_GROUPS_OVERHEAD_GIB, Framework
from meshwright.frameworks.base.fully_shard import fully_shard_state
from meshwright.frameworks.base.shared_rules import (
    FSDP_OFFLOADS_ALL,
    NO_DRIVES,
    NO_ZERO_1,
)
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import PARAMETERS

WHOLE_KV_HEADS = Rule(
    "kv_heads_divisible",
    "tp divides the KV heads",
    "torchtitan: colwise sharding of wk and wv needs whole heads",
    lambda spec, rows: spec.model.n_kv_heads % rows.tp == 0,
    "{spec.model.n_kv_heads} KV heads mod tp {tp} = {spec.model.n_kv_heads % tp}",
)

ALWAYS_SEQUENCE_PARALLEL = Rule(
    "sequence_parallel_always",
    "tensor parallelism comes with sequence parallelism",
    "torchtitan parallelize.py: SequenceParallel norms",
    lambda spec, rows: rows.sequence_parallel | (rows.tp == 1),
    "tp {tp}, sequence_parallel {sequence_parallel}",
)

MICROBATCHES_FILL_PIPELINE = Rule(
    "microbatches_fill_pipeline",
    "there are as many micro-batches as stages",
    "PyTorch pipelining Schedule1F1B",
    lambda spec, rows: rows.microbatches >= rows.pp,
    "{microbatches} micro-batches for pp {pp}",
)

FRAMEWORK = Framework(
    title="torchtitan",
    mixed_state=fully_shard_state,
    degree_rules=(WHOLE_KV_HEADS,),
    plan_rules=(
        NO_ZERO_1,
        ALWAYS_SEQUENCE_PARALLEL,
        MICROBATCHES_FILL_PIPELINE,
        FSDP_OFFLOADS_ALL,
        NO_DRIVES,
    ),
    offloads=(PARAMETERS,),
    loss_bytes=10,  # as PyTorch's, less the logit itself, which is dropped before
    overhead_gib=FEW_GROUPS_OVERHEAD_GIB,
    has_cast_weights=True,
    # XLA shards fp32 parameters and gathers a bf16 copy of each layer, as FSDP does
    published_as=("torchtitan", "maxtext", "paxml"),
    sequence_parallel_since="",
)
