"""A model in the names of Megatron Core's fields, and as arguments of Megatron-LM."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.exports.files import Refusal, Setting, layer_refusals
from meshwright.spec.model import Model
from meshwright.spec.model_parts import Details, Experts, LatentAttention, RopeScaling

VOCABULARY_MULTIPLE = 128
"""Megatron-LM's default of `--make-vocab-size-divisible-by`."""

LLAMA3 = RopeScaling(form="llama3", factor=8, original_positions=8192)
"""The scaling of positions that Megatron Core has, beside a factor of any size
(core/models/common/embeddings/rotary_pos_embedding.py: _apply_scaling)."""

YARN = RopeScaling(form="yarn", factor=40, original_positions=4096)
"""The scaling of positions that its latent attention has, beside a factor and
scales of any size (core/transformer/transformer_config.py: MLATransformerConfig)."""


def model_refusals(model: Model) -> Iterator[Refusal]:
    """Yield the fields of a model that `GPTModel` has none for."""
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
    if (scaling := model.details.rope_scaling) is not None:
        yield from _scaling_refusals(scaling, model.mla is not None)


def _scaling_refusals(scaling: RopeScaling, is_latent: bool) -> Iterator[Refusal]:
    """Yield a stretch of positions whose numbers Megatron Core does not take."""
    fixed = YARN if is_latent else LLAMA3
    free = ("factor", "mscale", "mscale_all_dim")
    kept = fixed.model_copy(update={name: getattr(scaling, name) for name in free})
    if scaling != kept:
        told = kept.model_dump(exclude_none=True, exclude={"factor"})
        sentence = f"{scaling.form}: its numbers beside the factor are {told}"
        check = "megatron/core/models/common/embeddings"
        yield Refusal("model.details.rope_scaling", sentence, check)


def model_settings(model: Model) -> Iterator[Setting]:
    """Yield the fields of Megatron Core that say a model."""
    yield Setting("num_layers", model.n_layers, "model.n_layers")
    if model.mtp_layers:
        yield Setting("mtp_num_layers", model.mtp_layers, "model.mtp_layers")
    yield Setting("hidden_size", model.d_model, "model.d_model")
    yield Setting("ffn_hidden_size", model.d_ff, "model.d_ff")
    yield Setting("num_attention_heads", model.n_heads, "model.n_heads")
    if model.mla is not None:
        yield from _latent_settings(model.mla)
    else:
        yield Setting("kv_channels", model.head_dim, "model.head_dim")
        if model.n_kv_heads != model.n_heads:
            yield Setting("num_query_groups", model.n_kv_heads, "model.n_kv_heads")
    yield Setting("gated_linear_unit", model.gated_mlp, "model.gated_mlp")
    function = activation(model)
    yield Setting("activation_func", function, "model.details.activation")
    norm = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[model.norm]
    yield Setting("normalization", norm, "model.norm")
    if (epsilon := model.details.norm_eps) is not None:
        yield Setting("layernorm_epsilon", epsilon, "model.details.norm_eps")
    why = "model.qk_norm" if model.mla is None else "of model.mla's latent vectors"
    yield Setting("qk_layernorm", model.qk_norm or model.mla is not None, why)
    yield Setting("add_bias_linear", model.bias == "all", f"model.bias {model.bias}")
    yield Setting("add_qkv_bias", model.bias == "qkv", f"model.bias {model.bias}")
    name = "share_embeddings_and_output_weights"
    yield Setting(name, model.tied_embeddings, "model.tied_embeddings")
    yield from _position_settings(model)
    share = 0.1 if model.dropout else 0.0
    for name in ("attention_dropout", "hidden_dropout"):
        yield Setting(name, share, "model.dropout; 0.1 is Megatron-LM's default")
    if model.moe is not None:
        yield from _expert_settings(model.moe, model.details, model.n_layers)


def activation(model: Model) -> str:
    """Return the function between the matmuls of an MLP."""
    return model.details.activation or ("silu" if model.gated_mlp else "gelu")


def _latent_settings(mla: LatentAttention) -> Iterator[Setting]:
    yield Setting("multi_latent_attention", True, "model.mla")
    yield Setting("q_lora_rank", mla.q_rank or None, "model.mla.q_rank")
    yield Setting("kv_lora_rank", mla.kv_rank, "model.mla.kv_rank")
    yield Setting("qk_head_dim", mla.nope_dim, "model.mla.nope_dim")
    yield Setting("qk_pos_emb_head_dim", mla.rope_dim, "model.mla.rope_dim")
    yield Setting("v_head_dim", mla.v_dim, "model.mla.v_dim")


def _position_settings(model: Model) -> Iterator[Setting]:
    details, scaling = model.details, model.details.rope_scaling
    kind = "learned_absolute" if model.learned_positions else "rope"
    yield Setting("position_embedding_type", kind, "model.learned_positions")
    if model.learned_positions:
        return
    why = "model.details.rope_scaling"
    yield Setting("rotary_base", round(details.rope_theta), "model.details.rope_theta")
    if details.rope_share != 1:
        share = details.rope_share
        yield Setting("rotary_percent", share, "model.details.rope_share")
    if model.mla is not None:
        form = "rope" if scaling is None else scaling.form
        yield Setting("rope_type", form, f"{why}; yarn is the default of providers")
        if scaling is not None:
            yield Setting("rotary_scaling_factor", scaling.factor, why)
            for name in ("mscale", "mscale_all_dim"):
                if (scale := getattr(scaling, name)) is not None:
                    yield Setting(name, scale, why)
    elif scaling is not None:
        yield Setting("rope_scaling", True, why)
        yield Setting("rope_scaling_factor", scaling.factor, why)


def _expert_settings(
    moe: Experts, details: Details, n_layers: int
) -> Iterator[Setting]:
    yield Setting("num_moe_experts", moe.n_experts, "model.moe.n_experts")
    yield Setting("moe_router_topk", moe.top_k, "model.moe.top_k")
    if moe.route_groups > 1:
        name = "moe_router_num_groups"
        yield Setting(name, moe.route_groups, "model.moe.route_groups")
        name = "moe_router_group_topk"
        yield Setting(name, moe.groups_per_token, "model.moe.groups_per_token")
    yield Setting("moe_ffn_hidden_size", moe.d_ff, "model.moe.d_ff")
    if moe.shared_d_ff:
        name = "moe_shared_expert_intermediate_size"
        yield Setting(name, moe.shared_d_ff, "model.moe.shared_d_ff, all of them")
    if dense := moe.first_dense_layers:
        pattern = [0] * dense + [1] * (n_layers - dense)
        yield Setting("moe_layer_freq", pattern, "model.moe.first_dense_layers")
    yield from _router_settings(moe, details)
    if moe.capacity_factor is not None:
        name = "moe_expert_capacity_factor"
        yield Setting(name, moe.capacity_factor, "model.moe.capacity_factor")
        yield Setting("moe_pad_expert_input_to_capacity", True, "padded places")
    yield Setting("moe_grouped_gemm", True, "experts of a GPU are one grouped matmul")
    yield Setting("moe_permute_fusion", True, "sorting tokens is one kernel")


def _router_settings(moe: Experts, details: Details) -> Iterator[Setting]:
    score = details.router_score or ("sigmoid" if moe.router_bias else "softmax")
    why = "model.details.router_score; a router's bias needs sigmoid"
    yield Setting("moe_router_score_function", score, why)
    is_before = score == "softmax" and not details.router_sums_to_one
    why = "model.details.router_sums_to_one false"
    yield Setting("moe_router_pre_softmax", is_before, why)
    if moe.router_bias:
        name = "moe_router_enable_expert_bias"
        yield Setting(name, True, "model.moe.router_bias")
    if details.router_scale != 1:
        name = "moe_router_topk_scaling_factor"
        yield Setting(name, details.router_scale, "model.details.router_scale")
    yield Setting("moe_router_dtype", "fp32", "scores of many experts need its digits")


ARGUMENTS = {
    "num_moe_experts": "--num-experts",
    "layernorm_epsilon": "--norm-epsilon",
    "rope_scaling": "--use-rope-scaling",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "microbatch_group_size_per_vp_stage":
        "--microbatch-group-size-per-virtual-pipeline-stage",
}  # fmt: skip
"""Arguments of Megatron-LM whose names are not those of the fields."""

INVERTED = {
    "add_bias_linear": "--disable-bias-linear",
    "share_embeddings_and_output_weights": "--untie-embeddings-and-output-weights",
}
"""Arguments that stand for a field that is false."""

UNSAID = ("gated_linear_unit", "pipeline_dtype", "cpu_offloading")
"""Fields that no argument sets: others decide them."""

FUNCTIONS = {(True, "silu"): "--swiglu", (False, "squared_relu"): "--squared-relu"}
"""Arguments for activations by whether they have a gate; none is for gelu."""


def model_arguments(model: Model) -> Iterator[Setting]:
    """Yield the arguments of Megatron-LM that say a model."""
    for setting in model_settings(model):
        yield from as_arguments(setting, model)
    name = "--make-vocab-size-divisible-by"
    yield Setting(name, VOCABULARY_MULTIPLE, "as its memory is counted")


def as_arguments(setting: Setting, model: Model) -> Iterator[Setting]:
    """Yield the arguments of Megatron-LM that set a field of Megatron Core."""
    name, value, why = setting.name, setting.value, setting.why
    argument = ARGUMENTS.get(name, "--" + name.replace("_", "-"))
    if name in INVERTED:
        if not value:
            yield Setting(INVERTED[name], why=why)
    elif name == "activation_func":
        if found := FUNCTIONS.get((model.gated_mlp, value)):
            yield Setting(found, why=why)
    elif name == "moe_layer_freq":
        dense = value.count(0)
        yield Setting(argument, f"([0]*{dense}+[1]*{len(value) - dense})", why)
    elif name not in UNSAID and value is not None and value is not False:
        if name == "num_query_groups":
            yield Setting("--group-query-attention", why="fewer KV heads than heads")
        words = tuple(value) if isinstance(value, list) else value
        yield Setting(argument, None if value is True else words, why)


def activation_notes(model: Model) -> Iterator[str]:
    """Yield the activation that no argument of Megatron-LM names."""
    function = activation(model)
    if (model.gated_mlp, function) not in {*FUNCTIONS, (False, "gelu")}:
        gate = "gated " * model.gated_mlp
        yield (
            f"The MLP is {gate}{function}, which no argument names: set "
            "`activation_func` and `gated_linear_unit` in your model's configuration."
        )
