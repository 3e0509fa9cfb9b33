"""Exact parameters and FLOPs of a decoder-only transformer.

Functions that take the tensor-parallel degree as a column return what one GPU of the
group holds; with tp = 1 that is the whole. Routed experts are split only by the
expert-parallel degree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.spec.model import Model

ONE = np.ones(1, dtype=np.int64)


class Held(NamedTuple):
    """Parameters, by how a tensor-parallel group splits them."""

    split: int
    kv: int
    """Split over as many GPUs of the group as there are key and value heads."""
    whole: int

    def on_one_gpu(self, model: Model, tp: Ints) -> Floats:
        """Return the number of parameters on one GPU."""
        return self.split / tp + self.kv / kv_shards(model, tp) + self.whole


def query_width(model: Model) -> int:
    """Return the width of all query heads together."""
    return model.n_heads * model.head_dim


def kv_width(model: Model) -> int:
    """Return the width of all key heads together."""
    return model.n_kv_heads * model.head_dim


def value_dim(model: Model) -> int:
    """Return the width of a value head: that of a key head, except with latents."""
    return model.head_dim if model.mla is None else model.mla.v_dim


def value_width(model: Model) -> int:
    """Return the width of all value heads together."""
    return model.n_kv_heads * value_dim(model)


def output_width(model: Model) -> int:
    """Return the width of the output of attention, before its last projection."""
    return model.n_heads * value_dim(model)


def kv_shards(model: Model, tp: Ints) -> Ints:
    """Return over how many GPUs key and value heads are split before they repeat."""
    return np.minimum(tp, model.n_kv_heads)


def mlp_inputs(model: Model) -> int:
    """Return how many matrices of an MLP read its input: two with a gate."""
    return 2 if model.gated_mlp else 1


def layer_params(model: Model, tp: Ints) -> Floats:
    """Return the parameters on one GPU of one repeated layer without routed experts.

    Column-parallel matrices and their biases are split; row-parallel biases, norms and
    the router are whole (Shoeybi et al. 2019, section 3).
    """
    if model.moe is None:
        return dense_layer_params(model, tp)
    router = model.moe.n_experts * (model.d_model + model.moe.router_bias)
    shared = _mlp_params(model, model.moe.shared_d_ff).on_one_gpu(model, tp)
    return _outside_mlp(model, tp) + shared + router


def dense_layer_params(model: Model, tp: Ints) -> Floats:
    """Return the parameters on one GPU of one leading dense layer."""
    return _outside_mlp(model, tp) + dense_mlp_params(model, tp)


def dense_mlp_params(model: Model, tp: Ints) -> Floats:
    """Return the parameters on one GPU of the MLP of a layer without experts."""
    return _mlp_params(model, model.d_ff).on_one_gpu(model, tp)


def matrix_params(model: Model, tp: Ints, is_dense: bool) -> Floats:
    """Return the parameters of a layer's matrices on one GPU, without routed experts.

    That is all but norms and biases.
    """
    moe = None if is_dense else model.moe
    inner = model.d_ff if moe is None else moe.shared_d_ff
    mlp = _mlp_matmul_params(model, inner) / tp
    router = 0 if moe is None else moe.n_experts * model.d_model
    return attention_matrices(model).on_one_gpu(model, tp) + mlp + router


def expert_params(model: Model, ep: Ints) -> Floats:
    """Return the parameters of one layer's routed experts on one GPU."""
    if model.moe is None:
        return np.zeros(len(ep))
    return float(model.moe.n_experts * one_expert_params(model)) / ep


def one_expert_params(model: Model) -> int:
    """Return the parameters of one routed expert, 0 without experts."""
    return 0 if model.moe is None else sum(_mlp_params(model, model.moe.d_ff))


def _mlp_params(model: Model, inner: int) -> Held:
    """Return the parameters of an MLP; an inner width of 0 means no MLP."""
    inputs, has_bias = mlp_inputs(model), model.bias == "all" and inner > 0
    split = (inputs + 1) * model.d_model * inner + has_bias * inputs * inner
    return Held(split, 0, has_bias * model.d_model)


def _outside_mlp(model: Model, tp: Ints) -> Floats:
    """Return the parameters of attention and of the layer's norms on one GPU."""
    norms = model.norms_per_layer * norm_params(model)
    matrices = attention_matrices(model).on_one_gpu(model, tp)
    return matrices + _attention_vectors(model).on_one_gpu(model, tp) + norms


def attention_matrices(model: Model) -> Held:
    """Return the weights of attention that take part in matmuls.

    Latent attention projects down to the latent vectors on every GPU of the group, and
    up from them to its heads (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1;
    whole down-projections as in Megatron-LM).
    """
    d, queries, output = model.d_model, query_width(model), output_width(model)
    if model.mla is None:
        return Held(d * queries + output * d, 2 * d * kv_width(model), 0)
    up = (model.mla.q_rank or d) * queries + model.mla.kv_rank * latent_up_width(model)
    down = d * (model.mla.q_rank + latent_down_width(model))
    return Held(up + output * d, 0, down)


def latent_down_width(model: Model) -> int:
    """Return the width of the latent vector of keys and values and the rotary key."""
    return 0 if model.mla is None else model.mla.kv_rank + model.mla.rope_dim


def latent_up_width(model: Model) -> int:
    """Return the width of keys and values projected up from that latent vector."""
    head = 0 if model.mla is None else model.mla.nope_dim + model.mla.v_dim
    return model.n_heads * head


def _attention_vectors(model: Model) -> Held:
    """Return the biases of attention, and the norms inside it."""
    has_bias = model.bias in ("qkv", "all")
    whole = (model.bias == "all") * model.d_model
    whole += model.qk_norm * 2 * _norm_params(model, model.head_dim)
    if model.mla is not None:
        whole += _norm_params(model, model.mla.q_rank + model.mla.kv_rank)
    return Held(has_bias * query_width(model), has_bias * 2 * kv_width(model), whole)


def norm_params(model: Model) -> int:
    """Return the parameters of one norm: a weight, and a bias in layer norm."""
    return _norm_params(model, model.d_model)


def _norm_params(model: Model, width: int) -> int:
    return width * (2 if model.norm == "layernorm" else 1)


def input_norms(model: Model) -> int:
    """Return how many norms of a layer feed a matmul.

    A single norm is shared. Of four norms two follow attention and MLP, and their
    results are only added to the residual stream (Gemma Team 2024, arXiv 2408.00118,
    section 2).
    """
    return min(model.norms_per_layer, 2)


def output_norms(model: Model) -> int:
    """Return how many norms of a layer follow attention or MLP."""
    return model.norms_per_layer - input_norms(model)


def embedding_params(model: Model, tp: Ints) -> Floats:
    """Return the parameters before the first layer on one GPU."""
    whole = model.learned_positions * model.d_model
    whole += model.embedding_norm * norm_params(model)
    return table_params(model, tp) + whole


def table_params(model: Model, tp: Ints) -> Floats:
    """Return the parameters of the embedding table, or of the head, on one GPU."""
    return model.vocab * model.d_model / tp


def head_params(model: Model, tp: Ints, pp: Ints) -> Floats:
    """Return the parameters after the last layer on one GPU: final norm and head.

    A tied head is the embedding table itself if both are on one stage, else a copy.
    """
    has_table = (pp > 1) | np.bool_(not model.tied_embeddings)
    return norm_params(model) + np.where(has_table, table_params(model, tp), 0.0)


def total_params(model: Model) -> int:
    """Return the parameters of the whole model."""
    leading = model.first_dense_layers
    repeating = layer_params(model, ONE) + expert_params(model, ONE)
    layers = leading * dense_layer_params(model, ONE)
    layers = layers + (model.n_layers - leading) * repeating
    ends = embedding_params(model, ONE) + head_params(model, ONE, ONE)
    return int((layers + ends)[0])


def active_params(model: Model) -> int:
    """Return the parameters that one token uses; of routed experts, top_k."""
    if model.moe is None:
        return total_params(model)
    idle = model.moe.n_experts - model.moe.top_k
    idle *= model.n_layers - model.first_dense_layers
    return total_params(model) - idle * one_expert_params(model)


def layer_matmul_params(model: Model) -> int:
    """Return the weights of one repeated layer in the matmuls of a token."""
    if model.moe is None:
        return dense_layer_matmul_params(model)
    inner = model.moe.top_k * model.moe.d_ff + model.moe.shared_d_ff
    router = model.d_model * model.moe.n_experts
    return sum(attention_matrices(model)) + router + _mlp_matmul_params(model, inner)


def dense_layer_matmul_params(model: Model) -> int:
    """Return the weights of one leading layer that take part in matmuls."""
    return sum(attention_matrices(model)) + _mlp_matmul_params(model, model.d_ff)


def _mlp_matmul_params(model: Model, inner: int) -> int:
    return (mlp_inputs(model) + 1) * model.d_model * inner


def step_flops(model: Model, seq_len: int, global_batch: int) -> float:
    """Return the model FLOPs of one step: no recomputation, causal attention once.

    They are 6 FLOPs per matmul weight and token, with head, router and top_k experts
    (Kaplan et al. 2020, table 1), and 3 x seq_len x (query width + output width) per
    layer and token for the half of the scores that a causal mask keeps (Korthikanti et
    al. 2022, appendix A, halved).
    """
    attention = model.n_layers * _attention_macs(model, seq_len)
    return 6.0 * (matmul_params(model) + attention) * seq_len * global_batch


def matmul_params(model: Model) -> int:
    """Return the weights in the matmuls of a token, with those of the head."""
    leading = model.first_dense_layers
    params = leading * dense_layer_matmul_params(model)
    params += (model.n_layers - leading) * layer_matmul_params(model)
    return params + model.vocab * model.d_model


def recomputed_flops(model: Model, seq_len: int, global_batch: int) -> float:
    """Return the FLOPs of one repeated layer's forward in a step."""
    macs = layer_matmul_params(model) + _attention_macs(model, seq_len)
    return 2.0 * macs * seq_len * global_batch


def _attention_macs(model: Model, seq_len: int) -> float:
    """Return the multiply-adds per layer and token in scores under a causal mask."""
    return seq_len * (query_width(model) + output_width(model)) / 2
