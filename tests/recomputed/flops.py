"""FLOPs of a step that the model needs: nothing recomputed, no pair that is masked."""

from __future__ import annotations

from tests.recomputed import lora, picked, texts
from tests.recomputed.case import Case


def step_flops(case: Case) -> float:
    """Six for every weight that a token's matmuls meet (Kaplan et al. 2020, table 1).

    And for every token and layer the products of its query with the keys and values
    before it, half of its text in the mean: forward once, backward twice.
    """
    tokens = case.training.global_batch * case.training.seq_len
    # Beside adapters, no weight of the model itself needs a gradient.
    each = 6.0 if case.training.lora is None else 4.0
    of_head = 6.0 if case.trains_ends else 4.0
    total = of_head * case.model.vocab * case.model.d_model
    for stage in case.stages:
        for is_leading in case.layers(stage):
            dense = case.is_dense(is_leading)
            total += each * (_attention(case) + _mlp(case, dense))
            for pair in lora.pairs(case, dense):
                total += 6.0 * pair.rank * (pair.inputs + pair.outputs)
            total += 6.0 * _scores(case) / 2
    for _ in range(case.model.mtp_layers):
        dense, width = case.is_dense(False), case.model.d_model
        weights = _attention(case) + _mlp(case, dense) + 2 * width * width
        total += 6.0 * (weights + case.model.vocab * width + _scores(case) / 2)
    return total * tokens


def _attention(case: Case) -> int:
    model, d, heads = case.model, case.model.d_model, case.model.n_heads
    mla = model.mla
    if mla is None:
        return d * model.head_dim * (heads + 2 * model.n_kv_heads + heads)
    key = mla.nope_dim + mla.rope_dim
    queries = d * mla.q_rank + mla.q_rank * heads * key
    if not mla.q_rank:
        queries = d * heads * key
    down = d * (mla.kv_rank + mla.rope_dim)
    up = mla.kv_rank * heads * (mla.nope_dim + mla.v_dim)
    total = queries + down + up + heads * mla.v_dim * d
    if (found := mla.indexer) is not None:
        total += mla.q_rank * found.n_heads * found.head_dim
        total += d * found.head_dim + d * found.n_heads
    return total


def _mlp(case: Case, is_dense: bool) -> int:
    model, moe = case.model, case.model.moe
    matrices = 3 if model.gated_mlp else 2
    if is_dense or moe is None:
        return matrices * model.d_model * model.d_ff
    inner = moe.top_k * moe.d_ff + moe.shared_d_ff
    return matrices * model.d_model * inner + model.d_model * moe.n_experts


def _scores(case: Case) -> float:
    model = case.model
    value_dim = model.mla.v_dim if model.mla is not None else model.head_dim
    each = model.n_heads * (model.head_dim + value_dim)
    if picked.has_one(case):
        picking = picked.Picking(case)
        indexed = picking.indexer.n_heads * picking.indexer.head_dim
        return 2 * picking.seen() * each + texts.seen(case) * indexed
    return texts.seen(case) * each
