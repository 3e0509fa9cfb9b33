"""Seconds of one layer's kernels on one GPU, by roofline.

A kernel takes the longest of its FLOPs at the rate its shape reaches, its bytes at
the memory's rate, and the launch floor (Williams et al. 2009, 'Roofline').
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from meshwright.cost.activations import ELEMENT_BYTES
from meshwright.cost.arrays import Floats, Ints
from meshwright.cost.efficiency import Efficiency
from meshwright.cost.shards import Shards
from meshwright.cost.transformer import (
    input_norms,
    kv_shards,
    kv_width,
    output_norms,
    query_width,
)
from meshwright.spec.spec import Spec

FLASH_BACKWARD = 2.5
"""Fused attention's backward has five matmuls to the forward's two (Dao 2023, 3.1)."""


@dataclass(frozen=True)
class Kernels:
    """Seconds per layer and micro-batch on one GPU, and of the ends of the model."""

    forward_s: Floats
    backward_s: Floats
    selective_s: Floats
    """What selective recomputation runs again."""
    weight_s: Floats
    attention_s: Floats
    attention_backward_s: Floats
    dense_forward_s: Floats
    dense_backward_s: Floats
    embedding_s: Floats
    head_s: Floats
    """Final norm, head and loss, forward and backward."""

    def take(self, index: Ints) -> Kernels:
        """Return the rows of `index`."""
        return Kernels(*(getattr(self, f.name)[index] for f in fields(self)))


@dataclass(frozen=True)
class _Machine:
    """One GPU as kernels see it."""

    peak_flops: float
    memory_bytes_per_s: float
    element: int
    efficiency: Efficiency

    def matmul_s(self, m: Floats, n: Floats, k: Floats) -> Floats:
        """Return the seconds of an (m, k) x (k, n) matmul."""
        half = self.efficiency.gemm_half_size
        fill = m / (m + half) * n / (n + half) * k / (k + half)
        flops_s = 2 * m * n * k / (self.peak_flops * self.efficiency.gemm * fill)
        return np.maximum(flops_s, self.stream_s(m * k + k * n + m * n))

    def attention_s(self, flops: Floats, elements: Floats) -> Floats:
        """Return the seconds of fused attention."""
        flops_s = flops / (self.peak_flops * self.efficiency.attention)
        return np.maximum(flops_s, self.stream_s(elements))

    def stream_s(self, elements: Floats) -> Floats:
        """Return the seconds to read and write `elements`, one kernel at least."""
        rate = self.memory_bytes_per_s * self.efficiency.memory
        return np.maximum(elements * self.element / rate, self.efficiency.launch_s)


def kernels(spec: Spec, efficiency: Efficiency, shards: Shards) -> Kernels:
    """Return the kernel times of a layer."""
    machine = _Machine(
        spec.peak_flops,
        spec.cluster.topology.gpu.memory_gb_s * 1e9,
        ELEMENT_BYTES[spec.training.precision],
        efficiency,
    )
    tp, tokens = shards.tp, shards.tokens(spec.training.seq_len)
    own_tokens = tokens / shards.sequence_shards
    matmuls = _matmuls_s(spec, machine, tokens, tp)
    attention, attention_backward = _attention_s(spec, machine, tokens, tp)
    norm = machine.stream_s(2 * own_tokens * spec.model.d_model)
    # Those before a matmul: selective recomputation runs them again, no others.
    norms = input_norms(spec.model) * norm
    activation = _activation_s(spec, machine, tokens, tp)
    other = _residual_s(spec, machine, own_tokens) + _rotary_s(
        spec, machine, tokens, tp
    )
    elementwise = norms + output_norms(spec.model) * norm + activation + other
    plain = spec.training.attention == "plain"
    forward_s = matmuls + attention + elementwise
    backward_s = 2 * matmuls + attention_backward + 2 * elementwise
    return Kernels(
        # Kernels queue up behind the host: the slower of the two sets the pace.
        forward_s=np.maximum(forward_s, efficiency.dispatch_s),
        backward_s=np.maximum(backward_s, 2 * efficiency.dispatch_s),
        weight_s=matmuls,
        attention_s=attention,
        attention_backward_s=attention_backward,
        dense_forward_s=np.maximum(forward_s, efficiency.dispatch_s),
        dense_backward_s=np.maximum(backward_s, 2 * efficiency.dispatch_s),
        selective_s=attention if plain else norms + activation,
        # Forward, and twice that backward, of the look-up and of a norm after it.
        embedding_s=(1 + spec.model.embedding_norm) * 3 * norm,
        head_s=_head_s(spec, machine, tokens, own_tokens, tp),
    )


def _matmuls_s(spec: Spec, machine: _Machine, tokens: Floats, tp: Ints) -> Floats:
    model = spec.model
    queries = query_width(model) / tp
    qkv = queries + 2 * kv_width(model) / kv_shards(model, tp)
    inner = model.d_ff / tp
    width = np.full(len(tokens), float(model.d_model))
    mlp_in = (2 if model.gated_mlp else 1) * inner
    return (
        machine.matmul_s(tokens, qkv, width)
        + machine.matmul_s(tokens, width, queries)
        + machine.matmul_s(tokens, mlp_in, width)
        + machine.matmul_s(tokens, width, inner)
    )


def _attention_s(
    spec: Spec, machine: _Machine, tokens: Floats, tp: Ints
) -> tuple[Floats, Floats]:
    """Return forward and backward seconds of the attention core."""
    model, seq_len = spec.model, spec.training.seq_len
    queries = query_width(model) / tp
    if spec.training.attention == "flash":
        # A causal kernel skips the masked half of the two seq_len^2 matmuls.
        flops = 2 * tokens * seq_len * queries
        moved = tokens * (2 * queries + 2 * kv_width(model) / kv_shards(model, tp))
        forward = machine.attention_s(flops, moved)
        backward = machine.attention_s(FLASH_BACKWARD * flops, 2 * moved)
        return forward, backward
    heads = model.n_heads / tp
    length = np.full(len(tokens), float(seq_len))
    one_head = np.full(len(tokens), float(model.head_dim))
    batch = tokens / seq_len * heads
    scores = batch * (
        machine.matmul_s(length, length, one_head)
        + machine.matmul_s(length, one_head, length)
    )
    # Scores are written, read and written by softmax, and read by the second matmul.
    softmax = machine.stream_s(4 * tokens * seq_len * heads)
    return scores + softmax, 2 * (scores + softmax)


def _activation_s(spec: Spec, machine: _Machine, tokens: Floats, tp: Ints) -> Floats:
    passes = 3 if spec.model.gated_mlp else 2
    return machine.stream_s(passes * tokens * spec.model.d_ff / tp)


def _residual_s(spec: Spec, machine: _Machine, own_tokens: Floats) -> Floats:
    return 2 * machine.stream_s(3 * own_tokens * spec.model.d_model)


def _rotary_s(spec: Spec, machine: _Machine, tokens: Floats, tp: Ints) -> Floats:
    if spec.model.learned_positions or spec.model.alibi:
        return np.zeros(len(tokens))
    model = spec.model
    rotated = query_width(model) / tp + kv_width(model) / kv_shards(model, tp)
    return machine.stream_s(2 * tokens * rotated)


def _head_s(
    spec: Spec, machine: _Machine, tokens: Floats, own_tokens: Floats, tp: Ints
) -> Floats:
    """Return the seconds of final norm, head and loss, forward and backward."""
    rows = spec.model.vocab / tp
    width = np.full(len(tokens), float(spec.model.d_model))
    norm = 3 * machine.stream_s(2 * own_tokens * spec.model.d_model)
    # The loss reads and writes the logits in fp32 forward and backward.
    logits = 4 * machine.stream_s(4 / machine.element * tokens * rows)
    return norm + 3 * machine.matmul_s(tokens, rows, width) + logits
