"""Arguments of Megatron-LM on the model, its training state and its communication."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.exports.files import Setting
from meshwright.exports.refusals import Refusal, layer_refusals
from meshwright.frameworks.base.registry import (
    context_exchange_of,
    framework_of,
    overlap_of,
)
from meshwright.frameworks.base.shared import special_state
from meshwright.imports.launches import megatron_options as options
from meshwright.imports.launches.megatron_options import SHARDING
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import to_unplaced_row
from meshwright.spec.model import Model
from meshwright.spec.model_parts import Experts, LatentAttention
from meshwright.spec.spec import Spec
from meshwright.spec.training import ContextExchange, Training

VOCABULARY_MULTIPLE = 128
"""Megatron-LM's default of `--make-vocab-size-divisible-by`."""


def model_refusals(model: Model) -> Iterator[Refusal]:
    """Yield what of a model `GPTModel` has no argument for."""
    yield from layer_refusals(model, "Megatron-LM")
    positions = "megatron/training/arguments.py: choices of --position-embedding-type"
    layer = (
        "megatron/core/models/gpt/gpt_layer_specs.py: get_gpt_layer_local_submodules"
    )
    if model.alibi:
        yield Refusal("model.alibi", "true: no linear biases on scores", positions)
    if model.parallel_residual:
        sentence = "true: attention and MLP of a layer follow one another"
        yield Refusal("model.parallel_residual", sentence, layer)
    if model.norms_per_layer == 4:
        sentence = "4: norms stand before attention and MLP alone"
        yield Refusal("model.norms_per_layer", sentence, layer)
    if model.embedding_norm:
        check = "megatron/core/models/common/embeddings/language_model_embedding.py"
        yield Refusal("model.embedding_norm", "true: no norm after it", check)


def model_arguments(model: Model) -> Iterator[Setting]:
    """Yield the arguments that say a model's shape."""
    yield Setting("--num-layers", model.n_layers, "model.n_layers")
    yield Setting("--hidden-size", model.d_model, "model.d_model")
    yield Setting("--ffn-hidden-size", model.d_ff, "model.d_ff")
    yield Setting("--num-attention-heads", model.n_heads, "model.n_heads")
    if model.mla is not None:
        yield from _latent_arguments(model.mla)
    else:
        yield Setting("--kv-channels", model.head_dim, "model.head_dim")
    if model.n_kv_heads != model.n_heads:
        yield Setting("--group-query-attention", why="fewer KV heads than heads")
        yield Setting("--num-query-groups", model.n_kv_heads, "model.n_kv_heads")
    if model.gated_mlp:
        yield Setting("--swiglu", why="model.gated_mlp")
    norm = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[model.norm]
    yield Setting("--normalization", norm, "model.norm")
    if model.qk_norm:
        yield Setting("--qk-layernorm", why="model.qk_norm")
    if model.bias != "all":
        yield Setting("--disable-bias-linear", why=f"model.bias {model.bias}")
    if model.bias == "qkv":
        yield Setting("--add-qkv-bias", why="model.bias qkv")
    if not model.tied_embeddings:
        yield Setting(
            "--untie-embeddings-and-output-weights", why="model.tied_embeddings false"
        )
    kind = "learned_absolute" if model.learned_positions else "rope"
    yield Setting("--position-embedding-type", kind, "model.learned_positions")
    share = 0.1 if model.dropout else 0.0
    for name in ("--attention-dropout", "--hidden-dropout"):
        yield Setting(name, share, "model.dropout; 0.1 is Megatron-LM's default")
    multiple = VOCABULARY_MULTIPLE
    yield Setting(
        "--make-vocab-size-divisible-by", multiple, "as its memory is counted"
    )
    if model.moe is not None:
        yield from _expert_arguments(model.moe, model.n_layers)


def _latent_arguments(mla: LatentAttention) -> Iterator[Setting]:
    yield Setting("--multi-latent-attention", why="model.mla")
    if mla.q_rank:
        yield Setting("--q-lora-rank", mla.q_rank, "model.mla.q_rank")
    yield Setting("--kv-lora-rank", mla.kv_rank, "model.mla.kv_rank")
    yield Setting("--qk-head-dim", mla.nope_dim, "model.mla.nope_dim")
    yield Setting("--qk-pos-emb-head-dim", mla.rope_dim, "model.mla.rope_dim")
    yield Setting("--v-head-dim", mla.v_dim, "model.mla.v_dim")


def _expert_arguments(moe: Experts, n_layers: int) -> Iterator[Setting]:
    yield Setting("--num-experts", moe.n_experts, "model.moe.n_experts")
    yield Setting("--moe-router-topk", moe.top_k, "model.moe.top_k")
    if moe.route_groups > 1:
        name = "--moe-router-num-groups"
        yield Setting(name, moe.route_groups, "model.moe.route_groups")
        name = "--moe-router-group-topk"
        yield Setting(name, moe.groups_per_token, "model.moe.groups_per_token")
    yield Setting("--moe-ffn-hidden-size", moe.d_ff, "model.moe.d_ff")
    if moe.shared_d_ff:
        name = "--moe-shared-expert-intermediate-size"
        yield Setting(name, moe.shared_d_ff, "model.moe.shared_d_ff, all of them")
    if dense := moe.first_dense_layers:
        pattern = f"([0]*{dense}+[1]*{n_layers - dense})"
        yield Setting("--moe-layer-freq", pattern, "model.moe.first_dense_layers")
    if moe.router_bias:
        yield Setting(
            "--moe-router-score-function", "sigmoid", "a router's bias needs it"
        )
        yield Setting("--moe-router-enable-expert-bias", why="model.moe.router_bias")
    if moe.capacity_factor is not None:
        factor = moe.capacity_factor
        name = "--moe-expert-capacity-factor"
        yield Setting(name, factor, "model.moe.capacity_factor")
        yield Setting("--moe-pad-expert-input-to-capacity", why="padded places")
    yield Setting("--moe-grouped-gemm", why="experts of a GPU are one grouped matmul")


def hides_experts(spec: Spec, plan: Plan) -> bool:
    """Return whether messages of experts hide: asked for, there, and accepted."""
    if "ep" not in overlap_of(spec) or plan.ep == 1:
        return False
    return bool(framework_of(spec).hides_experts(to_unplaced_row(plan))[0])


OPTIMIZERS = {name: word for word, name in options.OPTIMIZERS.items()}
STRATEGIES = {stage: word for word, stage in SHARDING.items()}
"""The words that `imports` reads, by what they mean."""


def state_refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield what of a plan's state Megatron-LM cannot be told."""
    optimizer = spec.training.optimizer
    if optimizer not in OPTIMIZERS:
        check = "megatron/training/arguments.py: choices of --optimizer"
        yield Refusal("training.optimizer", f"{optimizer}: no such choice", check)
    is_split = plan.tp > 1 and plan.repeats_layers
    if spec.training.partition_activations and not is_split:
        sentence = "needs full recomputation and tensor parallelism"
        check = "megatron/training/arguments.py: distribute_saved_activations"
        yield Refusal("training.partition_activations", sentence, check)
    if spec.training.lora is not None:
        sentence = (
            "what is written here pretrains all weights; adapters need Megatron "
            "Bridge's `finetune` with `peft.lora.LoRA(target_modules, dim)`"
        )
        check = "megatron/training/arguments.py: no argument freezes weights"
        yield Refusal("training.lora", sentence, check)
    if _keeps_moments_alone(spec.training, plan):
        sentence = "fp32 beside bf16 moments: it keeps remainders then"
        check = "megatron/core/optimizer/optimizer_config.py: store_param_remainders"
        yield Refusal("training.master_weights", sentence, check)


def is_precision_aware(training: Training) -> bool:
    """Return whether Adam keeps less than fp32 moments and fp32 weights."""
    return bool(special_state(training) - {"fp8_weights"})


def _keeps_moments_alone(training: Training, plan: Plan) -> bool:
    """Return whether moments are in bf16, beside fp32 copies of bf16 weights."""
    has_16_bits = training.fp8_weights == "copies" or plan.precision != "fp8"
    is_wide = training.master_weights == "fp32"
    return training.moments == "bf16" and is_wide and has_16_bits


def state_arguments(spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield the arguments on what is kept, in which format and where."""
    yield from _precision(spec, plan)
    yield Setting(
        "--optimizer", OPTIMIZERS[spec.training.optimizer], "training.optimizer"
    )
    yield from _sharding(plan)
    yield from _overlap(spec, plan)
    if is_precision_aware(spec.training):
        why = "training.moments, training.master_weights"
        yield Setting("--use-precision-aware-optimizer", why=why)
        for name in ("--exp-avg-dtype", "--exp-avg-sq-dtype"):
            yield Setting(name, spec.training.moments, "training.moments")
    if spec.training.partition_activations:
        why = "training.partition_activations"
        yield Setting("--distribute-saved-activations", why=why)
    if layers := spec.training.offload_activations:
        name = "--cpu-offloading-num-layers"
        yield Setting(name, layers, "training.offload_activations")
    if plan.offload == "optimizer":
        yield Setting("--optimizer-cpu-offload", why="plan.offload optimizer")
        share = spec.training.offload_fraction
        why = "all of it" if share == 1 else "training.offload_fraction"
        yield Setting("--optimizer-offload-fraction", share, why)
        yield Setting("--use-precision-aware-optimizer", why="the offload needs it")


def _precision(spec: Spec, plan: Plan) -> Iterator[Setting]:
    if plan.precision == "fp8":
        yield Setting("--bf16", why="plan.precision fp8: what is no matmul")
        yield Setting("--fp8-format", "hybrid", "plan.precision fp8")
        yield Setting("--fp8-recipe", "delayed", "one scale per tensor")
        if spec.training.fp8_weights == "primary":
            yield Setting("--fp8-param-gather", why="training.fp8_weights")
    elif plan.precision in ("bf16", "fp16"):
        yield Setting(f"--{plan.precision}", why="plan.precision")
    if plan.precision in ("fp8", "bf16"):
        if spec.training.gradients == "bf16":
            yield Setting("--grad-reduce-in-bf16", why="training.gradients")
        else:
            name = "--accumulate-allreduce-grads-in-fp32"
            yield Setting(
                name, why="training.gradients; Megatron-LM's default for bf16"
            )


def _overlap(spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield what hides which traffic; Megatron-LM's gathers need reductions."""
    overlap = overlap_of(spec)
    if "gradients" in overlap and (plan.zero >= 1 or plan.dp_replicate > 1):
        yield Setting("--overlap-grad-reduce", why="training.overlap.gradients")
        if "parameters" in overlap and plan.zero >= 1:
            yield Setting("--overlap-param-gather", why="training.overlap.parameters")
    if "tp" in overlap and plan.tp > 1 and plan.sequence_parallel:
        yield Setting("--tp-comm-overlap", why="training.overlap.tp")
    if hides_experts(spec, plan):
        why = "training.overlap.ep"
        yield Setting("--overlap-moe-expert-parallel-comm", why=why)
    if "pp" not in overlap and plan.vpp > 1:
        yield Setting("--no-overlap-p2p-communication", why="training.overlap.pp")


def _sharding(plan: Plan) -> Iterator[Setting]:
    if plan.zero >= 1:
        yield Setting("--use-distributed-optimizer", why=f"plan.zero {plan.zero}")
    if plan.zero >= 2:
        yield Setting("--use-megatron-fsdp", why=f"plan.zero {plan.zero}")
        name = "--data-parallel-sharding-strategy"
        yield Setting(name, STRATEGIES[plan.zero], f"plan.zero {plan.zero}")
        yield Setting("--ckpt-format", "fsdp_dtensor", "Megatron-FSDP's checkpoints")
        yield Setting(
            "--init-model-with-meta-device", why="no GPU holds the whole model"
        )
    if plan.zero >= 1 and plan.dp_replicate > 1:
        name = "--num-distributed-optimizer-instances"
        yield Setting(name, plan.dp_replicate, "plan.dp_replicate")
        if plan.zero >= 2:
            yield Setting(
                "--outer-dp-sharding-strategy", "no_shard", "replicas are whole"
            )


_TYPES: dict[ContextExchange, str] = {
    "ring": "p2p",
    "gather": "all_gather",
    "ulysses": "a2a",
}

_REASONS: dict[ContextExchange, str] = {
    "ring": "a ring, as its time is counted",
    "gather": "keys and values are gathered, as their time is counted",
    "ulysses": "tokens for heads, as their time is counted",
}


def cp_comm_type(spec: Spec) -> tuple[str, str]:
    """Return the value of `--cp-comm-type`, and why it is that."""
    exchange = context_exchange_of(spec)
    return _TYPES[exchange], _REASONS[exchange]
