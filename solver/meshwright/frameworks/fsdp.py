"""PyTorch FSDP by itself, as accelerate runs it."""

from __future__ import annotations

from dataclasses import replace

from meshwright.frameworks.base.framework import (
    FEW_GROUPS_OVERHEAD_GIB,
    Framework,
    Lever,
    all_layers,
)
from meshwright.frameworks.base.shared import (
    BALANCED_CONTEXT,
    CONTEXT_SHARDS,
    FROZEN_WEIGHTS,
    FSDP_OFFLOADS_ALL,
    NO_DRIVES,
    NO_EXPERT_PARALLELISM,
    NO_SEQUENCE_PARALLELISM,
    NO_ZERO_1,
    PURE_BF16,
    SCRIPT_LEVERS,
    TRAINED_ENDS,
    TRAINS_IN_BF16,
    WHOLE_EXPERTS,
    WHOLE_KV_HEADS,
    WHOLE_LAYERS_RECOMPUTED,
    fully_shard_state,
)
from meshwright.plans.rule import Rule, Words
from meshwright.spec.plan_fields import PARAMETERS
from meshwright.spec.spec import Spec

VERSION = "accelerate 1.15.0"
CONFIG = f"{VERSION} parallelism_config.py"
PLANS = "transformers 008e574 models/mixtral/configuration_mixtral.py"
LAYERS = "transformers 5.23.0 models/llama/modeling_llama.py: LlamaAttention.forward"
NOT_WHOLE = "shape '…' is invalid for input of size …"
SIZES = f"{CONFIG}: ParallelismConfig has no such size"

RULE_WORDS = {
    "heads_divisible": Words(LAYERS, NOT_WHOLE),
    "mlp_divisible": Words(
        "transformers 5.23.0 distributed/tensor_parallel.py: ranks get unequal "
        "columns, not priced here"
    ),
}


def _has_quantised_weights(spec: Spec) -> bool:
    lora = spec.training.lora
    return lora is not None and lora.is_quantised


DEGREE_RULES = (
    replace(
        WHOLE_KV_HEADS,
        source=f"{LAYERS}; k_proj and v_proj are split by columns",
        fails_with=NOT_WHOLE,
    ),
    Rule(
        "pipeline_supported",
        "no pipeline",
        SIZES,
        lambda spec, rows: rows.pp == 1,
        "pp {pp}",
        is_inherited=True,
    ),
    replace(
        BALANCED_CONTEXT,
        source="torch 2.13 distributed/tensor/experimental/_context_parallel/"
        "_load_balancer.py: there is no balancer for others, whose exposed work is not "
        "priced here",
    ),
    Rule(
        "replicas_supported",
        "replicas beside tensor or context parallelism need shards",
        f"{CONFIG}: __post_init__",
        lambda spec, rows: (
            (rows.tp * rows.cp == 1) | (rows.dp_replicate == 1) | (rows.dp_shard > 1)
        ),
        "tp {tp}, cp {cp}, dp_replicate {dp_replicate}, dp_shard {dp_shard}",
        fails_with="Tensor/Context parallelism (tp/cp_size > 1) cannot be used with "
        "pure data parallelism (dp_replicate_size > 1 and dp_shard_size == 1).",
    ),
)

PLAN_RULES = (
    replace(
        NO_ZERO_1,
        source=f"{VERSION} utils/dataclasses.py: FullyShardedDataParallelPlugin; "
        "reshard_after_forward false is 2, true is 3",
    ),
    replace(
        CONTEXT_SHARDS,
        source=f"{VERSION} state.py: AcceleratorState",
        fails_with="`cp_size > 1` specified in the `parallelism_config`, but no "
        "`fsdp_plugin` was provided.",
    ),
    Rule(
        "tensor_parallel_shards",
        "tensor parallelism needs the shards of FSDP beside it: ZeRO 2 or 3",
        f"{VERSION} commands/launch.py: _validate_launch_command; "
        "parallelism_config.py: _validate_accelerator",
        lambda spec, rows: (
            (rows.tp == 1) | ((rows.zero >= 2) & (rows.dp_shard * rows.cp > 1))
        ),
        "tp {tp}, zero {zero}, dp_shard {dp_shard} x cp {cp} = {dp_shard * cp}",
        fails_with="You cannot use `--use_parallelism_config` without `--use_fsdp` and "
        "`--fsdp_version=2`.",
    ),
    Rule(
        "quantised_tensor_parallel",
        "weights that bitsandbytes quantises have no tensor parallelism",
        "transformers 5.23.0 distributed/tensor_parallel.py makes weights DTensors, "
        "which have no quantised state (bitsandbytes 0.50.2 nn/modules.py; run)",
        lambda spec, rows: rows.tp == 1,
        "tp {tp}, weights {spec.training.lora.weights}",
        concerns=_has_quantised_weights,
        fails_with="'DTensor' object has no attribute 'CB'",
    ),
    replace(NO_SEQUENCE_PARALLELISM, source=SIZES),
    replace(
        NO_EXPERT_PARALLELISM,
        sentence="no expert parallelism over data-parallel ranks; Transformers' "
        "enable_expert_parallel is one over ranks that share a batch, and not modelled",
        source=f"{SIZES}; transformers 5.17.0 docs: expert_parallelism",
    ),
    replace(
        WHOLE_EXPERTS,
        source=f"{PLANS}: base_model_tp_plan splits the matrices of each expert, which "
        "is not priced here",
    ),
    replace(
        WHOLE_LAYERS_RECOMPUTED, source=f"{VERSION} utils/fsdp_utils.py: fsdp2_apply_ac"
    ),
    replace(
        FSDP_OFFLOADS_ALL,
        source=f"{VERSION} utils/dataclasses.py: fsdp_offload_params is "
        "CPUOffloadPolicy",
    ),
    replace(NO_DRIVES, source=f"{VERSION} utils/dataclasses.py: host memory alone"),
)

FRAMEWORK = Framework(
    title="PyTorch FSDP",
    kin="fsdp",
    mixed_state=fully_shard_state,
    levers=(
        *SCRIPT_LEVERS,
        Lever(
            "gradients",
            ("bf16",),
            "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)",
            f"{VERSION} utils/dataclasses.py: FullyShardedDataParallelPlugin",
            "rounding",
        ),
        TRAINS_IN_BF16,
    ),
    has_no_sync=True,
    # accelerate 1.15.0 utils/dataclasses.py: TorchContextParallelConfig
    context_exchanges=("ring", "gather"),
    # `fsdp_activation_checkpointing_offload`, and trl models/activation_offloading.py
    on_host=frozenset({"full-cpu", "offload_activations"}),
    waits_for_inputs=True,  # accelerate's is torch's `offload_wrapper`
    state_options=frozenset({PURE_BF16}),  # a model loaded in bf16
    frozen_weights=FROZEN_WEIGHTS,  # accelerate's fsdp_utils.py, with PEFT
    trained_ends=TRAINED_ENDS,
    degree_rules=DEGREE_RULES,
    plan_rules=PLAN_RULES,
    rule_words=RULE_WORDS,
    offloads=(PARAMETERS,),
    stops_recompute="always",
    full_scope=all_layers(f"{VERSION} utils/fsdp_utils.py: fsdp2_apply_ac"),
    # the root's, which is not resharded (torch 2.13 _fsdp_param_group.py: lazy_init)
    keeps_whole_ends=True,
    has_reference=True,  # trl trainer/dpo_trainer.py
    makes_gradients_late=True,
    has_plain_norm=True,
    overhead_gib=FEW_GROUPS_OVERHEAD_GIB,
    has_cast_weights=True,
    # flash-attention trains fp32 parameters under autocast, one replica per GPU
    layer_dispatch=2.0,  # hooks before and after each layer
    # torch.optim.AdamW without `fused`: 1.39 s for 0.22 (Ren et al. 2021, table 4)
    host_update=6.0,
    programs=(
        *("accelerate", "automodel", "axolotl", "lightning", "llama-factory", "peft"),
        *("pytorch", "torchtune", "transformers", "trl", "verl"),
    ),
    published_as=("fsdp", "flash-attention"),
)
