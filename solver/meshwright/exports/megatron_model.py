"""A model in the arguments of Megatron-LM's `pretrain_gpt.py`."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.exports.files import Setting
from meshwright.exports.layer_refusals import layer_refusals
from meshwright.exports.refusals import Refusal
from meshwright.spec.model import Model
from meshwright.spec.model_parts import Experts, LatentAttention

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
