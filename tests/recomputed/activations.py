"""What a layer saves for its backward: its operations one after the other.

Korthikanti et al. 2022, section 4, for what every operation needs again; a kernel that
is fused saves what it reads. Bytes per token of a tensor-parallel group, on one rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.recomputed import by_ops, lora
from tests.recomputed.case import Case


class Saved(NamedTuple):
    """One tensor: its bytes, who frees it, and what is left of it then."""

    plain: float
    freed_by: tuple[str, ...] = ()
    left: float = 0.0


BY_OPS = "by operations"


class Layer:
    """The operations of one layer, and how each of its tensors is held."""

    def __init__(self, case: Case) -> None:
        training = case.training
        self.case, self.model = case, case.model
        self.fused = case.fused
        self.is_flash = training.attention != "plain"
        # Layer norm is one kernel in PyTorch, RMSNorm may be several in fp32.
        self.has_fp32_norms = "norm" not in self.fused and self.model.norm == "rmsnorm"
        self.element = case.stream
        self.adapted = lora.named(case)
        self.lora = training.lora
        self.is_frozen = training.lora is not None
        # After a flash kernel, norms and activations are cheap; else the core is.
        self.cheap = ("cheap",) if self.is_flash else ()
        self.core = ("core_attn", BY_OPS) + (() if self.is_flash else ("cheap",))
        # FlexAttention is compiled alone: it hands back what its backward reads.
        is_alone = self.case.spec.framework == "torchtitan" and not training.compile
        self.is_flex = is_alone and training.attention == "flash"
        self.read = () if self.is_flex else (BY_OPS,)

    def linear_input(self, *matrices: str) -> int:
        """Bytes of a number that matrices read again for their gradients.

        Transformer Engine saves the 8-bit copy of what only a matmul reads again. A
        frozen matrix reads nothing; an adapter beside it was given 16 bits.
        """
        if self.lora is not None:
            # An adapter with dropout reads another tensor.
            reads = bool(self.adapted & {*matrices}) and not self.lora.dropout
            if not self.lora.keeps_inputs:
                return self.element if reads else 0
            return 2 * self.element if self.lora.keeps_graph else self.element
        return 1 if self.case.keeps_fp8_inputs else self.element

    def over_tensor_group(self, size: float) -> float:
        return size / self.case.plan.tp

    def over_kv_heads(self, size: float) -> float:
        return size / self.case.kv_shards

    def over_sequence(self, size: float) -> float:
        return size / self.case.sequence_shards

    def operations(self, is_dense: bool) -> Iterator[Saved]:
        yield from self.norms_before_matmuls(is_dense)
        if self.model.mla is not None and self.model.mla.indexer is not None:
            yield from self.picked_projections()
        elif self.model.mla is not None:
            yield from self.latent_projections()
        else:
            yield from self.projections()
        yield from self.scores()
        yield from self.norms_after()
        if is_dense:
            tokens = self.over_tensor_group
            # Of an MLP that is cut only one part is there, in its own backward.
            parts = self.case.training.mlp_chunks
            yield from self.mlp(tokens(self.model.d_ff) / parts, "mlp")
        else:
            yield from self.experts()
        if self.model.dropout:
            # One byte of a mask per number, after attention and after the MLP.
            for _ in ("attention", "mlp"):
                yield Saved(self.over_sequence(self.model.d_model), (BY_OPS,))
        for pair in lora.pairs(self.case, is_dense):
            # What A makes, and B reads again.
            small = self.element * pair.rank
            yield Saved(
                self.over_sequence(small) if pair.own_tokens else small, (BY_OPS,)
            )
            if self.lora and self.lora.dropout:
                # What A reads after dropout, and which numbers were dropped.
                read = pair.inputs * (self.element + 1)
                over = self.over_tensor_group if pair.reads_parts else float
                over = self.over_sequence if pair.own_tokens else over
                yield Saved(over(read), (BY_OPS,))
        # What recomputation by operations saves instead.
        yield Saved(0.0, (BY_OPS,), by_ops.kept(self.case, is_dense))

    def norms_before_matmuls(self, is_dense: bool) -> Iterator[Saved]:
        count = min(self.model.norms_per_layer, 2)
        # Attention and MLP side by side read one and the same input.
        inputs = 1 if self.model.parallel_residual else count
        d = self.over_sequence(self.model.d_model)
        if not self.has_fp32_norms:
            yield Saved(inputs * self.element * d, (BY_OPS,))
        else:
            # PyTorch operations: each norm casts its input, or one for all in fp32.
            casts = count if self.element < 4 else inputs
            again = ("layernorm", *self.cheap)
            yield Saved(casts * 4 * d, (*again, BY_OPS))
            yield Saved(0.0, again, inputs * self.element * d)
            if not self.is_frozen:
                yield Saved(count * 4 * d, (*again, BY_OPS))
        readers = {"attention": {"q_proj", "k_proj", "v_proj"}, "mlp": set[str]()}
        if is_dense or (self.model.moe is not None and self.model.moe.shared_d_ff):
            readers["mlp"] = {"gate_proj", "up_proj"}
        if count == 1:
            readers["attention"] |= readers["mlp"]
        # Adapters were given the tokens of the whole group.
        size = self.model.d_model if self.is_frozen else d
        for place in ("attention", "mlp")[:count]:
            again = (self.case.norm_of(place, is_dense), *self.cheap, BY_OPS)
            yield Saved(self.linear_input(*readers[place]) * size, again)

    def norms_after(self) -> Iterator[Saved]:
        """Norms of what attention and MLP return, which is added and not saved."""
        for _ in range(self.model.norms_per_layer - 2):
            yield from self.norm(self.over_sequence(self.model.d_model))

    def norm(self, width: float) -> Iterator[Saved]:
        """A norm that no module repeats."""
        if not self.has_fp32_norms:
            yield Saved(self.element * width, (BY_OPS,))
        else:
            yield Saved(4 * width, (BY_OPS,))
            if not self.is_frozen:
                yield Saved(4 * width, (BY_OPS,))

    def projections(self) -> Iterator[Saved]:
        model = self.model
        queries = self.over_tensor_group(model.n_heads * model.head_dim)
        keys = self.over_kv_heads(model.n_kv_heads * model.head_dim)
        yield Saved(self.element * queries, self.read)
        if self.is_flex:
            gathered = self.case.plan.cp if self.case.exchange == "gather" else 1
            yield Saved(self.element * keys * gathered)
            # A view of the projection's result, which is kept, or gathered from others.
            held = self.element * keys * gathered if gathered > 1 else 0.0
            yield Saved(self.element * keys * gathered, (BY_OPS,), held)
        elif self.is_flash or model.n_heads == model.n_kv_heads:
            gathered = self.case.plan.cp if self.case.exchange == "gather" else 1
            yield Saved(self.element * keys * 2 * gathered, (BY_OPS,))
        else:
            # Plain attention repeats keys and values for every query head, from what
            # it must be given again where its core is recomputed.
            yield Saved(0.0, ("core_attn", "cheap"), self.element * keys * 2)
            yield Saved(self.element * queries * 2, self.core)
        if model.qk_norm:
            yield from self.norm(queries)
            yield from self.norm(keys)
        yield from self.attention_outputs(queries)

    def attention_outputs(self, width: float) -> Iterator[Saved]:
        """The same once more where ranks then exchange heads for tokens."""
        yield self.attention_output(width)
        if self.case.plan.cp > 1 and self.case.exchange == "ulysses":
            yield Saved(self.element * width)

    def attention_output(self, width: float) -> Saved:
        """What the last matrix reads, and a flash kernel reads again for itself."""
        if not self.is_flash:
            return Saved(self.linear_input("o_proj") * width)
        cast = 1 if self.case.keeps_fp8_inputs and not self.is_frozen else 0
        is_twice = self.lora and self.lora.keeps_inputs and self.lora.keeps_graph
        return Saved(((2 if is_twice else 1) * self.element + cast) * width)

    def latent_projections(self) -> Iterator[Saved]:
        """DeepSeek-AI 2024, section 2.1: latents by rank, heads by tensor group."""
        mla, heads, e = self.model.mla, self.model.n_heads, self.element
        assert mla is not None
        key = self.over_tensor_group(heads * (mla.nope_dim + mla.rope_dim))
        again = ("mla_up_proj", BY_OPS)
        by_flex = ("mla_up_proj", *self.read)
        yield Saved(e * key, by_flex)
        yield Saved(e * key, by_flex)
        # Values come in one tensor with their keys, unless a kernel copies them out.
        beside = 0 if "rope" in self.fused else mla.nope_dim
        # Part of the second kept result, or of the fourth, which is made again.
        whose = by_flex if mla.q_rank else again
        yield Saved(e * self.over_tensor_group(heads * (mla.v_dim + beside)), whose)
        yield from self.attention_outputs(self.over_tensor_group(heads * mla.v_dim))
        yield from self.latents()

    def picked_projections(self) -> Iterator[Saved]:
        """Queries as heads and as wide as the key of all; results in both widths."""
        mla, heads, e = self.model.mla, self.model.n_heads, self.element
        assert mla is not None
        assert mla.indexer is not None
        found, by_flex = mla.indexer, ("mla_up_proj", *self.read)
        key = mla.kv_rank + mla.rope_dim
        yield Saved(e * self.over_tensor_group(heads * mla.nope_dim), by_flex)
        yield Saved(e * self.over_tensor_group(heads * key), by_flex)
        yield Saved(
            e * key * (self.case.plan.cp if self.case.exchange == "gather" else 1),
            by_flex,
        )
        yield Saved(e * self.over_tensor_group(heads * mla.kv_rank), (BY_OPS,))
        results = self.over_tensor_group(heads * mla.v_dim)
        yield Saved(self.linear_input("o_proj") * results)
        if self.is_flash:
            yield Saved(4 * min(found.top_k, self.case.training.seq_len))
        if self.case.training.indexer_loss != "none":
            queries, weights = found.n_heads * found.head_dim, found.n_heads
            yield Saved(e * (queries + weights + found.head_dim), (BY_OPS,))
        yield from self.latents()

    def latents(self) -> Iterator[Saved]:
        mla, e = self.model.mla, self.element
        assert mla is not None
        again = ("mla_up_proj", BY_OPS)
        ranks = (mla.q_rank, ("q_proj",)), (mla.kv_rank, ("k_proj", "v_proj"))
        for rank, reader in ranks:
            yield from self.norm(self.over_sequence(rank))
            # A norm that is fused with the projection after it runs with it.
            whose = again if self.case.joins_norms else (BY_OPS,)
            size = rank if self.is_frozen else self.over_sequence(rank)
            yield Saved(self.linear_input(*reader) * size, whose)
        if not self.has_fp32_norms:
            # The rotary key lies in one tensor with what is normed; a cast copies.
            yield Saved(e * self.over_sequence(mla.rope_dim), (BY_OPS,))

    def scores(self) -> Iterator[Saved]:
        heads = self.over_tensor_group(self.model.n_heads)
        if self.is_flash:
            yield Saved(4 * heads)
            return
        # A row of scores for every token and head; Korthikanti et al. recompute them.
        scores = heads * self.case.training.seq_len
        if self.model.mla is not None and self.model.mla.indexer is not None:
            # The exponential, without what is masked, in 16 bits, and three masks.
            yield Saved((4 + 4 + 2 + 1 + 1 + 1) * scores, ("core_attn", "cheap"))
            return
        yield Saved(self.element * scores, ("core_attn", "cheap"))
        if self.model.dropout:
            yield Saved(self.element * scores, self.core)
            yield Saved(scores, self.core)

    def mlp(self, inner: float, *modules: str, active: str = "") -> Iterator[Saved]:
        inputs = 2 if self.model.gated_mlp else 1
        each = 1 if self.case.training.fp8_activation_inputs else self.element
        yield Saved(inputs * each * inner, (*modules, BY_OPS))
        again = (*modules, active, *self.cheap, BY_OPS)
        if self.model.gated_mlp and "activation" not in self.fused:
            yield Saved(self.element * inner, again)  # the activated gate
        down = () if active == "moe_act" else ("down_proj",)
        yield Saved(self.linear_input(*down) * inner, again)

    def experts(self) -> Iterator[Saved]:
        """Routed copies of tokens, on the rank that most of them come to."""
        moe = self.model.moe
        assert moe is not None
        again = ("moe", BY_OPS)
        yield Saved(self.over_sequence(4 * moe.n_experts), again)
        # The fullest rank gets more of them than it sends.
        copies = self.over_sequence(self.case.copies_on_the_fullest)
        arrived = copies * self.case.plan.etp * self.model.d_model
        yield Saved(self.linear_input() * arrived, again)
        yield from self.mlp(copies * moe.d_ff, "moe", active="moe_act")
        if moe.activation_limit and self.case.has_plain_experts:
            # Gate and value after their limits, and the sigmoid.
            limited = 3 * self.element * copies * moe.d_ff
            yield Saved(limited, (*again, "moe_act", *self.cheap))
        shared = self.over_tensor_group(moe.shared_d_ff)
        yield from self.mlp(shared, "moe", "shared_experts")
        if size := self.weighted_result():
            yield Saved(size * arrived, again)

    def weighted_result(self) -> int:
        """Bytes of a number that the router weights apart, for its own gradient."""
        is_fused = "activation" in self.fused
        if self.case.has_torch_experts:
            # In fp32, before the cast if compiled; torchtitan's DeepEP in 16 bits.
            is_cast = is_fused or self.case.training.expert_dispatch == "deepep"
            return self.element if is_cast else 4
        return 0 if is_fused else 4


class LayerBytes(NamedTuple):
    """What a micro-batch leaves in a layer, and what of it is left recomputed."""

    plain: float
    kept: float


def layer_bytes(case: Case, is_dense: bool) -> LayerBytes:
    saved = bytes_left(case, is_dense, frozenset())
    kept = bytes_left(case, is_dense, case.repeats)
    if case.plan.recompute == "full":
        is_split = case.training.partition_activations
        tokens = case.tokens / case.plan.tp if is_split else case.own_tokens
        kept = case.model.d_model * case.stream * tokens
    if case.plan.recompute == "full-cpu":
        kept = 0.0
    return LayerBytes(saved, kept)


class OnHost(NamedTuple):
    """What a micro-batch's activations take elsewhere, without a pipeline."""

    left: float
    """Of a layer, on average: what waits in host memory."""
    moving: float
    """On the GPU, on its way there or back."""


def on_host(case: Case) -> OnHost:
    if case.plan.recompute == "full-cpu":
        # DeepSpeed holds two inputs until their copies are done.
        of_input = case.own_tokens * case.model.d_model * case.stream
        return OnHost(of_input, 2 * of_input)
    of_layer = layer_bytes(case, case.is_dense(False)).plain
    count = case.training.offload_activations
    return OnHost(count * of_layer / case.model.n_layers, of_layer if count else 0.0)


def bytes_left(case: Case, is_dense: bool, repeats: frozenset[str]) -> float:
    """What a micro-batch leaves in a layer of which some things run again."""
    total = 0.0
    for tensor in Layer(case).operations(is_dense):
        is_freed = bool(repeats & {*tensor.freed_by})
        total += tensor.left if is_freed else tensor.plain
    return total * case.tokens
