"""Seconds of one pass through a layer on one GPU, by roofline.

A pass is a prefill of prompts or one step of decoding: the formulas are the same, and
which of compute, memory and launches binds is for them to say. Engines replay CUDA
graphs, so that no pass waits for the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.cost.collectives import all_gather_s, all_reduce_s, send_s
from meshwright.cost.roofline import Sizes
from meshwright.cost.transformer import (
    input_norms,
    kv_shards,
    kv_width,
    latent_down_width,
    latent_up_width,
    mlp_inputs,
    output_norms,
    output_width,
    query_width,
    value_width,
)
from meshwright.plans.columns import Floats, Parts
from meshwright.serving.deployment import Deployments
from meshwright.serving.job import ACTIVATION_BYTES, ServingJob
from meshwright.serving.memory import cached_bytes
from meshwright.serving.passes import Pass
from meshwright.spec.model import Experts

LEAST_TILE = 16
"""Rows of the smallest tile of tensor cores (NVIDIA, PTX ISA, mma.m16n8k16)."""

LOGIT_ELEMENTS = 5
"""16-bit numbers that sampling moves per logit: read, written in fp32, read again."""


@dataclass(frozen=True)
class Kernels:
    """Kernels of one layer's share on one GPU of a deployment."""

    job: ServingJob
    rows: Deployments
    own: Pass

    def layer_s(self) -> Parts:
        """Return the seconds of a repeating layer, by part."""
        moe = self.job.model.moe
        return self._layer_s(self._dense_s() if moe is None else self._experts_s(moe))

    def dense_layer_s(self) -> Parts:
        """Return the seconds of a leading layer, which has no experts."""
        return self._layer_s(self._dense_s())

    def head_s(self) -> Parts:
        """Return the seconds of final norm, head and sampling."""
        model, tp, sampled = self.job.model, self.rows.tp, self.own.sampled
        flops, logits = self.job.machine.matmul_flops, sampled * model.vocab
        shape = (sampled, model.vocab / tp, float(model.d_model))
        head = self._matmul_s(shape, ACTIVATION_BYTES, flops)
        sampling = self.job.machine.stream_s(LOGIT_ELEMENTS * logits)
        return {
            "head": head + sampling + self._norm_s(),
            "tensor links": self._on_tensor_links(all_gather_s, logits),
        }

    def send_s(self) -> Parts:
        """Return the seconds to hand the residual stream to the next stage."""
        rows, machine = self.rows, self.job.machine
        own = machine.efficiency
        hidden = self.own.tokens * self.job.model.d_model * ACTIVATION_BYTES
        s_per_byte, latency_s = rows.pp_s_per_byte / own.link, rows.pp_latency_s
        seconds = own.launch_s + send_s(hidden, s_per_byte, latency_s * own.latency)
        return {"pipeline sends": np.where(rows.pp > 1, seconds, 0.0)}

    def _layer_s(self, inner: Parts) -> Parts:
        attention = self._attention_matmuls_s()
        hidden = self.own.tokens * self.job.model.d_model
        return {
            "weight matmuls": attention + inner["weight matmuls"],
            "attention": self._core_s(),
            "small kernels": self._small_s() + inner["small kernels"],
            "tensor links": 2 * self._on_tensor_links(all_reduce_s, hidden),
        }

    def _on_tensor_links(
        self, formula: Callable[..., Floats], elements: Floats
    ) -> Floats:
        """Return the seconds of a collective of the tensor group, one kernel each."""
        rows, own = self.rows, self.job.machine.efficiency
        s_per_byte, latency_s = rows.tp_s_per_byte / own.link, rows.tp_latency_s
        whole = elements * ACTIVATION_BYTES
        seconds = formula(whole, rows.tp, s_per_byte, latency_s * own.latency)
        return np.where(rows.tp > 1, own.launch_s + seconds, 0.0)

    def _linear_s(self, n: Sizes, k: Sizes) -> Floats:
        """Return the seconds of the pass's tokens times (k, n) weights of a layer."""
        job = self.job
        return self._matmul_s(
            (self.own.tokens, n, k), job.weight_bytes, job.matmul_flops
        )

    def _matmul_s(
        self,
        shape: tuple[Sizes, Sizes, Sizes],
        weight_bytes: float,
        flops: float,
        copies: Sizes = 1.0,
    ) -> Floats:
        """Return the seconds of (m, k) inputs times (k, n) weights, `copies` of both.

        Libraries have tiles from `LEAST_TILE` rows up, each twice the last, so that few
        rows are padded by no more than as many again.
        """
        machine, (m, n, k) = self.job.machine, shape
        half = machine.efficiency.gemm_half_size
        padding = np.minimum(half, np.maximum(m, LEAST_TILE))
        flops_s = machine.padded_s(m + padding, n, k, flops)
        passed = m * k + m * n
        elements = copies * (passed + n * k * weight_bytes / ACTIVATION_BYTES)
        return np.maximum(copies * flops_s, machine.stream_s(elements))

    def _attention_matmuls_s(self) -> Floats:
        """Return the seconds of the matrices around attention.

        Decoding brings queries into the latent space by the weights that project keys
        up in a prefill (DeepSeek-AI 2024, arXiv 2405.04434, 2.1.2): as many FLOPs.
        """
        model, tp, mla = self.job.model, self.rows.tp, self.job.model.mla
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

        4 FLOPs per pair and number of a head's width (Dao 2023, FlashAttention-2, 4.1).
        """
        model, tp, own = self.job.model, self.rows.tp, self.own
        width = query_width(model) + output_width(model)
        elements = own.tokens * width / tp
        elements += own.cached * cached_bytes(self.job, tp) / ACTIVATION_BYTES
        if model.mla is not None and not own.is_prefill:
            width = model.n_heads * (2 * model.mla.kv_rank + model.mla.rope_dim)
        return self.job.machine.attention_s(2 * own.pairs * width / tp, elements)

    def _small_s(self) -> Floats:
        """Return the seconds of norms, each with its addition, and of the cache.

        Rotary positions are applied where keys and values are written.
        """
        model, tp = self.job.model, self.rows.tp
        norms = input_norms(model) + output_norms(model)
        held = (kv_width(model) + value_width(model)) / kv_shards(model, tp)
        turned = 2 * self.own.tokens * (query_width(model) / tp + held)
        return norms * self._norm_s() + self.job.machine.stream_s(turned)

    def _norm_s(self) -> Floats:
        return self.job.machine.stream_s(4 * self.own.tokens * self.job.model.d_model)

    def _dense_s(self) -> Parts:
        return self._mlp_s(self.job.model.d_ff)

    def _mlp_s(self, inner: int) -> Parts:
        model, own = self.job.model, inner / self.rows.tp
        inputs = mlp_inputs(model)
        matmuls = self._linear_s(inputs * own, model.d_model)
        activation = self.job.machine.stream_s((inputs + 1) * self.own.tokens * own)
        return {
            "weight matmuls": matmuls + self._linear_s(model.d_model, own),
            "small kernels": activation,
        }

    def _experts_s(self, moe: Experts) -> Parts:
        """Return the seconds of router, routed and shared experts.

        Every expert is split over the tensor group. A token's experts are taken as
        drawn evenly, so that of E experts E (1 - (1 - k/E)^tokens) are read.
        """
        width, inputs = self.job.model.d_model, mlp_inputs(self.job.model)
        stream_s, inner = self.job.machine.stream_s, moe.d_ff / self.rows.tp
        copies = self.own.tokens * moe.top_k
        missed = (1 - moe.top_k / moe.n_experts) ** self.own.tokens
        met = moe.n_experts * (1 - missed)
        kind = (self.job.weight_bytes, self.job.matmul_flops, met)
        up = self._matmul_s((copies / met, inputs * inner, width), *kind)
        down = self._matmul_s((copies / met, width, inner), *kind)
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
