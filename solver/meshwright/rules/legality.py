"""The rules that say which skeletons exist, as data: name, sentence, source, test.

Degree rules look at the degrees alone and are applied before anything else is
enumerated; plan rules look at the whole skeleton. Pins are rules too.
"""

from __future__ import annotations

import numpy as np

from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import NONE, ONE_F_ONE_B, ZERO_BUBBLE_H1
from meshwright.rules.offload import OFFLOAD_RULES
from meshwright.rules.parts import part_degree_rules, part_mesh_rules
from meshwright.rules.pins import degree_pins, mesh_pins, plan_pins
from meshwright.rules.shared import (
    HEADS_DIVISIBLE,
    KV_HEADS_REPEATED,
    LAYERS_COVER_STAGES,
    tp_link,
)
from meshwright.spec.spec import Framework, Spec
from meshwright.topology.fabric import Meshes
from meshwright.topology.groups import TP


def degree_rules(spec: Spec) -> list[Rule]:
    """Return the rules on degrees that apply to a spec, pins last."""
    return [*framework_degree_rules(spec), *degree_pins(spec)]


def framework_degree_rules(spec: Spec) -> list[Rule]:
    """Return the rules on degrees without pins."""
    return [*_applying(DEGREE_RULES, spec), *part_degree_rules(spec)]


def plan_rules(spec: Spec) -> list[Rule]:
    """Return the rules on whole skeletons that apply to a spec, pins last."""
    return [*framework_rules(spec), *plan_pins(spec)]


def framework_rules(spec: Spec) -> list[Rule]:
    """Return the rules on whole skeletons without pins."""
    return _applying((*PLAN_RULES, *OFFLOAD_RULES), spec)


def mesh_rules(spec: Spec, meshes: Meshes) -> list[Rule]:
    """Return the rules on where axes lie; rows point into `meshes`."""
    limits = [TP_LINK] if spec.limits.tp_min_link_gb_s is not None else []
    return [*limits, *part_mesh_rules(spec, meshes), *mesh_pins(spec.pins, meshes)]


def rules_of(framework: Framework | None) -> list[Rule]:
    """Return the rules of one framework, or of all."""
    every = (*DEGREE_RULES, *PLAN_RULES, *OFFLOAD_RULES)
    return [own for own in every if framework is None or framework in own.frameworks]


def _applying(rules: tuple[Rule, ...], spec: Spec) -> list[Rule]:
    own = (rule for rule in rules if spec.framework in rule.frameworks)
    return [rule for rule in own if rule.concerns(spec)]


def _shared_width(spec: Spec) -> int:
    """Return the inner width of the experts that see every token; 0 without."""
    return spec.model.moe.shared_d_ff if spec.model.moe else 0


DEGREE_RULES = (
    HEADS_DIVISIBLE,
    KV_HEADS_REPEATED,
    Rule(
        "kv_heads_divisible",
        "tp divides the KV heads",
        "torchtitan: colwise sharding of wk and wv needs whole heads",
        lambda spec, rows: spec.model.n_kv_heads % rows.tp == 0,
        "{spec.model.n_kv_heads} KV heads, tp {tp}",
        ("torchtitan",),
    ),
    Rule(
        "mlp_divisible",
        "tp divides the inner width of the MLP",
        "Megatron-LM: column-parallel linear layers divide evenly",
        lambda spec, rows: spec.model.d_ff % rows.tp == 0,
        "d_ff {spec.model.d_ff}, tp {tp}",
        is_inherited=True,
    ),
    Rule(
        "shared_experts_divisible",
        "tp divides the inner width of the shared experts",
        "Megatron-LM moe/shared_experts.py: SharedExpertMLP is split as an MLP is",
        lambda spec, rows: _shared_width(spec) % rows.tp == 0,
        "shared_d_ff {spec.model.moe.shared_d_ff}, tp {tp}",
        is_inherited=True,
        concerns=lambda spec: _shared_width(spec) > 0,
    ),
    LAYERS_COVER_STAGES,
    Rule(
        "batch_divisible",
        "dp divides the global batch",
        "Megatron-LM num_microbatches_calculator.py",
        lambda spec, rows: spec.training.global_batch % rows.dp == 0,
        "global_batch {spec.training.global_batch}, dp {dp}",
        is_inherited=True,
    ),
    Rule(
        "tensor_parallel_supported",
        "plain FSDP has no tensor parallelism",
        "PyTorch FSDP",
        lambda spec, rows: rows.tp == 1,
        "tp {tp}",
        ("fsdp",),
        is_inherited=True,
    ),
    Rule(
        "pipeline_supported",
        "plain FSDP has no pipeline",
        "PyTorch FSDP",
        lambda spec, rows: rows.pp == 1,
        "pp {pp}",
        ("fsdp",),
        is_inherited=True,
    ),
    Rule(
        "context_parallel_supported",
        "no context parallelism",
        "PyTorch FSDP and DeepSpeed: Ulysses is a parallelism of its own",
        lambda spec, rows: rows.cp == 1,
        "cp {cp}",
        ("deepspeed", "internevo", "fsdp"),
        is_inherited=True,
    ),
    Rule(
        "context_divisible",
        "context parallelism needs fused attention, and 2 x cp divides the sequence",
        "Megatron-LM context parallelism: two chunks a rank balance the causal mask",
        lambda spec, rows: (
            (rows.cp == 1)
            | (
                (spec.training.seq_len % (2 * rows.cp) == 0)
                & np.bool_(spec.training.attention == "flash")
            )
        ),
        "seq_len {spec.training.seq_len}, cp {cp}",
        is_inherited=True,
    ),
    Rule(
        "hybrid_sharding_supported",
        "shards span all data-parallel ranks",
        "DeepSpeed: MiCS was removed in 0.18; ZeRO groups are the whole dp group",
        lambda spec, rows: (rows.dp_shard == 1) | (rows.dp_replicate == 1),
        "dp_replicate {dp_replicate}, dp_shard {dp_shard}",
        ("deepspeed", "internevo"),
    ),
)

PLAN_RULES = (
    Rule(
        "zero_supported",
        "FSDP shards gradients with the optimizer: ZeRO 0, 2 or 3",
        "PyTorch fully_shard: reshard_after_forward false is 2, true is 3",
        lambda spec, rows: rows.zero != 1,
        "zero {zero}",
        ("torchtitan", "fsdp"),
    ),
    Rule(
        "zero_with_pipeline",
        "ZeRO 2 and 3 need pp = 1",
        "DeepSpeed PipelineEngine: incompatible with ZeRO-2 and ZeRO-3; Megatron-LM "
        "arguments.py: Megatron-FSDP",
        lambda spec, rows: (rows.pp == 1) | (rows.zero <= 1),
        "zero {zero}, pp {pp}",
        ("megatron", "deepspeed", "internevo"),
    ),
    Rule(
        "sequence_parallel_supported",
        "no sequence parallelism beside tensor parallelism",
        "DeepSpeed AutoTP",
        lambda spec, rows: ~rows.sequence_parallel,
        "tp {tp}",
        ("deepspeed", "internevo", "fsdp"),
    ),
    Rule(
        "sequence_parallel_always",
        "tensor parallelism comes with sequence parallelism",
        "torchtitan parallelize.py: SequenceParallel norms",
        lambda spec, rows: rows.sequence_parallel | (rows.tp == 1),
        "tp {tp}",
        ("torchtitan",),
    ),
    Rule(
        "sequence_divisible",
        "under sequence parallelism tp x cp divides the sequence",
        "Megatron-LM arguments.py",
        lambda spec, rows: (
            ~rows.sequence_parallel | (spec.training.seq_len % (rows.tp * rows.cp) == 0)
        ),
        "seq_len {spec.training.seq_len}, tp {tp}, cp {cp}",
    ),
    Rule(
        "expert_sequence_parallel",
        "experts beside tensor parallelism need sequence parallelism",
        "Megatron-LM arguments.py: MoE with tensor parallelism",
        lambda spec, rows: rows.sequence_parallel | (rows.tp == 1),
        "tp {tp}",
        concerns=lambda spec: spec.model.moe is not None,
    ),
    Rule(
        "expert_parallel_supported",
        "no expert parallelism",
        "PyTorch FSDP",
        lambda spec, rows: rows.ep == 1,
        "ep {ep}",
        ("fsdp",),
    ),
    Rule(
        "schedule_supported",
        "the pipeline schedule is 1F1B",
        "Megatron-LM schedules.py; DeepSpeed pipe/schedule.py: TrainSchedule",
        lambda spec, rows: rows.schedule == ONE_F_ONE_B,
        "pp {pp}",
        ("megatron", "deepspeed", "internevo"),
    ),
    Rule(
        "zero_bubble_recompute",
        "a zero-bubble schedule recomputes nothing",
        "Qi et al. 2023: what a layer saves waits for its gradients of weights",
        lambda spec, rows: (rows.schedule != ZERO_BUBBLE_H1) | (rows.recompute == NONE),
        "pp {pp}",
    ),
    Rule(
        "interleaving_supported",
        "no interleaved schedule",
        "DeepSpeed pipe/schedule.py",
        lambda spec, rows: rows.vpp == 1,
        "vpp {vpp}",
        ("deepspeed", "internevo"),
    ),
    Rule(
        "interleaving_divisible",
        "under interleaving pp divides the micro-batches, and chunks hold what leads",
        "Megatron-LM schedules.py: forward_backward_pipelining_with_interleaving",
        lambda spec, rows: (
            (rows.vpp == 1)
            | (
                (rows.microbatches % rows.pp == 0)
                & (
                    spec.model.n_layers // (rows.pp * rows.vpp)
                    >= spec.model.first_dense_layers
                )
            )
        ),
        "{microbatches} micro-batches, pp {pp}, vpp {vpp}",
    ),
    Rule(
        "microbatches_fill_pipeline",
        "there are as many micro-batches as stages",
        "PyTorch pipelining Schedule1F1B",
        lambda spec, rows: rows.microbatches >= rows.pp,
        "{microbatches} micro-batches, pp {pp}",
        ("torchtitan",),
    ),
)


TP_LINK: Rule = tp_link(lambda rows: rows.paths.s_per_byte[:, TP])
