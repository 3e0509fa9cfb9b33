"""Recomputation by operations, as torchtitan's SelectiveAC does it.

Of `aten.mm` every second result is kept; of `aten.addmm`, which has a bias, all are.
Grouped matmuls of experts and the router's have other names, or are excepted. Bytes and
seconds on one rank.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.recomputed import ranks
from tests.recomputed.case import Case


class Weight(NamedTuple):
    """A weight in the order of use: its widths on a rank, and whose tokens it sees."""

    reads: float
    writes: float
    tokens: float
    """Of the tensor group, or its own, per token of the group."""
    is_row: bool = False
    """Whether its results are summed over the tensor group."""
    has_bias: bool = False


def weights(case: Case, is_dense: bool) -> list[Weight]:
    model, tp, d = case.model, case.plan.tp, case.model.d_model
    this = 1 / case.sequence_shards
    heads = model.n_heads / tp
    found = []
    if model.mla is not None:
        mla = model.mla
        queries = heads * (mla.nope_dim + mla.rope_dim)
        if mla.q_rank:
            found.append(Weight(d, mla.q_rank, this))
        found.append(Weight(mla.q_rank or d, queries, 1))
        found.append(Weight(d, mla.kv_rank + mla.rope_dim, this))
        found.append(Weight(mla.kv_rank, heads * (mla.nope_dim + mla.v_dim), 1))
        found.append(Weight(heads * mla.v_dim, d, 1, is_row=True))
    else:
        kv_heads = model.n_kv_heads / case.kv_shards
        qkv = (heads + 2 * kv_heads) * model.head_dim
        has_bias = model.bias in ("all", "attention")
        found.append(Weight(d, qkv, 1, has_bias=has_bias or model.bias == "qkv"))
        result = heads * model.head_dim
        found.append(Weight(result, d, 1, is_row=True, has_bias=has_bias))
    inner = model.d_ff if is_dense or model.moe is None else model.moe.shared_d_ff
    if inner:
        has_bias = model.bias in ("all", "mlp")
        for _ in range(2 if model.gated_mlp else 1):
            found.append(Weight(d, inner / tp, 1, has_bias=has_bias))
        found.append(Weight(inner / tp, d, 1, is_row=True, has_bias=has_bias))
    return found


def _are_kept(weights: list[Weight]) -> list[bool]:
    """The first, third, fifth ... `mm` of a layer, in any precision, and all others."""
    found, count = [], 0
    for weight in weights:
        count += not weight.has_bias
        found.append(weight.has_bias or count % 2 == 1)
    return found


def kept(case: Case, is_dense: bool) -> float:
    """Bytes per token of the group that are saved beside attention's."""
    numbers, d = case.model.d_model / case.sequence_shards, case.model.d_model
    every = weights(case, is_dense)
    for weight, is_kept in zip(every, _are_kept(every), strict=True):
        if is_kept:
            numbers += weight.writes * weight.tokens
        if weight.is_row and case.plan.tp > 1:
            numbers += d / case.sequence_shards
    if case.model.moe is not None and not is_dense and case.experts_exchange:
        numbers += (_arrived(case) + _returned(case)) * d / case.sequence_shards
    return numbers * case.stream


def _arrived(case: Case) -> float:
    """Tokens that come to the fullest rank, per token of its own.

    DeepEP sends a token once to each rank with one or more experts of it.
    """
    copies, moe = case.copies_on_the_fullest, case.model.moe
    assert moe is not None
    if case.training.expert_dispatch == "deepep":
        on_rank = moe.n_experts // case.plan.ep
        every = ranks.choices(moe)
        met = [len({expert // on_rank for expert in one}) for one in every]
        copies *= sum(met) / len(met) / case.copies_per_token
    return case.plan.etp * copies


def _returned(case: Case) -> float:
    """Results that come back, per token; DeepEP adds up those of a token."""
    if case.training.expert_dispatch == "deepep":
        return 1.0
    return case.plan.etp * case.copies_on_the_fullest


def again(case: Case, is_dense: bool) -> list[tuple[float, float, float]]:
    """Rows, columns and depth of the matmuls that run again."""
    every = weights(case, is_dense)
    return [
        (weight.tokens * case.tokens, weight.writes, weight.reads)
        for weight, is_kept in zip(every, _are_kept(every), strict=True)
        if not is_kept
    ]
