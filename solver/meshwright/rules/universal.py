"""The rules that every plan keeps, under any framework.

Degree rules depend only on the degrees, and are applied before anything else is
enumerated; plan rules depend on the whole skeleton.
"""

from __future__ import annotations

import numpy as np

from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import KEEPS_ALL, NONE, ZERO_BUBBLE_H1
from meshwright.rules.shared import HEADS_DIVISIBLE, LAYERS_COVER_STAGES
from meshwright.spec.spec import Spec


def _shared_width(spec: Spec) -> int:
    """Return the inner width of the shared experts; 0 without any."""
    return spec.model.moe.shared_d_ff if spec.model.moe else 0


DEGREE_RULES: tuple[Rule, ...] = (
    HEADS_DIVISIBLE,
    Rule(
        "mlp_divisible",
        "tp divides the inner width of the MLP",
        "Megatron-LM: column-parallel linear layers divide evenly",
        lambda spec, rows: spec.model.d_ff % rows.tp == 0,
        "d_ff {spec.model.d_ff} mod tp {tp} = {spec.model.d_ff % tp}",
        is_inherited=True,
    ),
    Rule(
        "shared_experts_divisible",
        "tp divides the inner width of the shared experts",
        "Megatron-LM moe/shared_experts.py: SharedExpertMLP is split as an MLP is",
        lambda spec, rows: _shared_width(spec) % rows.tp == 0,
        "shared_d_ff {spec.model.moe.shared_d_ff} mod tp {tp} = "
        "{spec.model.moe.shared_d_ff % tp}",
        is_inherited=True,
        concerns=lambda spec: _shared_width(spec) > 0,
    ),
    LAYERS_COVER_STAGES,
    Rule(
        "batch_divisible",
        "dp divides the global batch",
        "Megatron-LM num_microbatches_calculator.py",
        lambda spec, rows: spec.training.global_batch % rows.dp == 0,
        "{spec.training.global_batch} sequences mod dp {dp} = "
        "{spec.training.global_batch % dp}",
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
        "{spec.training.attention} attention, seq_len {spec.training.seq_len} mod "
        "(2 x cp {cp}) = {spec.training.seq_len % (2 * cp)}",
        is_inherited=True,
    ),
)

PLAN_RULES: tuple[Rule, ...] = (
    Rule(
        "sequence_divisible",
        "under sequence parallelism tp x cp divides the sequence",
        "Megatron-LM arguments.py",
        lambda spec, rows: (
            ~rows.sequence_parallel | (spec.training.seq_len % (rows.tp * rows.cp) == 0)
        ),
        "seq_len {spec.training.seq_len} mod (tp {tp} x cp {cp}) = "
        "{spec.training.seq_len % (tp * cp)}",
    ),
    Rule(
        "expert_sequence_parallel",
        "experts beside tensor parallelism need sequence parallelism",
        "Megatron-LM arguments.py: MoE with tensor parallelism",
        lambda spec, rows: rows.sequence_parallel | (rows.tp == 1),
        "tp {tp}, sequence_parallel {sequence_parallel}",
        concerns=lambda spec: spec.model.moe is not None,
    ),
    Rule(
        "zero_bubble_recompute",
        "a zero-bubble schedule recomputes nothing",
        "Qi et al. 2023: what a layer saves waits for its gradients of weights",
        lambda spec, rows: (rows.schedule != ZERO_BUBBLE_H1) | (rows.recompute == NONE),
        "schedule {schedule}, recompute {recompute}",
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
        "vpp {vpp}, {microbatches} micro-batches mod pp {pp} = {microbatches % pp}",
    ),
    Rule(
        "offload_supported",
        "offload needs the machine around the GPUs: cluster.topology.host",
        "the spec",
        lambda spec, rows: (
            (rows.offload == KEEPS_ALL)
            | np.bool_(spec.cluster.topology.host is not None)
        ),
        "offload {offload}",
    ),
)
