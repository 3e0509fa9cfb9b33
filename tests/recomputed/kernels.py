"""Seconds of one layer's kernels on one GPU, one kernel after the other.

A kernel takes the longest of its FLOPs, its bytes and its launch (Williams et al.
2009). The backward of a matmul is two of its shape, that of a stream two streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.recomputed import by_ops, lora, parameters, picked, texts, traffic
from tests.recomputed.case import Case
from tests.recomputed.machine import Machine
from tests.recomputed.state import state_of


class Kernel(NamedTuple):
    """One kernel of a forward; those of a backward take twice as long."""

    kind: str
    """matmul or other; frozen for a matmul whose weights need no gradient, sum for one
    that is part of a norm, which adds up its gradients backward."""
    seconds: float
    again: tuple[str, ...] = ()
    """Who runs it again: modules, or ways of recomputing without modules."""


DISPATCH = {"megatron": 4.5, "deepspeed": 4.5, "ideal": 1.0}
"""Host time of a layer over that of plain operations; two where not listed."""


class Core(NamedTuple):
    """The core of attention, whose backward is not twice its forward."""

    forward_s: float
    backward_s: float


class Layer:
    """The kernels of a layer's forward."""

    def __init__(self, case: Case) -> None:
        self.case, self.model, self.machine = case, case.model, Machine(case)
        self.tokens, self.own = case.tokens, case.own_tokens
        self.heads = case.model.n_heads / case.plan.tp
        self.kv_heads = case.model.n_kv_heads / case.kv_shards
        is_flash = case.training.attention != "plain"
        self.cheap = ("cheap",) if is_flash else ()

    def kernels(self, is_dense: bool) -> Iterator[Kernel]:
        for without_adapter in self.without_adapters(is_dense):
            is_frozen = (
                without_adapter.kind == "matmul" and self.case.training.lora is not None
            )
            yield (
                without_adapter._replace(kind="frozen")
                if is_frozen
                else without_adapter
            )
        for pair in lora.pairs(self.case, is_dense):
            yield from self.adapter(pair, is_dense)

    def adapter(self, pair: lora.Pair, is_dense: bool) -> Iterator[Kernel]:
        """A and B; what they make is scaled and added to what the matrix makes."""
        tokens, read, made = pair.shapes(self.case)
        again: tuple[str, ...] = ()
        if pair.in_mlp:
            again = ("mlp",) if is_dense else ("moe", "shared_experts")
        found = self.case.training.lora
        assert found is not None
        is_wide = found.adapters == "fp32"
        matmul = self.machine.fp32_matmul if is_wide else self.machine.matmul
        yield Kernel("matmul", matmul(tokens, pair.rank, read), again)
        yield Kernel("matmul", matmul(tokens, made, pair.rank), again)
        # In passes of two bytes. The gradient of the input meets that of the matrix.
        into, out, out_back = 0.0, 2 + 3, 2
        upcast = self.case.is_cast_wide
        meets = 6 if upcast else 3
        drops = 2.5
        if is_wide and upcast:
            drops, out, out_back = 4.5, 4 + 6, 4
        elif is_wide:
            into, drops, out, out_back = 3, 4.5, 4 + 5 + 3, 3 + 3 + 4
        elif found.adapters == "fused":
            # Each matmul reads what it adds to: two bytes a number, or four.
            out = meets = 2 if upcast else 1
            out_back = 0
        elif found.adapters == "autocast" and upcast:
            into, drops = 3, 4.5
        elif found.adapters == "autocast" and found.weights not in LOW_BITS:
            into, drops = 3 + 3, 4.5
        into += drops if found.dropout else 0
        there, back = into * read + out * made, (into + meets) * read + out_back * made
        yield Kernel("forward", self.machine.stream(tokens * there), again)
        yield Kernel("backward", self.machine.stream(tokens * back))

    def unpacked(self, is_dense: bool) -> float:
        """Seconds to bring all that is packed to 16 bits, in one pass."""
        found = self.case.training.lora
        if found is None or found.weights == "bf16":
            return 0.0
        numbers, casts_s, low = 0.0, 0.0, found.weights in LOW_BITS
        if self.case.is_cast_wide and low:
            every = self.case.with_every_adapter()
            for pair in lora.pairs(every, is_dense):
                tokens, read, made = pair.shapes(self.case)
                casts_s += self.machine.stream(3 * tokens * (read + made))
        unpacked = 4 + 5 + 2 + 2 + 1 if found.weights == "gptq" else 0
        for share in traffic.layer_shares(
            self.case, is_dense and self.model.moe is not None
        ):
            if not share.is_adapter:
                numbers += share.numbers * (share.state.weights + unpacked + 2) / 2
        return self.machine.stream(numbers) + casts_s

    def sums(self, is_dense: bool) -> float:
        """Seconds to read the step's gradients of all experts and write them again.

        Transformer Engine does so in the matmul, which hides more than half.
        """
        case, moe = self.case, self.model.moe
        if case.spec.framework != "megatron" or case.training.lora is not None:
            return 0.0
        if is_dense or moe is None:
            return 0.0
        local = moe.n_experts / (case.plan.ep * case.plan.etp)
        one = sum(part.numbers for part in parameters.mlp(self.model, moe.d_ff))
        once = local * one * state_of(case).gradients / case.element
        return 9 / 20 * self.machine.stream(once + once)

    def without_adapters(self, is_dense: bool) -> Iterator[Kernel]:
        model, stream = self.model, self.machine.stream
        for number in range(model.norms_per_layer):
            # Of four norms two come after attention and MLP.
            again: tuple[str, ...] = ()
            if number < 2:
                place = ("attention", "mlp")[number]
                again = (self.case.norm_of(place, is_dense), *self.cheap)
            yield Kernel("other", self.machine.norm(self.own * model.d_model), again)
        for _ in ("attention", "mlp"):
            # The residual: two are read, their sum is written; dropout before it.
            apart = model.dropout and "dropout" not in self.case.fused
            passes = 3 + (2 if apart else 0)
            kind = "other"
            if "residual" in self.case.fused:
                # The norm after it has the sum at hand.
                passes, kind = passes - 1, "sum"
            numbers = passes * self.own * model.d_model
            yield Kernel(kind, stream(self.machine.wide * numbers))
        if model.mla is None:
            yield from self.heads_kernels()
        else:
            yield from self.latent_kernels()
        if is_dense:
            inner = model.d_ff / self.case.plan.tp
            yield from self.mlp(self.tokens, inner, self.tokens, "mlp")
        else:
            yield from self.experts()

    def heads_kernels(self) -> Iterator[Kernel]:
        model, machine, d = self.model, self.machine, self.model.d_model
        queries, keys = self.heads * model.head_dim, self.kv_heads * model.head_dim
        yield Kernel("matmul", machine.linear(self.tokens, queries + 2 * keys, d))
        yield Kernel("matmul", machine.linear(self.tokens, d, queries))
        if not (model.learned_positions or model.alibi):
            yield Kernel("other", machine.rotary(self.tokens * (queries + keys)))
        if model.qk_norm:
            yield Kernel("other", machine.norm(self.tokens * (queries + keys)))

    def latent_kernels(self) -> Iterator[Kernel]:
        """Down from its own tokens on every rank, up to its own heads."""
        mla, machine, d = self.model.mla, self.machine, self.model.d_model
        assert mla is not None
        key = mla.nope_dim + mla.rope_dim
        down = mla.kv_rank + mla.rope_dim
        up = self.heads * (mla.nope_dim + mla.v_dim)
        if mla.q_rank:
            yield Kernel("matmul", machine.linear(self.own, mla.q_rank, d))
        from_, again = mla.q_rank or d, ("mla_up_proj",)
        queries_s = machine.linear(self.tokens, self.heads * key, from_)
        yield Kernel("matmul", queries_s, again)
        yield Kernel("matmul", machine.linear(self.own, down, d))
        yield Kernel("matmul", machine.linear(self.tokens, up, mla.kv_rank), again)
        yield Kernel("matmul", machine.linear(self.tokens, d, self.heads * mla.v_dim))
        ranks = mla.q_rank + mla.kv_rank
        norms = again if self.case.joins_norms else ()
        yield Kernel("other", machine.norm(self.own * ranks), norms)
        if not (self.model.learned_positions or self.model.alibi):
            # Queries turn in part; keys are put together from both parts as a whole.
            turned = self.heads * (mla.rope_dim + key)
            yield Kernel("other", machine.rotary(self.tokens * turned), again)

    def mlp(
        self, tokens: float, inner: float, active: float, *again: str, act: str = ""
    ) -> Iterator[Kernel]:
        """Gate and value come of one matmul; one kernel activates `active` tokens."""
        inputs = 2 if self.model.gated_mlp else 1
        d = self.model.d_model
        is_routed = "routed" in again
        linear = self.machine.grouped if is_routed else self.machine.linear
        yield Kernel("matmul", linear(tokens, inputs * inner, d), again)
        yield Kernel("matmul", linear(tokens, d, inner), again)
        if active:
            apart = inputs == 2 and "activation" not in self.case.fused
            moved = (inputs + 1 + (2 if apart else 0)) * active * inner
            seconds = self.machine.stream(self.machine.wide * moved)
            yield Kernel("other", seconds, (*again, act, *self.cheap))

    def experts(self) -> Iterator[Kernel]:
        """Router, permutation, and a pair of matmuls for every expert on the rank.

        Routing is even: a rank's experts see as many copies as its tokens have.
        """
        moe, machine, plan = self.model.moe, self.machine, self.case.plan
        assert moe is not None
        d, copies = self.model.d_model, self.own * self.case.copies_on_the_fullest
        copies *= plan.etp  # each rank that has a part of an expert gets its tokens
        again = ("moe", "routed")
        router_s = machine.matmul(self.own, moe.n_experts, d)
        yield Kernel("matmul", router_s, again)
        # fp32 scores, in units of an activation's bytes.
        scores = self.own * moe.n_experts * 4 / self.case.element
        yield Kernel("other", machine.stream(2 * scores), again)
        passes = 2  # gathered, scattered
        if self.case.experts_exchange and plan.ep < moe.n_experts:
            passes = 4  # and put in order by expert, where several ranks send
        if self.case.weights_experts_apart:
            passes += 5  # cast to fp32, weighted, and cast back: 20 bytes for 4
        for _ in range(passes):
            yield Kernel("other", machine.stream(2 * copies * d), again)
        if self.case.sums_by_index:
            yield Kernel("other", 5.5 * machine.stream(2 * copies * d), again)
        local = moe.n_experts // plan.ep
        for number in range(local):
            # One activation kernel over the copies of all experts.
            active = copies if number == 0 else 0.0
            sizes = copies / local, moe.d_ff / plan.etp, active
            yield from self.mlp(*sizes, *again, act="moe_act")
        in_graph = self.case.training.cuda_graphs is True
        bias, limit = self.case.expert_bytes
        if self.model.bias == "all" and not in_graph:
            # A third of the bytes of both passes, in numbers of two.
            seconds = machine.stream(bias / 6 * copies * d)
            yield Kernel("other", seconds, (*again, "moe_act", *self.cheap))
        if moe.activation_limit is not None and limit and not in_graph:
            seconds = machine.stream(limit / 6 * copies * moe.d_ff / plan.etp)
            yield Kernel("other", seconds, (*again, "moe_act", *self.cheap))
        if moe.shared_d_ff:
            inner, of_it = moe.shared_d_ff / plan.tp, ("moe", "shared_experts")
            yield from self.mlp(self.tokens, inner, self.tokens, *of_it)

    def core(self) -> Core:
        if picked.has_one(self.case):
            picking = picked.Picking(self.case)
            forward_s = picking.forward() + picking.picking()
            return Core(forward_s, picking.backward() + picking.loss())
        return self.flash() if self.case.training.attention != "plain" else self.plain()

    def flash(self) -> Core:
        """A causal kernel, once for every rank whose keys come round.

        Dao 2023, section 3.1: two matmuls forward; five backward, three as wide as the
        keys and two as the values, at 0.8 of the forward's rate.
        """
        model, cp = self.model, self.case.plan.cp
        value_dim = model.mla.v_dim if model.mla is not None else model.head_dim
        keys, values = self.heads * model.head_dim, self.heads * value_dim
        held = self.kv_heads * (model.head_dim + value_dim)
        moved = self.tokens * (keys + values + held)
        moved *= 2 if self.machine.all_wide else 1
        masked = self.case.training.attention != "efficient"
        length = float(self.case.training.seq_len)
        if self.case.exchange == "ring":
            length /= cp
        forward_s = backward_s = 0.0
        for _ in range(cp):
            # Half of all pairs of a text are masked; a product is two FLOPs.
            seen = texts.seen(self.case) if masked else self.case.training.seq_len
            pairs = self.tokens * seen / cp / (1 + masked)
            forward = 2 * pairs * (keys + values)
            backward = 2 * pairs * (3 * keys + 2 * values) / 0.8
            forward_s += self.machine.attention(forward, moved, length)
            backward_s += self.machine.attention(backward, 2 * moved, length)
        return Core(forward_s, backward_s)

    def plain(self) -> Core:
        """Scores are written, softmax reads and writes them, and values meet them."""
        model, seq_len = self.model, self.case.training.seq_len
        value_dim = model.mla.v_dim if model.mla is not None else model.head_dim
        queries = seq_len / self.case.plan.cp
        seconds = 0.0
        for k, n in ((model.head_dim, seq_len), (seq_len, value_dim)):
            batch = self.case.plan.micro_batch * self.heads
            found = self.machine.matmul(queries, n, k, batch)
            if model.head_dim % 8:
                flops = batch * 2 * queries * n * k
                found = self.machine.without_tensor_cores(flops, found)
            if self.machine.all_wide:
                found = self.machine.fp32_matmul(queries, n, k, batch)
            seconds += found
        scores = self.tokens * seq_len * self.heads
        passes = 4 + (2.5 if model.dropout else 0)
        if "softmax" not in self.case.fused:
            passes += 2 + 2 + 1 + 3  # scaled, masked, written in fp32, cast
        passes *= 2 if self.machine.all_wide else 1
        seconds += self.machine.stream(passes * scores)
        return Core(seconds, 2 * seconds)


class Pass(NamedTuple):
    """One pass of one layer."""

    seconds: float
    core: float
    """Of these, the core of attention."""
    matmuls: float
    """And the matmuls with weights."""
    dispatch: float
    """What the host takes to start them."""
    awaited: float = 0.0
    """Of that, what it starts after it has waited for the GPU."""


class LayerSeconds(NamedTuple):
    """Of one layer and micro-batch."""

    forward: Pass
    backward: Pass
    weights: float
    """Of the backward: matmuls that only gradients of weights need."""
    again: float
    """What selective recomputation runs again."""
    mlp_again: float
    """Of these, what is in the MLP of a layer without experts."""
    unneeded: float
    """Of the forward: what a layer leaves out when it runs again as a whole."""


def _unneeded(case: Case, is_dense: bool) -> float:
    """The last matmul, where a checkpoint or a compiler stops before it.

    Something after it may need its result; and what packs its inputs, on its own or for
    8 bits, runs it before anything is kept.
    """
    model, training = case.model, case.training
    compiled = training.compile
    stops = {"fsdp": True, "torchtitan": compiled}.get(case.spec.framework, False)
    if not stops or training.reentrant or not is_dense or not model.d_ff:
        return 0.0
    found = training.lora
    if model.norms_per_layer == 4 or model.dropout:
        return 0.0
    if found is not None and {"mlp", "down_proj"} & {*found.targets}:
        return 0.0
    packs = case.precision == "fp8" or (found is not None and found.weights in LOW_BITS)
    if packs and not compiled:
        return 0.0
    inner = model.d_ff / case.plan.tp
    return Machine(case).linear(case.tokens, model.d_model, inner)


LOW_BITS = ("nf4", "int8", "gptq")


def layer_seconds(case: Case, is_dense: bool) -> LayerSeconds:
    layer = Layer(case)
    once = dict.fromkeys(
        ("matmul", "frozen", "other", "sum", "forward", "backward"), 0.0
    )
    again_s = mlp_again_s = 0.0
    for kernel in layer.kernels(is_dense):
        once[kernel.kind] += kernel.seconds
        if case.repeats & {*kernel.again}:
            again_s += kernel.seconds
        if case.repeats & {*kernel.again} & {"mlp"}:
            mlp_again_s += kernel.seconds
        is_cheap = kernel.kind in ("other", "sum") or "routed" in kernel.again
        if "by operations" in case.repeats and is_cheap:
            again_s += kernel.seconds
    if "by operations" in case.repeats:
        machine = Machine(case)
        again_s += sum(machine.linear(*one) for one in by_ops.again(case, is_dense))
    core, unpack_s = layer.core(), layer.unpacked(is_dense)
    sums_s = layer.sums(is_dense)
    all_s = once["matmul"] + once["frozen"] + once["other"]
    back_s = 2 * all_s - once["frozen"] + once["backward"] + unpack_s + sums_s
    if is_dense and case.training.mlp_chunks > 1:
        # Each part of an MLP runs once more before its backward.
        inner = case.model.d_ff / case.plan.tp
        parts = layer.mlp(case.tokens, inner, case.tokens, "mlp")
        back_s += sum(part.seconds for part in parts)
    all_s += once["sum"] + once["forward"] + unpack_s
    # Router, permutation and two matmuls an expert; Megatron-LM's modules take longest.
    kernels = beyond = 1.0
    if case.model.moe is not None and not is_dense:
        # DeepEP does in 8 of 25 what takes 23 else, but in fp8.
        few = case.training.expert_dispatch == "deepep" and case.precision != "fp8"
        routing = 60 - (23 - 8 if few else 0)
        kernels = (routing + 2 * (case.model.moe.n_experts // case.plan.ep)) / 25
        beyond = kernels - 1
    # Norms of queries and keys are two of seven modules, but for those of latents.
    if case.model.qk_norm and case.model.mla is None:
        kernels += 0.0 if case.training.cuda_graphs == "outside_experts" else 0.3
    if case.training.cuda_graphs == "outside_experts":
        kernels -= 1
    kernels += 0.3 * len([*lora.pairs(case, is_dense)])
    if case.training.lora and case.training.lora.weights in LOW_BITS:
        kernels += 5 / 25 * len([*lora.pairs(case.with_every_adapter(), is_dense)])
    # It waits for the tokens of every expert, unless each has room for so many.
    waits = not is_dense and not (case.model.moe and case.model.moe.capacity_factor)
    awaited_s = beyond * waits * case.host_s
    awaited_s *= 0.5 if case.training.compile else 1
    awaited_s *= DISPATCH.get(case.spec.framework, 2.0)
    dispatch_s = case.host_s * kernels
    dispatch_s *= 0.5 if case.training.compile else 1
    dispatch_s *= DISPATCH.get(case.spec.framework, 2.0)
    # Loops over packed texts, which wait for the GPU but in a backward's positions.
    turned, turned_back = texts.positions(case)
    ordered, ordered_back = texts.exchange(case)
    one_s = texts.operation_s(case)
    if "mla_up_proj" in case.repeats and case.model.mla is not None:
        again_s += turned * one_s
    if "core_attn" in case.repeats:
        again_s += ordered * one_s
    loops_s = (turned + ordered) * one_s
    picks_s = picks_back_s = 0.0
    if picked.has_one(case):
        started, started_back = picked.Picking(case).operations()
        picks_s, picks_back_s = (case.host_s / 25 * n for n in (started, started_back))
    # Beside frozen matrices only these, not their adapters, hide messages.
    whole_s = once["frozen"] or once["matmul"]
    repeats_core = {"core_attn"}
    if case.training.attention == "plain":
        repeats_core.add("cheap")
    if case.repeats & repeats_core:
        again_s += core.forward_s
    return LayerSeconds(
        forward=Pass(
            all_s + core.forward_s,
            core.forward_s,
            whole_s,
            dispatch_s + loops_s + picks_s,
            awaited_s + loops_s,
        ),
        backward=Pass(
            back_s + core.backward_s,
            core.backward_s,
            whole_s if once["frozen"] else 2 * whole_s + sums_s,
            2 * dispatch_s + (turned_back + ordered_back) * one_s + picks_back_s,
            ordered_back * one_s,
        ),
        weights=once["matmul"] + sums_s,
        again=again_s,
        mlp_again=mlp_again_s,
        unneeded=_unneeded(case, is_dense),
    )


def embedding_seconds(case: Case) -> float:
    """Look-up and a norm after it, forward and twice backward; half of the host's."""
    machine, numbers = Machine(case), case.own_tokens * case.model.d_model
    kernels_s = machine.stream(2 * numbers)
    kernels_s += machine.norm(numbers) if case.model.embedding_norm else 0.0
    passes = 3 if case.trains_ends else 1
    return passes * kernels_s + case.rates["microbatch_s"] / 2


def head_seconds(case: Case) -> float:
    """Final norm, head and loss, forward and backward; half of the host's."""
    machine, model, tp = Machine(case), case.model, case.plan.tp
    rows, tokens = model.vocab / tp, case.tokens
    seconds = 3 * machine.norm(case.own_tokens * model.d_model)
    matmul = machine.fp32_matmul if machine.all_wide else machine.matmul
    matmul_s = matmul(tokens, rows, model.d_model)
    # Gradients of the logits have rows as long as the vocabulary: who splits it pads
    # it, and Megatron-LM always.
    pads = case.spec.framework in ("megatron", "ideal")
    is_padded = pads or tp > 1 or model.vocab % 8 == 0
    gradients = 2 if case.trains_ends else 1
    for pace in (1, *[1 if is_padded else 4] * gradients):
        seconds += pace * matmul_s
    for _ in ("read", "written", "read backward", "written backward"):
        # As several kernels it casts 2 bytes to 4, and gradients back.
        more = 0 if "loss" in case.fused else (6 + 6) / 4
        moved = 4 + more
        if "loss" in case.fused and case.training.loss_bytes == 0:
            # Gradients over logits: both read and the one written have 2 bytes.
            moved = (2 + 2 + 2) / 4
        seconds += machine.stream(tokens * rows * moved / case.element)
    return seconds + case.rates["microbatch_s"] / 2


def further_seconds(case: Case) -> float:
    """What predicts one token more beside a layer: all three passes, and a head."""
    machine, width = Machine(case), case.model.d_model
    of_stream = case.own_tokens * width
    once = [machine.linear(case.tokens, width / case.plan.tp, width + width)]
    once += [machine.norm(of_stream), machine.norm(of_stream)]
    # The row of the table that is looked up; then both halves side by side.
    once += [machine.stream(of_stream * (1 + 1 + 2 + 2))]
    return head_seconds(case) + 3 * sum(once)
