"""Parameters and FLOPs of a layer, and of the ends, of a decoder-only transformer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.spec.model import Model
from meshwright.spec.model_parts import Experts, StateSpace


def state_space_matrix_params(mixer: StateSpace, d_model: int) -> int:
    """Return the weights of the two projections, in and out."""
    return d_model * (mixer.input_width + mixer.inner)


def state_space_vector_params(mixer: StateSpace) -> int:
    """Return the other parameters: convolution, decays, and the norm of the output.

    Mamba-2 has a decay, a bias of the step and a skip per head, and a norm over all
    heads; a delta net has the first two, and a norm over one head.
    """
    convolution = mixer.conv_width * (mixer.conv + mixer.conv_bias)
    if mixer.form == "mamba2":
        return convolution + 3 * mixer.n_heads + mixer.inner
    return convolution + 2 * mixer.n_heads + mixer.head_dim


def scan_macs(mixer: StateSpace, is_causal: bool) -> float:
    """Return the multiply-adds per token between the projections.

    Inside a chunk of Q tokens scores are C B, (Q x N) per group, and results scores
    times x, (Q x P) per head; between chunks states are B x, and results C times states
    (Dao and Gu 2024, arXiv 2405.21060, section 6). A delta net also multiplies keys
    with keys, and the inverse of what it gets with keys and values (Yang et al. 2024,
    arXiv 2412.06464, section 3.3; its heads each have keys). With `is_causal` a token
    sees half a chunk, which is what the mathematics needs; kernels compute all of it.
    """
    seen = mixer.chunk / 2 if is_causal else float(mixer.chunk)
    heads, state, width = mixer.n_heads, mixer.state_dim, mixer.head_dim
    states = 2 * heads * width * state
    convolution = mixer.conv * mixer.conv_width
    if mixer.form == "mamba2":
        inside = seen * (mixer.groups * state + heads * width)
    else:
        inside = seen * heads * (3 * state + 2 * width)
    return inside + states + convolution


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
    moe = model.moe
    router = moe.n_experts * (model.d_model + moe.router_bias)
    whole = router + model.d_model * (moe.shared_gate + moe.own_norms)
    whole += 2 * model.d_model * moe.latent_d
    shared = _mlp_params(model, moe.shared_d_ff).on_one_gpu(model, tp)
    return _outside_mlp(model, tp) + shared + whole


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
    mlp = (mlp_inputs(model) + 1) * model.d_model * inner / tp
    router = 0
    if moe is not None:
        router = model.d_model * (moe.n_experts + moe.shared_gate + 2 * moe.latent_d)
    return attention_matrices(model).on_one_gpu(model, tp) + mlp + router


def expert_params(model: Model, gpus: Ints) -> Floats:
    """Return the parameters of one layer's routed experts on one of `gpus` GPUs."""
    if model.moe is None:
        return np.zeros(len(gpus))
    return float(model.moe.n_experts * one_expert_params(model)) / gpus


def one_expert_params(model: Model) -> int:
    """Return the parameters of one routed expert, 0 without experts."""
    if model.moe is None:
        return 0
    return sum(_mlp_params(model, model.moe.d_ff, expert_width(model, model.moe)))


def expert_width(model: Model, moe: Experts) -> int:
    """Return the width of what a routed expert reads and writes."""
    return moe.latent_d or model.d_model


def _mlp_params(model: Model, inner: int, width: int | None = None) -> Held:
    """Return the parameters of an MLP; an inner width of 0 means no MLP.

    It reads and writes vectors of `width`, those of the residual stream by default.
    """
    width = width or model.d_model
    inputs, has_bias = mlp_inputs(model), model.has_mlp_bias and inner > 0
    split = (inputs + 1) * width * inner + has_bias * inputs * inner
    return Held(split, 0, has_bias * width)


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
    if model.mixer != "attention":
        return Held(_state_space_matrices(model), 0, 0)
    if model.mla is None:
        gate = d * queries * model.output_gate
        return Held(d * queries + gate + output * d, d * kv_projected(model), 0)
    up = (model.mla.q_rank or d) * queries + model.mla.kv_rank * latent_up_width(model)
    down = d * (model.mla.q_rank + latent_down_width(model))
    return Held(up + output * d, 0, down + _indexer_matrices(model))


def kv_projected(model: Model) -> int:
    """Return the width of the keys and values that are projected from the input."""
    return kv_width(model) * (1 if model.keys_are_values else 2)


def _state_space_matrices(model: Model) -> int:
    """Return the weights of a mixer other than attention; 0 where there is none."""
    mixer = model.mixing_space
    return 0 if mixer is None else state_space_matrix_params(mixer, model.d_model)


def _indexer_matrices(model: Model) -> int:
    """Return the weights of the indexer, which every GPU of a group holds whole.

    They make queries, the key, and a weight of every head (transformers 5.23.0,
    models/deepseek_v32/modeling_deepseek_v32.py).
    """
    if model.mla is None or model.indexer is None:
        return 0
    heads, dim = model.indexer.n_heads, model.indexer.head_dim
    return model.mla.q_rank * heads * dim + model.d_model * (dim + heads)


def latent_down_width(model: Model) -> int:
    """Return the width of the latent vector of keys and values and the rotary key."""
    return 0 if model.mla is None else model.mla.kv_rank + model.mla.rope_dim


def latent_up_width(model: Model) -> int:
    """Return the width of keys and values projected up from that latent vector."""
    head = 0 if model.mla is None else model.mla.nope_dim + model.mla.v_dim
    return model.n_heads * head


def _attention_vectors(model: Model) -> Held:
    """Return the biases of attention, and the norms inside it."""
    if model.mixer != "attention":
        return _state_space_vectors(model)
    whole = model.has_output_bias * model.d_model
    whole += model.qk_norm * 2 * _norm_params(model, model.head_dim)
    if model.mla is not None:
        whole += _norm_params(model, model.mla.q_rank + model.mla.kv_rank)
        whole += 0 if model.indexer is None else 2 * model.indexer.head_dim
    split = model.has_query_bias * query_width(model) * (2 if model.output_gate else 1)
    split += model.attention_sinks * model.n_heads
    return Held(split, model.has_query_bias * kv_projected(model), whole)


def _state_space_vectors(model: Model) -> Held:
    mixer = model.mixing_space
    return Held(0 if mixer is None else state_space_vector_params(mixer), 0, 0)


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

    A head that is not tied is a table, and a stage apart from that of the embedding may
    have a copy of it (`Model.copies_embedding`).
    """
    tables = int(not model.tied_embeddings) + model.copies_embedding * (pp > 1)
    bias = model.head_bias * model.vocab / tp
    return norm_params(model) + bias + tables * table_params(model, tp)


MTP_NORMS = 3
"""Norms of a layer that predicts a further token beside those that all layers have: of
the stream, of the embedding beside it, and before the head."""


def mtp_projection_params(model: Model) -> int:
    """Return the parameters that join the stream with the embedding of a next token.

    They are a matrix from twice the width of the stream to it (DeepSeek-AI 2024,
    DeepSeek-V3 Technical Report, section 2.2, equation 21).
    """
    return 2 * model.d_model**2


def mtp_params(model: Model, tp: Ints) -> Floats:
    """Return the parameters of such a layer on one GPU, beside those of a layer."""
    return mtp_projection_params(model) / tp + MTP_NORMS * norm_params(model)
