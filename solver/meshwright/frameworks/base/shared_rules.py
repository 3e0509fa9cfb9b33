"""Rules that several frameworks share; each framework lists those that it has."""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Bools
from meshwright.plans.rule import Degrees, Rule, RuleOf
from meshwright.plans.skeletons import (
    KEEPS_ALL,
    ONE_F_ONE_B,
    OPTIMIZER,
    PARAMETERS,
    Skeletons,
)
from meshwright.spec.serving import Question
from meshwright.spec.spec import Spec

KV_HEADS_REPEATED = RuleOf[Question, Degrees](
    "kv_heads_divisible",
    "tp divides the KV heads, or is a multiple of them (they are repeated)",
    "Megatron-LM transformer_config.py: num_query_groups; vLLM models/llama.py: "
    "LlamaAttention",
    lambda spec, rows: (
        (spec.model.n_kv_heads % rows.tp == 0) | (rows.tp % spec.model.n_kv_heads == 0)
    ),
    "{spec.model.n_kv_heads} KV heads mod tp {tp} = {spec.model.n_kv_heads % tp}",
)

NO_CONTEXT_PARALLELISM = Rule(
    "context_parallel_supported",
    "no context parallelism",
    "PyTorch FSDP and DeepSpeed: Ulysses is a parallelism of its own",
    lambda spec, rows: rows.cp == 1,
    "cp {cp}",
    is_inherited=True,
)

NO_HYBRID_SHARDING = Rule(
    "hybrid_sharding_supported",
    "shards span all data-parallel ranks",
    "DeepSpeed: MiCS was removed in 0.18; ZeRO groups are the whole dp group",
    lambda spec, rows: (rows.dp_shard == 1) | (rows.dp_replicate == 1),
    "dp_replicate {dp_replicate}, dp_shard {dp_shard}",
)

NO_ZERO_1 = Rule(
    "zero_supported",
    "FSDP shards gradients with the optimizer: ZeRO 0, 2 or 3",
    "PyTorch fully_shard: reshard_after_forward false is 2, true is 3",
    lambda spec, rows: rows.zero != 1,
    "zero {zero}",
)

NO_ZERO_2_WITH_PIPELINE = Rule(
    "zero_with_pipeline",
    "ZeRO 2 and 3 need pp = 1",
    "DeepSpeed PipelineEngine: incompatible with ZeRO-2 and ZeRO-3; Megatron-LM "
    "arguments.py: Megatron-FSDP",
    lambda spec, rows: (rows.pp == 1) | (rows.zero <= 1),
    "zero {zero}, pp {pp}",
)

NO_SEQUENCE_PARALLELISM = Rule(
    "sequence_parallel_supported",
    "no sequence parallelism beside tensor parallelism",
    "DeepSpeed AutoTP",
    lambda spec, rows: ~rows.sequence_parallel,
    "tp {tp}, sequence_parallel {sequence_parallel}",
)

ONLY_1F1B = Rule(
    "schedule_supported",
    "the pipeline schedule is 1F1B",
    "Megatron-LM schedules.py; DeepSpeed pipe/schedule.py: TrainSchedule",
    lambda spec, rows: rows.schedule == ONE_F_ONE_B,
    "schedule {schedule}, pp {pp}",
)

NO_INTERLEAVING = Rule(
    "interleaving_supported",
    "no interleaved schedule",
    "DeepSpeed pipe/schedule.py",
    lambda spec, rows: rows.vpp == 1,
    "vpp {vpp}",
)


def is_alone(rows: Skeletons) -> Bools:
    """Return which rows have a single GPU to shard over: ZeRO stages do not differ."""
    return np.asarray(rows.dp * rows.cp == 1)


def keeps_or(rows: Skeletons, allowed: Bools | np.bool_) -> Bools:
    """Return which rows offload nothing, or are allowed to offload."""
    return np.asarray((rows.offload == KEEPS_ALL) | allowed)


def has_no_drives(spec: Spec) -> np.bool_:
    """Return whether offloaded state goes to host memory, not to drives."""
    return np.bool_(spec.training.offload_to == "cpu")


OFFLOADS_WHAT_IS_SHARDED = Rule(
    "offload_supported",
    "what is offloaded is sharded if it can be, and parameters need pp = 1",
    "DeepSpeed docs, config-json: offload_optimizer, offload_param; gradients are "
    "offloaded by ZeRO-2 (Ren et al. 2021, ZeRO-Offload, section 3)",
    lambda spec, rows: (
        (rows.offload <= rows.zero)
        | (is_alone(rows) & ((rows.offload <= OPTIMIZER) | (rows.pp == 1)))
    ),
    "offload {offload}, zero {zero}, pp {pp}",
)

FSDP_OFFLOADS_ALL = Rule(
    "offload_supported",
    "all of the state is offloaded or none, and it is sharded if it can be",
    "PyTorch fully_shard: CPUOffloadPolicy",
    lambda spec, rows: keeps_or(
        rows, (rows.offload == PARAMETERS) & ((rows.zero >= 2) | is_alone(rows))
    ),
    "offload {offload}, zero {zero}",
)

NO_DRIVES = Rule(
    "drives_supported",
    "nothing is offloaded to NVMe drives",
    "Megatron-LM, PyTorch fully_shard: host memory alone",
    lambda spec, rows: keeps_or(rows, has_no_drives(spec)),
    "offload {offload} to {spec.training.offload_to}",
)
