"""What a layer saves for its backward: its operations one after the other.

Korthikanti et al. 2022, section 4, for what every operation needs again; a kernel that
is fused saves what it reads. Bytes per token of a tensor-parallel group, on one rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.recomputed.case import GATHERING, Case


class Saved(NamedTuple):
    """One tensor: its bytes, and what is left of it if it is recomputed selectively."""

    plain: float
    kept: float


class Layer:
    """The operations of one layer, and how each of its tensors is held."""

    def __init__(self, case: Case) -> None:
        training = case.training
        default = "all" if case.spec.framework in ("megatron", "ideal") else "norms"
        self.case, self.model = case, case.model
        self.fused = training.fused_kernels or default
        self.is_flash = training.attention == "flash"
        # Layer norm is one kernel in PyTorch, RMSNorm may be several in fp32.
        self.has_fp32_norms = self.fused == "none" and self.model.norm == "rmsnorm"
        self.element = case.element
        # Transformer Engine saves the 8-bit copy of what only a matmul reads again.
        self.linear_input = 1 if case.keeps_fp8 else case.element

    def over_tensor_group(self, size: float) -> float:
        return size / self.case.plan.tp

    def over_kv_heads(self, size: float) -> float:
        return size / self.case.kv_shards

    def over_sequence(self, size: float) -> float:
        return size / self.case.sequence_shards

    def again(self, size: float) -> Saved:
        """After a flash kernel, what is cheap to run again; else it is kept."""
        return Saved(size, 0.0 if self.is_flash else size)

    def operations(self, is_dense: bool) -> Iterator[Saved]:
        yield from self.norms_before_matmuls()
        if self.model.mla is not None:
            yield from self.latent_projections()
        else:
            yield from self.projections()
        yield from self.scores()
        yield from self.norms_after()
        if is_dense:
            tokens = self.over_tensor_group
            yield from self.mlp(tokens(self.model.d_ff))
        else:
            yield from self.experts()
        if self.model.dropout:
            # One byte of a mask per number, after attention and after the MLP.
            for _ in ("attention", "mlp"):
                yield always(self.over_sequence(self.model.d_model))

    def norms_before_matmuls(self) -> Iterator[Saved]:
        count = min(self.model.norms_per_layer, 2)
        # Attention and MLP side by side read one and the same input.
        inputs = 1 if self.model.parallel_residual else count
        d = self.over_sequence(self.model.d_model)
        if not self.has_fp32_norms:
            yield always(inputs * self.element * d)
        else:
            # PyTorch operations: each norm casts its input, or one for all in fp32.
            casts = count if self.element < 4 else inputs
            start = inputs * self.element * d if self.is_flash else casts * 4 * d
            yield Saved(casts * 4 * d, start)
            yield self.again(count * 4 * d)
        for _ in range(count):
            yield self.again(self.linear_input * d)

    def norms_after(self) -> Iterator[Saved]:
        """Norms of what attention and MLP return, which is added and not saved."""
        for _ in range(self.model.norms_per_layer - 2):
            yield from self.norm(self.over_sequence(self.model.d_model))

    def norm(self, width: float) -> Iterator[Saved]:
        """A norm that no recomputation touches."""
        if not self.has_fp32_norms:
            yield always(self.element * width)
        else:
            yield always(4 * width)
            yield always(4 * width)

    def projections(self) -> Iterator[Saved]:
        model = self.model
        queries = self.over_tensor_group(model.n_heads * model.head_dim)
        keys = self.over_kv_heads(model.n_kv_heads * model.head_dim)
        yield always(self.element * queries)
        if self.is_flash or model.n_heads == model.n_kv_heads:
            gathered = self.case.plan.cp if self.case.spec.framework in GATHERING else 1
            yield always(self.element * keys * 2 * gathered)
        else:
            # Plain attention repeats keys and values for every query head, from what
            # it must be given again where it is recomputed.
            yield Saved(0.0, self.element * keys * 2)
            yield Saved(self.element * queries * 2, 0.0)
        if model.qk_norm:
            yield from self.norm(queries)
            yield from self.norm(keys)
        yield self.attention_output(queries)

    def attention_output(self, width: float) -> Saved:
        """What the last matrix reads, and a flash kernel reads again for itself."""
        if not self.is_flash:
            return always(self.linear_input * width)
        cast = 1 if self.case.keeps_fp8 else 0
        return always((self.element + cast) * width)

    def latent_projections(self) -> Iterator[Saved]:
        """DeepSeek-AI 2024, section 2.1: latents by rank, heads by tensor group."""
        mla, heads, e = self.model.mla, self.model.n_heads, self.element
        assert mla is not None
        key = self.over_tensor_group(heads * (mla.nope_dim + mla.rope_dim))
        yield always(e * key)
        yield always(e * key)
        # Values come in one tensor with their keys, unless a kernel copies them out.
        beside = 0 if self.fused == "all" else mla.nope_dim
        yield always(e * self.over_tensor_group(heads * (mla.v_dim + beside)))
        yield self.attention_output(self.over_tensor_group(heads * mla.v_dim))
        for rank in (mla.q_rank, mla.kv_rank):
            yield from self.norm(self.over_sequence(rank))
            yield always(self.linear_input * self.over_sequence(rank))
        if not self.has_fp32_norms:
            # The rotary key lies in one tensor with what is normed; a cast copies.
            yield always(e * self.over_sequence(mla.rope_dim))

    def scores(self) -> Iterator[Saved]:
        heads = self.over_tensor_group(self.model.n_heads)
        if self.is_flash:
            yield always(4 * heads)
            return
        # A row of scores for every token and head; Korthikanti et al. recompute them.
        scores = heads * self.case.training.seq_len
        yield Saved(self.element * scores, 0.0)
        if self.model.dropout:
            yield Saved(self.element * scores, 0.0)
            yield Saved(scores, 0.0)

    def mlp(self, inner: float) -> Iterator[Saved]:
        inputs = 2 if self.model.gated_mlp else 1
        yield always(inputs * self.element * inner)
        if self.model.gated_mlp and self.fused != "all":
            yield self.again(self.element * inner)  # the activated gate
        yield self.again(self.linear_input * inner)

    def experts(self) -> Iterator[Saved]:
        """Routed copies stay on the rank whose tokens they are; so many come as go."""
        moe = self.model.moe
        assert moe is not None
        yield always(self.over_sequence(4 * moe.n_experts))
        copies = self.over_sequence(self.case.copies_per_token)
        yield always(self.linear_input * copies * self.model.d_model)
        yield from self.mlp(copies * moe.d_ff)
        yield from self.mlp(self.over_tensor_group(moe.shared_d_ff))
        if self.fused != "all":
            # Results are weighted by the router in fp32.
            yield always(4 * copies * self.model.d_model)


def always(size: float) -> Saved:
    return Saved(size, size)


def layer_bytes(case: Case, is_dense: bool) -> Saved:
    """What a micro-batch leaves in a layer, and what of it is left recomputed."""
    saved = kept = 0.0
    for tensor in Layer(case).operations(is_dense):
        saved += tensor.plain * case.tokens
        kept += tensor.kept * case.tokens
    if case.plan.recompute == "none":
        kept = saved
    elif case.plan.recompute == "full":
        kept = case.model.d_model * case.element * case.own_tokens
    return Saved(saved, kept)
