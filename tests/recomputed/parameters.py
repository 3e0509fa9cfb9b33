"""Every matrix and vector of the model, one by one, and who holds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from meshwright.spec.model import Model
from tests.recomputed import lora
from tests.recomputed.case import Case
from tests.recomputed.ranks import expert_groups, group_size
from tests.recomputed.state import State

Split = Literal["tp", "kv", "whole", "ep"]
"""Over all of a tensor-parallel group, over as many as there are key heads, held by
every rank of it, or by experts over their own group."""


class Tensor(NamedTuple):
    """Some of the model's parameters."""

    numbers: int
    split: Split
    is_vector: bool = False
    """Whether it is a norm or a bias."""


class Share(NamedTuple):
    """What one rank holds of a block before ZeRO, and who shards or repeats it."""

    numbers: float
    shard_group: str
    shards: int
    replica_group: str
    replicas: int
    state: State
    is_adapter: bool = False


def fixed_copy(case: Case, shares: list[Share]) -> list[Share]:
    """The same once more, in the shards of what is trained, where DPO compares both.

    Adapters are left away instead: the model without them is what it was.
    """
    kept = {"bf16": 2, "fp32": 4, "none": 0}[case.training.reference_model]
    if not kept or case.training.lora is not None:
        return []
    cast = 2 if kept == 4 and case.spec.framework == "fsdp" else 0
    state = State(kept, cast, 0, 0, 0, 0, 2, 0, False)
    return [share._replace(state=state) for share in shares]


def norm(model: Model, width: int) -> int:
    """A weight, and a bias where it is a layer norm."""
    return width + width * (model.norm == "layernorm")


def attention(model: Model) -> Iterator[Tensor]:
    d, heads, kv_heads = model.d_model, model.n_heads, model.n_kv_heads
    if model.mla is not None:
        # DeepSeek-AI 2024, section 2.1: down on every rank, up to its own heads.
        mla = model.mla
        key = mla.nope_dim + mla.rope_dim
        if mla.q_rank:
            yield Tensor(d * mla.q_rank, "whole")
            yield Tensor(norm(model, mla.q_rank), "whole", True)
        for _ in range(heads):
            yield Tensor((mla.q_rank or d) * key, "tp")
            yield Tensor(mla.kv_rank * mla.nope_dim, "tp")
            yield Tensor(mla.kv_rank * mla.v_dim, "tp")
            yield Tensor(mla.v_dim * d, "tp")
        yield Tensor(d * mla.kv_rank, "whole")
        yield Tensor(d * mla.rope_dim, "whole")
        yield Tensor(norm(model, mla.kv_rank), "whole", True)
        if (found := mla.indexer) is not None:
            for _ in range(found.n_heads):
                yield Tensor(mla.q_rank * found.head_dim, "whole")
                yield Tensor(d, "whole")
            yield Tensor(d * found.head_dim, "whole")
            yield Tensor(found.head_dim + found.head_dim, "whole", True)
        return
    for _ in range(heads):
        yield Tensor(d * model.head_dim, "tp")
        yield Tensor(model.head_dim * d, "tp")
        if model.bias != "none":
            yield Tensor(model.head_dim, "tp", True)
    for _ in range(2 * kv_heads):
        yield Tensor(d * model.head_dim, "kv")
        if model.bias != "none":
            yield Tensor(model.head_dim, "kv", True)
    if model.bias == "all":
        yield Tensor(d, "whole", True)
    if model.qk_norm:
        yield Tensor(norm(model, model.head_dim), "whole", True)
        yield Tensor(norm(model, model.head_dim), "whole", True)


def mlp(model: Model, inner: int) -> Iterator[Tensor]:
    if not inner:
        return
    for _ in ("up", "gate") if model.gated_mlp else ("up",):
        yield Tensor(model.d_model * inner, "tp")
        if model.bias == "all":
            yield Tensor(inner, "tp", True)
    yield Tensor(inner * model.d_model, "tp")
    if model.bias == "all":
        # A row-parallel bias is added after the sum: each rank has all of it.
        yield Tensor(model.d_model, "whole", True)


def mlp_numbers(model: Model, inner: int, tp: int) -> float:
    """How many parameters of an MLP one rank of a tensor-parallel group holds."""
    return sum(
        part.numbers / (tp if part.split == "tp" else 1) for part in mlp(model, inner)
    )


def layer(model: Model, is_dense: bool) -> Iterator[Tensor]:
    yield from attention(model)
    for _ in range(model.norms_per_layer):
        yield Tensor(norm(model, model.d_model), "whole", True)
    moe = model.moe
    if is_dense or moe is None:
        yield from mlp(model, model.d_ff)
        return
    yield from mlp(model, moe.shared_d_ff)
    for _ in range(moe.n_experts):
        yield Tensor(model.d_model, "whole")  # its row of the router
        if moe.router_bias:
            yield Tensor(1, "whole", True)
        for part in mlp(model, moe.d_ff):
            yield Tensor(part.numbers, "ep")


def embedding(model: Model) -> Iterator[Tensor]:
    yield Tensor(model.vocab * model.d_model, "tp")
    yield Tensor(model.learned_positions * model.d_model, "whole")
    if model.embedding_norm:
        yield Tensor(norm(model, model.d_model), "whole")


def head(model: Model, stages: int) -> Iterator[Tensor]:
    yield Tensor(norm(model, model.d_model), "whole")
    # A tied head is the embedding itself where both are on one stage.
    if not model.tied_embeddings or stages > 1:
        yield Tensor(model.vocab * model.d_model, "tp")
    # What predicts further tokens looks them up where the head is.
    if model.mtp_layers and stages > 1 and not model.tied_embeddings:
        yield Tensor(model.vocab * model.d_model, "tp")


def further(model: Model) -> Iterator[Tensor]:
    """A layer that predicts one token more (DeepSeek-AI 2024, section 2.2)."""
    yield from layer(model, is_dense=model.moe is None)
    for _ in ("stream", "embedding"):
        yield Tensor(model.d_model * model.d_model, "tp")
    for _ in ("stream", "embedding", "before the head"):
        yield Tensor(norm(model, model.d_model), "whole", True)


def adapters(case: Case, is_dense: bool) -> Iterator[Tensor]:
    """A and B beside every matrix that LoRA names; the other of both is whole."""
    for pair in lora.pairs(case, is_dense):
        split: Split = "tp" if pair.reads_parts else "whole"
        yield Tensor(pair.rank * pair.inputs, split)
        yield Tensor(pair.outputs * pair.rank, pair.split)


def on_one_rank(case: Case, tensors: Iterator[Tensor], state: State) -> list[Share]:
    """The parameters that a rank holds of some tensors; experts have own groups."""
    plan = case.plan
    parts = {"tp": plan.tp, "kv": case.kv_shards, "whole": 1, "ep": plan.ep * plan.etp}
    common = experts = 0.0
    for tensor in tensors:
        if tensor.split == "ep":
            experts += tensor.numbers / parts["ep"]
        else:
            common += tensor.numbers / parts[tensor.split]
    shards = plan.cp * plan.dp_shard
    names = "dp_shard", "dp_replicate"
    shares = [Share(common, names[0], shards, names[1], plan.dp_replicate, state)]
    if experts:
        groups = expert_groups(case)
        names = "expert_shard", "expert_replicate"
        shards, replicas = (group_size(groups[name]) for name in names)
        shares.append(Share(experts, names[0], shards, names[1], replicas, state))
    return shares
