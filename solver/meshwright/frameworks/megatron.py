"""Megatron-LM; also used for NeMo and Megatron-Bridge, which run its core."""

from __future__ import annotations

from meshwright.frameworks.base.framework import (
    ALL_FUSED,
    Framework,
    Selective,
    StateBytes,
)
from meshwright.frameworks.base.recompute_scope import all_layers, one_number
from meshwright.frameworks.base.small_state import STATE_OPTIONS, master_bytes
from meshwright.frameworks.limits import megatron as limits
from meshwright.plans.recomputation import ALL_MODULES
from meshwright.plans.skeletons import OPTIMIZER
from meshwright.spec.recompute_modules import UNLESS_NAMED
from meshwright.spec.training import Training


def _state(training: Training, moments: float) -> StateBytes:
    """Return the state of a parameter; gradients are added up in fp32.

    That is 2 + 4 + 12 bytes with Adam (Megatron-LM, docs on the distributed optimizer).
    NeMo adds gradients up and reduces them in bf16 (`grad_reduce_in_fp32` false). The
    precision-aware optimizer (optimizer_config.py) keeps moments in bf16, and beside
    bf16 weights the 16 bits that they lack (`store_param_remainders`).
    """
    main = 2 if training.gradients == "bf16" else 4
    return StateBytes(2, main, master_bytes(training) + moments, 2, main)


FRAMEWORK = Framework(
    title="Megatron-LM",
    mixed_state=_state,
    degree_rules=limits.DEGREE_RULES,
    plan_rules=limits.PLAN_RULES,
    own_words=limits.OWN_WORDS,
    context_exchanges=("ring", "gather", "ulysses"),  # `--cp-comm-type`
    state_options=STATE_OPTIONS,
    has_deepep=True,
    partitions_activations=True,  # --distribute-saved-activations
    offloads_activations=True,  # transformer_config.py, `cpu_offloading`
    has_muon=True,  # core/optimizer/emerging_optimizers.py
    frozen_weights=frozenset({"bf16"}),  # Megatron Bridge, peft/lora.py; NeMo
    offloads=(OPTIMIZER,),
    selective=Selective(modules=ALL_MODULES, unless_named=UNLESS_NAMED),
    has_segments=True,  # recompute.py, `checkpointed_forward`, method uniform
    has_uneven_chunks=True,  # `--pipeline-model-parallel-layout`
    selective_scope=all_layers(
        f"{limits.VERSION} transformer_config.py: __post_init__ takes no "
        "recompute_num_layers with selective"
    ),
    full_scope=one_number(
        f"{limits.VERSION} recompute.py: checkpointed_forward, method block with "
        "recompute_num_layers"
    ),
    # Transformer Engine's norms and loss, `apply_rope_fusion`, `bias_swiglu_fusion`,
    # `masked_softmax_fusion`, `bias_dropout_fusion`
    fused=ALL_FUSED,
    # an fp32 copy, which becomes the softmax and its gradient in place (core 0.19.2,
    # tensor_parallel/cross_entropy.py and fusions/fused_cross_entropy.py)
    loss_bytes=4,
    # `--overlap-grad-reduce` and `--overlap-param-gather`, which our launches have; of
    # interleaved stages Megatron-LM's default
    overlap=frozenset({"gradients", "parameters", "pp"}),
    hides_experts=limits.hides_experts,
    asks_overlap=True,  # both are off unless given
    joins_norms=True,
    has_gradient_buffers=True,
    keeps_fp8_copies=True,
    pads_vocabulary=True,  # to 128 per GPU, `--make-vocab-size-divisible-by`
    newer_attention="cudnn",
    layer_dispatch=4.5,  # 0.9 ms: Transformer Engine's modules
    published_as=("megatron", "nemo"),
    # NeMo 2, collections/llm/recipes: finetune_performance_optimizations, `linear_qkv`
    published_lora=("q_proj", "k_proj", "v_proj"),
    sequence_parallel_since="2023",
    has_tuned_chunks=True,
)
