"""The seconds and the bytes of deployments, by layer and by end of a stage.

Seconds are the kernels of a forward pass, by kind of layer, and its messages. Bytes are
those on one GPU: weights, cache, activations, overhead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.cost.parameters_and_flops import (
    dense_layer_params,
    embedding_params,
    expert_params,
    head_params,
    input_norms,
    kv_shards,
    kv_width,
    latent_down_width,
    latent_up_width,
    layer_params,
    mlp_inputs,
    output_norms,
    output_width,
    query_width,
    value_width,
)
from meshwright.cost.roofline import Sizes
from meshwright.cost.traffic import all_gather_s, all_reduce_s, send_s
from meshwright.plans.columns import Floats, Ints, Parts, added, scaled, total
from meshwright.serving.deployment import (
    ACTIVATION_BYTES,
    Deployments,
    ServingJob,
    attended_share,
    jobs_of_kinds,
    reach,
)
from meshwright.spec.model_parts import Experts
from meshwright.spec.units import GIB

LEAST_TILE = 16
"""Rows of the smallest tile of tensor cores (NVIDIA, PTX ISA, mma.m16n8k16)."""

LOGIT_ELEMENTS = 5
"""16-bit numbers moved per logit by sampling: read, written and read as fp32."""


@dataclass(frozen=True)
class ForwardPass:
    """The work of one pass through the layers, a row per deployment."""

    tokens: Floats
    """Of the requests that one group of attention has."""
    gathered: Floats
    """Tokens that experts take: those of all groups of attention."""
    pairs: Floats
    """Pairs of a query and a key that it attends to."""
    cached: Floats
    """Tokens whose keys and values are read."""
    sampled: Floats
    """Tokens whose logits are computed."""
    is_prefill: bool


def decode_pass(job: ServingJob, requests: Ints, attended: Ints) -> ForwardPass:
    """Return one step of decoding for requests in the middle of their output.

    Under continuous batching requests of all ages share a step: their caches hold the
    prompt and half of the output on average (Yu et al. 2022, Orca, section 3.1).

    Args:
        job: What is served.
        requests: Requests of the replica.
        attended: Those of them that one group of attention has.
    """
    tokens, gathered = attended.astype(np.float64), requests.astype(np.float64)
    pairs = tokens * job.inference.mean_context
    return ForwardPass(tokens, gathered, pairs, pairs, tokens, is_prefill=False)


def prefill_passes(
    job: ServingJob, requests: Ints, prompts: Ints
) -> tuple[ForwardPass, Ints]:
    """Return one pass of the prefill of some prompts, and the number of passes.

    A pass holds at most `inference.prefill_tokens`, of several prompts or of a part of
    one; all passes hold equally many. A token attends to those before it in its
    prompt. Groups of attention take in their `prompts` side by side, `requests` in all.
    """
    length = job.inference.prompt_len
    prompt_tokens = prompts * length
    count = -(-prompt_tokens // job.inference.prefill_tokens)
    tokens = prompt_tokens / count
    pairs = tokens * (length + 1) / 2
    parts = np.maximum(length / tokens, 1.0)
    cached = tokens * (parts + 1) / 2
    gathered = requests * length / count
    sampled = prompts / count
    one = ForwardPass(tokens, gathered, pairs, cached, sampled, is_prefill=True)
    return one, count


@dataclass(frozen=True)
class Kernels:
    """The kernels of one GPU's share of a layer, in one forward pass."""

    job: ServingJob
    rows: Deployments
    forward: ForwardPass

    def layer_s(self) -> Parts:
        """Return the seconds of a repeating layer, by part."""
        moe = self.job.model.moe
        if moe is None:
            return self.dense_layer_s()
        return self._layer_s(self._experts_s(moe), self._experts_links_s(moe))

    def dense_layer_s(self) -> Parts:
        """Return the seconds of a leading layer, which has no experts, by part."""
        return self._layer_s(self._mlp_s(self.job.model.d_ff), self._reduce_s())

    def head_s(self) -> Parts:
        """Return the seconds of final norm, head and sampling, by part."""
        model, tp = self.job.model, self.rows.attention_tp
        sampled = self.forward.sampled
        flops, logits = self.job.machine.matmul_flops, sampled * model.vocab
        shape = (sampled, model.vocab / tp, float(model.d_model))
        head = self._matmul_s(shape, ACTIVATION_BYTES, flops)
        sampling = self.job.machine.stream_s(LOGIT_ELEMENTS * logits)
        return {
            "host": np.full(len(self.rows), self.job.host_s),
            "head": head + sampling + self._norm_s(),
            "tensor links": self._on_tensor_links(all_gather_s, logits, tp),
        }

    def send_s(self) -> Parts:
        """Return the seconds to hand the residual stream to the next stage."""
        rows, machine = self.rows, self.job.machine
        efficiency = machine.efficiency
        hidden = self.forward.tokens * self.job.model.d_model * ACTIVATION_BYTES
        s_per_byte = rows.pp_s_per_byte / efficiency.link
        latency_s = rows.pp_latency_s * efficiency.latency
        seconds = efficiency.launch_s + send_s(hidden, s_per_byte, latency_s)
        return {"pipeline sends": np.where(rows.pp > 1, seconds, 0.0)}

    def _layer_s(self, inner: Parts, inner_links_s: Floats) -> Parts:
        attention = self._attention_matmuls_s()
        gpu = {
            "weight matmuls": attention + inner["weight matmuls"],
            "attention": self._core_s(),
            "small kernels": self._small_s() + inner["small kernels"],
            "tensor links": self._reduce_s() + inner_links_s,
        }
        launches_s = self.job.engine.layer_s if self.forward.is_prefill else 0.0
        return {**gpu, "host": np.maximum(launches_s - total(gpu), 0.0)}

    def _reduce_s(self) -> Floats:
        """Return the seconds to sum the outputs of a group of attention."""
        hidden = self.forward.tokens * self.job.model.d_model
        return self._on_tensor_links(all_reduce_s, hidden, self.rows.attention_tp)

    def _experts_links_s(self, moe: Experts) -> Floats:
        """Return the seconds of the messages about a layer's experts.

        The tensor group sums what its experts return. Groups of attention gather the
        tokens of all before, and each gets the sums of its tokens alone: an all-gather
        and a reduce-scatter, which move what an all-reduce moves (vLLM,
        `--all2all-backend allgather_reducescatter`, the default). Shared experts then
        are summed by every group.
        """
        hidden, rows = self.forward.gathered * self.job.model.d_model, self.rows
        routed_s = self._on_tensor_links(all_reduce_s, hidden, rows.tp)
        is_apart = (rows.attention_dp > 1) & (moe.shared_d_ff > 0)
        return routed_s + np.where(is_apart, self._reduce_s(), 0.0)

    def _on_tensor_links(
        self, formula: Callable[..., Floats], elements: Floats, gpus: Ints
    ) -> Floats:
        """Return the seconds of one collective of some GPUs of the tensor group.

        With its launch, and on the links of the whole group.
        """
        rows, efficiency = self.rows, self.job.machine.efficiency
        s_per_byte = rows.tp_s_per_byte / efficiency.link
        latency_s = rows.tp_latency_s * efficiency.latency
        seconds = formula(elements * ACTIVATION_BYTES, gpus, s_per_byte, latency_s)
        return np.where(gpus > 1, efficiency.launch_s + seconds, 0.0)

    def _linear_s(self, n: Sizes, k: Sizes) -> Floats:
        """Return the seconds to multiply the tokens by (k, n) weights of a layer."""
        job = self.job
        return self._matmul_s(
            (self.forward.tokens, n, k), job.read_bytes, job.matmul_flops
        )

    def _matmul_s(
        self,
        shape: tuple[Sizes, Sizes, Sizes],
        weight_bytes: float,
        flops: float,
        copies: Sizes = 1.0,
    ) -> Floats:
        """Return the seconds of (m, k) inputs times (k, n) weights, `copies` of both.

        Libraries have tiles of `LEAST_TILE` rows and every doubling of it, so padding
        at most doubles the rows.
        """
        machine, (m, n, k) = self.job.machine, shape
        half = machine.efficiency.gemm_half_size
        padding = np.minimum(half, np.maximum(m, LEAST_TILE))
        flops_s = machine.padded_s(m + padding, n, k, flops)
        activations = m * k + m * n
        elements = copies * (activations + n * k * weight_bytes / ACTIVATION_BYTES)
        return np.maximum(copies * flops_s, machine.stream_s(elements))

    def _attention_matmuls_s(self) -> Floats:
        """Return the seconds of the projections around attention.

        With latent attention, decoding projects queries into the latent space with the
        weights that a prefill projects keys up with (DeepSeek-AI 2024, arXiv
        2405.04434, 2.1.2): as many FLOPs.
        """
        model, tp, mla = self.job.model, self.rows.attention_tp, self.job.model.mla
        width, queries = model.d_model, query_width(model) / tp
        output = self._linear_s(width, output_width(model) / tp)
        if mla is None:
            held = (kv_width(model) + value_width(model)) / kv_shards(model, tp)
            return self._linear_s(queries + held, width) + output
        down = self._linear_s(float(latent_down_width(model)), width)
        if mla.q_rank:
            down = down + self._linear_s(float(mla.q_rank), width)
        up = self._linear_s(queries, mla.q_rank or width)
        latent = self._linear_s(latent_up_width(model) / tp, mla.kv_rank)
        return down + up + latent + output

    def _core_s(self) -> Floats:
        """Return the seconds of fused attention: two matmuls, and the cache read once.

        It takes 4 FLOPs per pair of query and key and element of a head (Dao 2023,
        FlashAttention-2, section 4.1).
        """
        model, tp, forward = self.job.model, self.rows.attention_tp, self.forward
        width = query_width(model) + output_width(model)
        elements = forward.tokens * width / tp
        attended = attended_share(self.job, forward.is_prefill)
        cache = (
            attended * forward.cached * cached_bytes(self.job, tp) / ACTIVATION_BYTES
        )
        elements += cache * self._reads()
        if model.mla is not None and not forward.is_prefill:
            width = model.n_heads * (2 * model.mla.kv_rank + model.mla.rope_dim)
        flops = 2 * attended * forward.pairs * width / tp
        return self.job.machine.attention_s(flops, elements)

    def _reads(self) -> Floats | float:
        """Return how many times as long as one read of the cache a kernel takes.

        A kernel for grouped queries keeps keys and values for all queries of a group.
        One that works head by head rereads them (NVIDIA 2024, TensorRT-LLM, 'New
        XQA-kernel provides 2.4x more Llama-70B throughput').
        """
        model, job = self.job.model, self.job
        if job.inference.decode_attention == "grouped" or self.forward.is_prefill:
            return 1.0
        if model.mla is not None:
            return 1.0
        tp = self.rows.attention_tp
        group = model.n_heads / tp * kv_shards(model, tp) / model.n_kv_heads
        return np.maximum(group / job.engine.reread, 1.0)

    def _small_s(self) -> Floats:
        """Return the seconds of norms with their additions, and of filling the cache.

        Rotary positions are applied by the kernel that writes keys and values.
        """
        model, tp = self.job.model, self.rows.attention_tp
        norms = input_norms(model) + output_norms(model)
        held = (kv_width(model) + value_width(model)) / kv_shards(model, tp)
        written = 2 * self.forward.tokens * (query_width(model) / tp + held)
        return norms * self._norm_s() + self.job.machine.stream_s(written)

    def _norm_s(self) -> Floats:
        return self.job.machine.stream_s(
            4 * self.forward.tokens * self.job.model.d_model
        )

    def _mlp_s(self, inner: int) -> Parts:
        model, share = self.job.model, inner / self.rows.attention_tp
        inputs = mlp_inputs(model)
        matmuls = self._linear_s(inputs * share, model.d_model)
        activation = self.job.machine.stream_s(
            (inputs + 1) * self.forward.tokens * share
        )
        return {
            "weight matmuls": matmuls + self._linear_s(model.d_model, share),
            "small kernels": activation,
        }

    def _experts_s(self, moe: Experts) -> Parts:
        """Return the seconds of router, routed experts and shared experts, by part.

        Every expert is split over the tensor group. Tokens are taken to choose their k
        experts evenly, so that E (1 - (1 - k/E)^tokens) of E experts are read.
        """
        width, inputs = self.job.model.d_model, mlp_inputs(self.job.model)
        stream_s, inner = self.job.machine.stream_s, moe.d_ff / self.rows.tp
        copies = self.forward.gathered * moe.top_k
        unread = (1 - moe.top_k / moe.n_experts) ** self.forward.gathered
        read = moe.n_experts * (1 - unread)
        weights = (self.job.read_bytes, self.job.matmul_flops, read)
        up = self._matmul_s((copies / read, inputs * inner, width), *weights)
        down = self._matmul_s((copies / read, width, inner), *weights)
        router = self._linear_s(float(moe.n_experts), width)
        moved = 2 * stream_s(2 * copies * width)
        parts = {
            "weight matmuls": router + up + down,
            "small kernels": moved + stream_s((inputs + 1) * copies * inner),
        }
        if moe.shared_d_ff:
            shared = self._mlp_s(moe.shared_d_ff)
            parts = {name: part + shared[name] for name, part in parts.items()}
        return parts


SLACK = 1 + 1e-9
"""Factor on a limit, so that a wait equal to it passes despite rounding."""


@dataclass(frozen=True)
class Phase:
    """Seconds of passes through the stages of a replica, by part, one row each."""

    layer: Parts
    """Seconds of every layer."""
    first: Parts
    """Seconds of the first stage beside its layers."""
    last: Parts
    """Seconds of the last stage beside its layers."""
    send: Parts
    """Seconds of every stage but the last, to send on to the next."""

    def times(self, factor: Floats | Ints | float) -> Phase:
        """Return the phase repeated `factor` times."""
        return Phase(*(scaled(parts, factor) for parts in vars(self).values()))

    def plus(self, other: Phase) -> Phase:
        """Return both phases, one after the other."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Phase(*(added(pair) for pair in pairs))

    def on_stages(self, layers: Ints) -> Parts:
        """Return the seconds of each stage of the first row, by part."""
        stage = np.arange(len(layers))
        counts = {
            "layer": layers,
            "first": stage == 0,
            "last": stage == len(layers) - 1,
            "send": stage < len(layers) - 1,
        }
        return added(
            {name: part[0] * count for name, part in getattr(self, field).items()}
            for field, count in counts.items()
        )


@dataclass(frozen=True)
class Prices:
    """The phases of a replica's work: see `round_time`."""

    first_token: Phase
    """The prefill of one prompt alone."""
    fill: Phase
    """The prefill of all prompts of a group."""
    step: Phase
    """One token of each request of a group."""

    def once(self, job: ServingJob) -> Phase:
        """Return the part of the objective that passes the stages once."""
        is_latency = job.inference.objective == "latency"
        return self.first_token.times(float(is_latency))

    def cycle(self, job: ServingJob) -> Phase:
        """Return the part of the objective that groups go through in rounds.

        A request's latency is that of its prompt and its tokens; a replica's
        throughput includes the prefill of all requests that it serves.
        """
        steps = self.step.times(job.inference.output_len - 1)
        is_latency = job.inference.objective == "latency"
        return steps if is_latency else self.fill.plus(steps)


def price(job: ServingJob, rows: Deployments) -> Prices:
    """Return the phases of deployments."""
    one, requests = np.ones(len(rows), dtype=np.int64), rows.group_size
    attended = rows.attended(requests)
    return Prices(
        first_token=_phase(job, rows, *prefill_passes(job, one, one)),
        fill=_phase(job, rows, *prefill_passes(job, requests, attended)),
        step=_phase(job, rows, decode_pass(job, requests, attended), one),
    )


def _phase(
    job: ServingJob, rows: Deployments, forward: ForwardPass, passes: Ints
) -> Phase:
    kernels = Kernels(job, rows, forward)
    layer = added(
        scaled(Kernels(kind, rows, forward).layer_s(), share)
        for share, kind in jobs_of_kinds(job)
    )
    lead = job.model.first_dense_layers
    leading = added([kernels.dense_layer_s(), scaled(layer, -1.0)]) if lead else {}
    phase = Phase(layer, scaled(leading, lead), kernels.head_s(), kernels.send_s())
    return phase.times(passes)


def round_s(stages_s: Floats, groups: int) -> float:
    """Return the seconds in which every group passes every stage once."""
    return float(max(stages_s.sum(), groups * stages_s.max()))


def bubble(stages_s: Floats, groups: int) -> float:
    """Return the mean share of a round for which stages wait."""
    busy_s = groups * float(stages_s.mean())
    return 1 - busy_s / round_s(stages_s, groups)


def wait_s(limit_ms: float | None) -> float:
    """Return the longest wait that a limit allows, seconds."""
    return math.inf if limit_ms is None else limit_ms * 1e-3 * SLACK


CONTEXT_GIB = 1.5
"""CUDA context with kernels, 1.1 to 1.5 GiB: see `Framework.overhead_gib`."""

COMMUNICATOR_GIB = 0.4
"""Buffers of one NCCL communicator, 0.25 to 0.4 GiB: likewise."""

LOGIT_BYTES = 2 + 4
"""A logit in 16 bits, and in fp32 for sampling (vLLM, logits_processor.py)."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU by part, one row for each deployment."""

    layer: Parts
    """Bytes of every layer of a stage."""
    first: Parts
    """Bytes of the first stage beside its layers."""
    last: Parts
    """Bytes of the last stage beside its layers."""
    fixed: Parts
    """Bytes of every stage beside its layers."""


def memory(job: ServingJob, rows: Deployments) -> Memory:
    """Return the memory of deployments.

    Every stage caches its layers for the requests of all groups of its replica.
    Embedding and head stay in 16 bits, as quantised checkpoints have them; a layer's
    norms and biases are counted like its matrices.
    """
    model, tp = job.model, rows.attention_tp
    kinds = list(jobs_of_kinds(job))
    layer_bytes = [share * _layer_params(kind, rows) for share, kind in kinds]
    cached = [
        share * cached_bytes(kind, tp) * cached_tokens(kind) for share, kind in kinds
    ]
    working = [_activation_bytes(kind, rows) for _, kind in kinds]
    is_split = (tp > 1) & (rows.attention_dp > 1)
    communicators = (rows.tp > 1).astype(np.int64) + (rows.pp > 1) + is_split
    overhead = CONTEXT_GIB + COMMUNICATOR_GIB * communicators
    return Memory(
        layer={
            "weights": np.sum(layer_bytes, axis=0) * job.weight_bytes,
            "cache": rows.attended(rows.requests) * np.sum(cached, axis=0),
        },
        first={"weights": _first_bytes(job, rows)},
        last={
            "weights": ACTIVATION_BYTES * head_params(model, tp, rows.pp),
            "activations": _logit_bytes(job, rows),
        },
        fixed={
            "activations": np.max(working, axis=0),
            "overhead": np.asarray(overhead * GIB),
        },
    )


def _logit_bytes(job: ServingJob, rows: Deployments) -> Floats:
    sampled = rows.attended(rows.group_size)
    return np.asarray(LOGIT_BYTES * sampled * float(job.model.vocab))


def _layer_params(job: ServingJob, rows: Deployments) -> Floats:
    """Return a layer's parameters: experts are split over all groups of attention."""
    rest = layer_params(job.model, rows.attention_tp)
    return rest + expert_params(job.model, rows.tp)


def _first_bytes(job: ServingJob, rows: Deployments) -> Floats:
    """Return the bytes of the embedding, and of leading layers above others'."""
    tp = rows.attention_tp
    more = dense_layer_params(job.model, tp) - _layer_params(job, rows)
    lead = job.model.first_dense_layers * more * job.weight_bytes
    return np.asarray(ACTIVATION_BYTES * embedding_params(job.model, tp) + lead)


def cached_tokens(job: ServingJob) -> int:
    """Return the tokens in a request's cache when it is done, in whole pages.

    Kwon et al. 2023, PagedAttention, section 4.3: only the last page is partly empty.
    """
    block, most = job.inference.kv_block, reach(job)
    tokens = job.inference.context
    tokens = tokens if most is None else min(most, tokens)
    return -(-tokens // block) * block


def cached_bytes(job: ServingJob, tp: Ints) -> Floats:
    """Return the bytes that one GPU caches per layer and token.

    These are the keys and values of its heads; or the latent vector and rotary key,
    which every GPU of a tensor group needs whole (DeepSeek-AI 2024, arXiv 2405.04434,
    table 1).
    """
    model = job.model
    if model.mla is not None:
        return np.full(len(tp), float(latent_down_width(model) * job.cache_bytes))
    width = kv_width(model) + value_width(model)
    return width * job.cache_bytes / kv_shards(model, tp)


def _activation_bytes(job: ServingJob, rows: Deployments) -> Floats:
    """Return the working memory of the largest pass: nothing is kept for a backward.

    It holds the residual stream, its norm, and the inputs and outputs of attention or
    of the MLP, the wider of the two. Groups of attention gather the tokens of all for
    the experts, and hold what experts return of them.
    """
    inference, model, tp = job.inference, job.model, rows.attention_tp
    requests, groups = rows.attended(rows.group_size), rows.attention_dp
    prompts = np.minimum(requests * inference.prompt_len, inference.prefill_tokens)
    tokens = np.maximum(prompts, requests)
    held = (kv_width(model) + value_width(model)) / kv_shards(model, tp)
    attention = (query_width(model) + output_width(model)) / tp + held
    mlp = groups * (mlp_inputs(model) + 1) * _inner_width(job) / rows.tp
    gathered = np.where(groups > 1, 2 * groups * model.d_model, 0)
    widest = np.maximum(attention, mlp + gathered)
    return np.asarray(tokens * (2 * model.d_model + widest) * ACTIVATION_BYTES)


def _inner_width(job: ServingJob) -> int:
    """Return the total inner width of the MLPs that a token passes in one layer."""
    model = job.model
    if model.moe is None:
        return model.d_ff
    experts = model.moe.top_k * model.moe.d_ff + model.moe.shared_d_ff
    return max(experts, model.d_ff * (model.first_dense_layers > 0))
