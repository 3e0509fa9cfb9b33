"""Muon: Newton-Schulz iterations on whole matrices, five of three matmuls each.

Jordan et al. 2024; Liu et al. 2025, arXiv 2502.16982, section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.recomputed.case import Case
from tests.recomputed.machine import Machine
from tests.recomputed.ranks import expert_groups, group_size


class Part(NamedTuple):
    """What a rank of a tensor-parallel group has of a matrix."""

    out: float
    into: float
    is_routed: bool = False


def parts(case: Case, is_dense: bool) -> Iterator[Part]:
    model, tp, d = case.model, case.plan.tp, case.model.d_model
    heads, head, mla = model.n_heads, model.head_dim, case.model.mla
    if mla is None:
        yield Part(heads * head / tp, d)
        for _ in ("keys", "values"):
            yield Part(model.n_kv_heads * head / case.kv_shards, d)
        yield Part(d, heads * head / tp)
    else:
        if mla.q_rank:
            yield Part(mla.q_rank, d)
        yield Part(heads * (mla.nope_dim + mla.rope_dim) / tp, mla.q_rank or d)
        yield Part(mla.kv_rank + mla.rope_dim, d)
        yield Part(heads * (mla.nope_dim + mla.v_dim) / tp, mla.kv_rank)
        yield Part(d, heads * mla.v_dim / tp)
    moe = None if is_dense else model.moe
    inner = model.d_ff if moe is None else moe.shared_d_ff
    ins = 2 if model.gated_mlp else 1
    if inner:
        for _ in range(ins):
            yield Part(inner / tp, d)
        yield Part(d, inner / tp)
    if moe is None:
        return
    yield Part(moe.n_experts, d)
    width = moe.d_ff / case.plan.etp
    for _ in range(moe.n_experts // case.plan.ep):
        for _ in range(ins):
            yield Part(width, d, True)
        yield Part(d, width, True)


def layer_seconds(case: Case, is_dense: bool) -> float:
    return _seconds(case, parts(case, is_dense))


def joined_seconds(case: Case) -> float:
    """Of the matrix that joins the stream with the embedding of a further token."""
    width = case.model.d_model
    return _seconds(case, iter([Part(width / case.plan.tp, 2 * width)]))


def _seconds(case: Case, several: Iterator[Part]) -> float:
    """Of the update: who shares an optimizer has whole matrices, all as many."""
    if case.training.optimizer != "muon":
        return 0.0
    matmul, seconds = Machine(case).matmul, 0.0
    sharers = case.plan.cp * case.plan.dp_shard
    for part in several:
        of_it = sharers
        if part.is_routed:
            of_it = group_size(expert_groups(case)["expert_shard"])
        m, n = sorted((part.out, part.into))
        for _ in range(5):
            once_s = matmul(m, m, n) + matmul(m, m, m) + matmul(m, n, m)
            seconds += once_s / (of_it if case.plan.zero else 1)
    return seconds
