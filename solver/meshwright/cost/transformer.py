"""Parameters and FLOPs of a dense, decoder-only transformer, exactly.

Every function takes the tensor-parallel degree as a column and returns what one GPU
of a tensor-parallel group holds; with tp = 1 that is the whole.
"""

from __future__ import annotations

import numpy as np

from meshwright.cost.arrays import Floats, Ints
from meshwright.spec.model import Model

ONE = np.ones(1, dtype=np.int64)


def query_width(model: Model) -> int:
    """Return the width of all query heads together."""
    return model.n_heads * model.head_dim


def kv_width(model: Model) -> int:
    """Return the width of all key heads together; the value heads have the same."""
    return model.n_kv_heads * model.head_dim


def kv_shards(model: Model, tp: Ints) -> Ints:
    """Return over how many GPUs key and value heads are split; then they repeat."""
    return np.minimum(tp, model.n_kv_heads)


def layer_params(model: Model, tp: Ints) -> Floats:
    """Return the parameters of one layer on one GPU.

    Column-parallel matrices and their biases are split, row-parallel biases and norms
    are whole (Shoeybi et al. 2019, section 3).
    """
    d, q, kv, ff = model.d_model, query_width(model), kv_width(model), model.d_ff
    in_matrices = 2 if model.gated_mlp else 1
    qkv_bias = model.bias in ("qkv", "all")
    all_bias = model.bias == "all"
    split = d * q + q * d + (in_matrices + 1) * d * ff
    split += qkv_bias * q + all_bias * in_matrices * ff
    kv_split = 2 * (d * kv + qkv_bias * kv)
    whole = model.norms_per_layer * norm_params(model) + all_bias * 2 * d
    return split / tp + kv_split / kv_shards(model, tp) + whole


def norm_params(model: Model) -> int:
    """Return the parameters of one norm: a weight, and a bias in layer norm."""
    return model.d_model * (2 if model.norm == "layernorm" else 1)


def input_norms(model: Model) -> int:
    """Return how many norms of a layer feed a matmul: one is shared, four pair up.

    Of four norms two follow attention and MLP: what they put out is only added to the
    residual stream (Gemma Team 2024, arXiv 2408.00118, section 2).
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

    A tied head is the embedding table itself where both stand on one stage, and a
    copy of it where they do not.
    """
    is_own = (pp > 1) | np.bool_(not model.tied_embeddings)
    return norm_params(model) + np.where(is_own, table_params(model, tp), 0.0)


def total_params(model: Model) -> int:
    """Return the parameters of the whole model."""
    ends = embedding_params(model, ONE) + head_params(model, ONE, ONE)
    return int((model.n_layers * layer_params(model, ONE) + ends)[0])


def layer_matmul_params(model: Model) -> int:
    """Return the weights of one layer that take part in matmuls."""
    d, q, kv = model.d_model, query_width(model), kv_width(model)
    return d * (2 * q + 2 * kv) + (3 if model.gated_mlp else 2) * d * model.d_ff


def step_flops(model: Model, seq_len: int, global_batch: int) -> float:
    """Return the model FLOPs of one step: no recomputation, causal attention once.

    6 FLOPs per matmul weight and token, head included (Kaplan et al. 2020, table 1),
    and 6 x seq_len x query width per layer and token for the half of the scores that
    a causal mask keeps (Korthikanti et al. 2022, appendix A, halved).
    """
    matmul = model.n_layers * layer_matmul_params(model) + model.vocab * model.d_model
    attention = model.n_layers * seq_len * query_width(model)
    return 6.0 * (matmul + attention) * seq_len * global_batch


def expert_params(model: Model, ep: Ints) -> Floats:
    """Stub."""
    if model.moe is None:
        return np.zeros(len(ep))
    return model.moe.n_experts / ep * 3 * model.d_model * model.moe.d_ff


def dense_layer_params(model: Model, tp: Ints) -> Floats:
    """Stub."""
    return layer_params(model, tp)
