"""Megatron-LM; also used for NeMo and Megatron-Bridge, which run its core."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.frameworks.base.framework import (
    ALL_FUSED,
    Framework,
    Lever,
    LossPeak,
    Operations,
    Selective,
    Setting,
    StateBytes,
    TextLoops,
    all_layers,
    one_number,
)
from meshwright.frameworks.base.registry import named_sets
from meshwright.frameworks.base.shared import (
    BALANCED_CONTEXT,
    KV_HEADS_REPEATED,
    NO_DRIVES,
    ONLY_1F1B,
    PURE_BF16,
    STATE_OPTIONS,
    graphs,
    keeps_or,
    master_bytes,
    most_layers,
    special_state,
)
from meshwright.plans.columns import Bools
from meshwright.plans.rule import Rule, Words
from meshwright.plans.skeletons import (
    ALL_MODULES,
    LAYERNORM,
    MOE,
    MOE_ACT,
    SET_BITS,
    Shards,
    Skeletons,
)
from meshwright.spec.gpu import PRECISIONS
from meshwright.spec.plan_fields import (
    KEEPS_ALL,
    NONE,
    OPTIMIZER,
    SELECTIVE,
    UNLESS_NAMED,
)
from meshwright.spec.spec import Spec
from meshwright.spec.training import Training

VERSION = "megatron-core 0.19.2"

_32_BITS = [PRECISIONS.index(name) for name in ("fp32", "tf32")]

RULE_WORDS = {
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
        "fsdp_tried",
        "Megatron-FSDP beside a pipeline passes every check, and nobody is known to "
        "have run it; limits.untried gives this rule up",
        f"{VERSION} arguments.py: validate_args takes --use-megatron-fsdp with stages",
        lambda spec, rows: (rows.zero <= 1) | (rows.pp == 1),
        "zero {zero}, pp {pp}",
        concerns=lambda spec: not spec.limits.untried,
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


def _state(training: Training, moments: float) -> StateBytes:
    """Return the state of a parameter; gradients are added up in fp32.

    That is 2 + 4 + 12 bytes with Adam (Megatron-LM, docs on the distributed optimizer).
    Beside fp16 gradients are added up in 16 bits (arguments.py: validate_args sets
    `accumulate_allreduce_grads_in_fp32` beside bf16 alone).
    NeMo adds gradients up and reduces them in bf16 (`grad_reduce_in_fp32` false). The
    precision-aware optimizer (optimizer_config.py) keeps moments in bf16, and beside
    bf16 weights the 16 bits that they lack (`store_param_remainders`).
    """
    default = "bf16" if training.precision == "fp16" else "fp32"
    main = 2 if (training.gradients or default) == "bf16" else 4
    return StateBytes(2, main, master_bytes(training) + moments, 2, main)


ARGUMENTS = f"{VERSION} arguments.py: validate_args"


def _short_moments(spec: Spec) -> tuple[Setting, ...]:
    """Return moments in bf16, beside bf16 weights only where it keeps remainders."""
    return () if spec.training.master_weights == "fp32" else ("bf16",)


def _overlaps(kind: str, option: str) -> Lever:
    """Return the lever that hides traffic behind compute."""
    return Lever(f"overlap.{kind}", (True,), option, ARGUMENTS)


LEVERS = (
    _overlaps("gradients", "--overlap-grad-reduce"),
    _overlaps("parameters", "--overlap-param-gather"),
    _overlaps("tp", "--tp-comm-overlap"),
    _overlaps("ep", "--overlap-moe-expert-parallel-comm"),
    _overlaps("pp", "leave out --no-overlap-p2p-communication"),
    Lever(
        "fused.loss",
        (True,),
        "--cross-entropy-loss-fusion",
        f"{VERSION} fusions/fused_cross_entropy.py",
    ),
    Lever(
        "attention",
        ("flash",),
        "--attention-backend auto",
        f"{VERSION} extensions/transformer_engine.py: TEDotProductAttention",
        "rounding",
    ),
    Lever(
        "cuda_graphs",
        graphs,
        "--cuda-graph-impl transformer_engine",
        f"{VERSION} transformer_config.py: cuda_graph_impl, cuda_graph_scope",
    ),
    Lever(
        "expert_dispatch",
        ("deepep",),
        "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep",
        f"{VERSION} moe/token_dispatcher.py: MoEFlexTokenDispatcher",
    ),
    Lever(
        "partition_activations", (True,), "--distribute-saved-activations", ARGUMENTS
    ),
    Lever(
        "offload_activations",
        most_layers,
        "--cpu-offloading-num-layers N",
        f"{VERSION} transformer_config.py: cpu_offloading",
    ),
    Lever("fp8_weights", ("primary",), "--fp8-param-gather", ARGUMENTS, "rounding"),
    Lever("gradients", ("bf16",), "--grad-reduce-in-bf16", ARGUMENTS, "rounding"),
    Lever(
        "master_weights",
        ("remainders",),
        "--use-precision-aware-optimizer",
        f"{VERSION} optimizer/optimizer_config.py: store_param_remainders",
    ),
    Lever(
        "moments",
        _short_moments,
        "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
        f"{VERSION} optimizer/optimizer_config.py: exp_avg_dtype",
        "optimizer",
    ),
)

LONGEST_KERNEL = 16_384
"""Tokens of a sequence whose scores, in fp32, are up to 1 GiB."""


def _scores_by_head(spec: Spec, shards: Shards) -> Bools:
    """Return where cuDNN's kernel does not score all tokens for an indexer.

    It does for whole sequences up to 1 GiB of scores, unless layers share what is
    picked, which gives bounds of every text; and for packed texts split by context
    parallelism (core d98e8a6, dsa_cudnn_kernels.py: `_indexer_topk_bshd`,
    `_indexer_topk_from_score_chunks`; dsa.py: `fused_bounds`).
    """
    training, is_split = spec.training, shards.cp > 1
    is_packed = training.document_tokens is not None
    is_whole = not is_packed and not spec.model.picks_for_others
    is_one = ~is_split & np.bool_(is_whole and training.seq_len <= LONGEST_KERNEL)
    return np.asarray(~is_one & ~(is_split & is_packed))


EXPERT_BIAS_BYTES = 28 + 40
"""Bytes moved for a number of an expert's result by `TEGroupedMLP._apply_bias`
(megatron-core d98e8a6, transformer/moe/experts.py), in both passes.

Probabilities are in fp32. The forward writes bias times probability (4), adds it to the
result (2 + 4 + 4), joins the experts (4 + 4) and casts (4 + 2). The backward casts its
gradient (2 + 4), casts that of the result (4 + 2) and joins it (2 + 2), and twice
multiplies in fp32 and sums (4 + 4 + 4), for bias and probability.
"""

TEXT_LOOPS = TextLoops(
    positions=Operations(2 * 13, 2 * 11),
    latent_positions=Operations(2 * 14, 2 * 16),
    split_positions=2 * 1,
    exchange=Operations(3 * 22 + 14, 22 + 3 * 14),
)
"""Kernels, and numbers that go to the host, for each text.

Positions (megatron-core 0.19.0, models/common/embeddings/rope_utils.py:
`_apply_rotary_pos_emb_thd`), once for queries and once for keys. A forward takes
cosine, scale and cast of the angles (3) and of sines (3), both products (2), the turned
half (2), their sum, what is left unturned, and the copy into the result; context
parallelism joins two parts of the angles before. A backward copies the whole gradient,
a part of it, zeros and these into it (4), fills and adds what was unturned (2), and
reverses products (2), the turned half (2) and the sum of both uses. Latent attention
puts pairs apart before (1), and back (5). Versions up to 0.18, and from August 2026 on,
have no such loop, nor has `apply_rope_fusion`.

Exchange (Transformer Engine 2.10 to 2.17, attention/dot_product_attention/
context_parallel.py). On the way to heads, for queries, keys, values and the gradient of
the result, every one of two chunks a rank has eight operations on bounds that are on
the GPU, both read by the host, and a range of indices (11; `reorder_seq_chunks_after_
a2a_before_attn_thd`). On the way back, for the result and three gradients, every rank
has twice four, two and one (14; `reorder_seq_chunks_before_a2a_after_attn_thd`).
"""

FRAMEWORK = Framework(
    title="Megatron-LM",
    kin="megatron",
    mixed_state=_state,
    levers=LEVERS,
    degree_rules=DEGREE_RULES,
    plan_rules=PLAN_RULES,
    rule_words=RULE_WORDS,
    context_exchanges=("ring", "gather", "ulysses"),  # `--cp-comm-type`
    state_options=STATE_OPTIONS - {PURE_BF16},
    has_deepep=True,
    has_mtp=True,
    stores_fp8_inputs=True,  # `activation_func_fp8_input_store`
    partitions_activations=True,  # --distribute-saved-activations
    on_host=frozenset({"offload_activations"}),  # transformer_config.py, cpu_offloading
    matrix_optimizers=frozenset({"muon"}),  # core/optimizer/emerging_optimizers.py
    frozen_weights=frozenset({"bf16"}),  # Megatron Bridge, peft/lora.py; NeMo
    offloads=(OPTIMIZER,),
    selective=Selective(modules=ALL_MODULES, unless_named=UNLESS_NAMED),
    splits_experts=True,  # `--expert-tensor-parallel-size`
    has_segments=True,  # recompute.py, `checkpointed_forward`, method uniform
    has_uneven_chunks=True,  # `--pipeline-model-parallel-layout`
    selective_scope=all_layers(
        f"{VERSION} transformer_config.py: __post_init__ takes no "
        "recompute_num_layers with selective"
    ),
    full_scope=one_number(
        f"{VERSION} recompute.py: checkpointed_forward, method block with "
        "recompute_num_layers"
    ),
    # Transformer Engine's norms and loss, `apply_rope_fusion`, `bias_swiglu_fusion`,
    # `masked_softmax_fusion`, `bias_dropout_fusion`; `fused_residual_rmsnorm` is off
    fused=ALL_FUSED - {"residual"},
    # an fp32 copy, which becomes the softmax and its gradient in place (core 0.19.2,
    # tensor_parallel/cross_entropy.py and fusions/fused_cross_entropy.py)
    loss=LossPeak(4, 4),
    # `--overlap-grad-reduce` and `--overlap-param-gather`, which our launches have; of
    # interleaved stages Megatron-LM's default
    overlap=frozenset({"gradients", "parameters", "pp"}),
    hides_experts=hides_experts,
    asks_overlap=True,  # both are off unless given
    # Megatron-FSDP switches them on (Megatron-LM d98e8a64, distributed/fsdp/src/
    # megatron_fsdp/megatron_fsdp.py: MegatronFSDP.__init__)
    always_hides={
        2: frozenset({"gradients"}),
        3: frozenset({"gradients", "parameters"}),
    },
    joins_norms=True,
    has_gradient_buffers=True,
    keeps_fp8_copies=True,
    pads_vocabulary=True,  # to 128 per GPU, `--make-vocab-size-divisible-by`
    newer_attention="cudnn",
    # `dsa_kernel_backend` cudnn, as Megatron Bridge's recipes have it
    scores_by_head=_scores_by_head,
    repeats_picked_core=True,  # core d98e8a6, FusedQKTopKWithSparseLossFunc
    layer_dispatch=4.5,  # 0.9 ms: Transformer Engine's modules
    text_loops=TEXT_LOOPS,
    bucket_params=4e7,  # core/distributed/distributed_data_parallel.py: `bucket_size`
    expert_bias_passes=EXPERT_BIAS_BYTES / 2 / 3,
    # core d98e8a6, fusions/fused_bias_geglu.py: weighted_bias_quick_geglu_impl limits
    # and joins both halves, 8 passes; backward 3 for each half, and 4 to join
    expert_limit_passes=(8 + 3 + 3 + 4) / 3,
    programs=("megatron-bridge", "megatron-lm", "nemo", "primus", "slime", "verl"),
    published_as=("megatron", "nemo"),
    # NeMo 2, collections/llm/recipes: finetune_performance_optimizations, `linear_qkv`
    published_lora=("q_proj", "k_proj", "v_proj"),
    sequence_parallel_since="2023",
    has_tuned_chunks=True,
)
