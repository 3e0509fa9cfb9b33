"""What Megatron-LM launches (megatron-core 0.19.2).

Megatron-FSDP stands beside pipelines and chunks: the parser refuses them for PyTorch's
FSDP2 alone. Its groups are those of its default order of ranks, tp-cp-ep-dp-pp, which
is also the order in which this program counts them, so that any mesh is a matter of
which GPU a rank gets. Under `--use-tp-pp-dp-mapping` the same groups would only have
other numbers, and expert parallelism fewer degrees (parallel_state.py,
`initialize_model_parallel`), so that no plan needs it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.frameworks.base.selective import named_sets
from meshwright.frameworks.base.shared_rules import (
    BALANCED_CONTEXT,
    KV_HEADS_REPEATED,
    NO_DRIVES,
    ONLY_1F1B,
    keeps_or,
)
from meshwright.frameworks.base.small_state import special_state
from meshwright.plans.columns import Bools
from meshwright.plans.recomputation import LAYERNORM, MOE, MOE_ACT, SET_BITS
from meshwright.plans.rule import Rule, Words
from meshwright.plans.skeletons import (
    KEEPS_ALL,
    NONE,
    OPTIMIZER,
    SELECTIVE,
    Skeletons,
)
from meshwright.spec.gpu import PRECISIONS
from meshwright.spec.spec import Spec

VERSION = "megatron-core 0.19.2"

_32_BITS = [PRECISIONS.index(name) for name in ("fp32", "tf32")]

OWN_WORDS = {
    "heads_divisible": Words(
        f"{VERSION} transformer_config.py: __post_init__",
        "num_attention_heads (…) must be a multiple of tensor_model_parallel_size (…).",
    ),
    "mlp_divisible": Words(
        f"{VERSION} core/utils.py: ensure_divisibility", "… is not divisible by …"
    ),
    "shared_experts_divisible": Words(
        f"{VERSION} core/utils.py: ensure_divisibility", "… is not divisible by …"
    ),
    "layers_cover_stages": Words(
        f"{VERSION} transformer_config.py: __post_init__",
        "… should be divisible by pipeline_model_parallel_size …",
    ),
    "batch_divisible": Words(
        f"{VERSION} num_microbatches_calculator.py: ConstantNumMicroBatchesCalculator",
        "global batch size (…) is not divisible by micro batch size (…) times data "
        "parallel size (…)",
    ),
    "sequence_divisible": Words(
        f"{VERSION} tensor_parallel/mappings.py: _split_along_first_dim",
        "First dimension of the tensor should be divisible by tensor parallel size",
    ),
}


def _names_modules(spec: Spec, rows: Skeletons) -> Bools:
    is_named = np.isin(rows.recompute_modules, named_sets(spec))
    return np.asarray((rows.recompute != SELECTIVE) | is_named)


def _keeps_scales(_spec: Spec, rows: Skeletons) -> Bools:
    repeated = SET_BITS[rows.recompute_modules] & (LAYERNORM | MOE_ACT)
    return np.asarray((rows.precision != PRECISIONS.index("fp8")) | (repeated == 0))


def _keeps_small_state(spec: Spec, rows: Skeletons) -> Bools:
    has_precise_optimizer = bool(special_state(spec.training) - {"fp8_weights"})
    stays = (rows.offload == KEEPS_ALL) | (not has_precise_optimizer)
    return np.asarray((rows.zero >= 1) & stays)


def hides_experts(rows: Skeletons) -> Bools:
    """Return whether messages of experts may hide behind another micro-batch.

    Stages of a pipeline then have several chunks, and neither layers nor experts are
    recomputed as a whole (megatron-core 0.19.2 transformer_config.py: __post_init__,
    overlap_moe_expert_parallel_comm).
    """
    repeats_experts = (SET_BITS[rows.recompute_modules] & MOE) > 0
    repeats_layers = rows.recompute != NONE
    is_whole = np.where(rows.recompute == SELECTIVE, repeats_experts, repeats_layers)
    has_chunks = (rows.pp == 1) | (rows.vpp > 1)
    return np.asarray(has_chunks & ~is_whole & ~np.isin(rows.precision, _32_BITS))


DEGREE_RULES = (
    replace(
        KV_HEADS_REPEATED,
        source=f"{VERSION} transformer_config.py: __post_init__",
        fails_with="num_query_groups (…) must be a multiple or divisor of "
        "tensor_model_parallel_size (…).",
    ),
    replace(
        BALANCED_CONTEXT,
        source=f"{VERSION} arguments.py: validate_args",
        fails_with="seq-length should be a multiple of 2 * context-parallel-size if "
        "context-parallel-size > 1.",
    ),
)

PLAN_RULES = (
    Rule(
        "expert_sequence_parallel",
        "experts beside tensor parallelism need sequence parallelism",
        f"{VERSION} moe/moe_layer.py: MoELayer.forward",
        lambda spec, rows: rows.sequence_parallel | (rows.tp == 1),
        "tp {tp}",
        concerns=lambda spec: spec.model.moe is not None,
        fails_with="During training, performance may degrade if MoE and tensor "
        "parallelism are enabled without also enabling sequence parallelism.",
    ),
    replace(
        ONLY_1F1B,
        source=f"{VERSION} pipeline_parallel/schedules.py: get_forward_backward_func "
        "has no other",
    ),
    Rule(
        "interleaving_rounds",
        "under interleaving there are as many micro-batches as stages",
        f"{VERSION} pipeline_parallel/schedules.py: "
        "forward_backward_pipelining_with_interleaving",
        lambda spec, rows: (rows.vpp == 1) | (rows.microbatches >= rows.pp),
        "vpp {vpp}, {microbatches} micro-batches, pp {pp}",
        fails_with="The number of contiguous micro-batches in a virtual pipeline stage"
        "should range in [PP=… , M=…]",
    ),
    Rule(
        "recompute_supported",
        "selective recomputation names modules that the layers have",
        f"{VERSION} transformer_config.py: recompute_modules",
        _names_modules,
        "recompute {recompute}, modules {recompute_modules}",
    ),
    Rule(
        "recompute_fp8",
        "in fp8 with delayed scaling neither layernorm nor moe_act is recomputed",
        f"{VERSION} transformer_config.py: __post_init__",
        _keeps_scales,
        "modules {recompute_modules}",
        fails_with="Delayed scaling does not support moe_act and layernorm recompute "
        "for fp8.",
    ),
    Rule(
        "state_sharded",
        "primary fp8 weights and a precision-aware optimizer need ZeRO >= 1; the "
        "optimizer stays on the GPU then",
        f"{VERSION} arguments.py: --fp8-param-gather; optimizer_config.py: "
        "use_precision_aware_optimizer, of Transformer Engine's Adam",
        _keeps_small_state,
        "zero {zero}",
        concerns=lambda spec: bool(special_state(spec.training)),
    ),
    Rule(
        "offload_supported",
        "only Adam's state is offloaded, and it is sharded",
        f"{VERSION} arguments.py: --optimizer-cpu-offload; "
        "optimizer/optimizer_config.py: __post_init__",
        lambda spec, rows: keeps_or(
            rows,
            (rows.offload == OPTIMIZER)
            & (rows.zero >= 1)
            & np.bool_(spec.training.optimizer == "adamw"),
        ),
        "zero {zero}",
        fails_with="--use-precision-aware-optimizer only supported with distributed "
        "optimizer",
    ),
    replace(
        NO_DRIVES, source=f"{VERSION} arguments.py: --optimizer-cpu-offload, no other"
    ),
)
