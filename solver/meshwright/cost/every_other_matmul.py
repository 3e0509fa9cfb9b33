"""Selective recomputation by operations, as torchtitan has it (`SelectiveAC`).

It keeps the input of a layer and the results of attention, of collectives, and of the
first, third, fifth ... matmul with a weight in the order in which they run. All else is
repeated: the other matmuls, norms, activations, the router, and the grouped matmuls of
routed experts, which are no `aten.mm` (torchtitan 0.3.0,
distributed/activation_checkpoint.py). Queries, keys and values come of one matmul
(models/llama3/__init__.py: `fuse_qkv`), gate and value of two
(models/common/feed_forward.py): Llama's wo and w3 are repeated. Of collectives,
reduce-scatters and all-to-alls are kept and all-gathers repeated. In fp8 it is the
same: the policy sees the `aten.mm` of two of torchao's 8-bit tensors, not the
`aten._scaled_mm` that this calls (torchao/float8/float8_linear.py). torchao's published
runs hold as much in fp8 as in bf16, within 1 % (benchmarks/runs/torchao.yaml).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from meshwright.cost.parameters_and_flops import (
    kv_projected,
    kv_shards,
    latent_down_width,
    latent_up_width,
    output_width,
    query_width,
)
from meshwright.cost.roofline import Work
from meshwright.cost.saved import Layer, Saved, Split
from meshwright.plans.columns import Floats
from meshwright.plans.recomputation import PER_OP
from meshwright.spec.model import Model
from meshwright.spec.model_parts import LatentAttention


class Linear(NamedTuple):
    """A matmul with a weight: its widths, and how tensor parallelism splits it."""

    inputs: int
    outputs: int
    split: Split
    """How the result is split; `whole` where the inputs are split instead."""
    kv_outputs: int = 0
    """Further outputs, split by key and value heads."""

    def kept(self, layer: Layer) -> Iterator[Saved]:
        """Yield the result, where layers are recomputed by operations."""
        size, kv_size = layer.element * self.outputs, layer.element * self.kv_outputs
        yield Saved("matmul result", 0.0, self.split, PER_OP, size)
        yield Saved("keys and values", 0.0, "kv", PER_OP, kv_size)

    def seconds(self, work: Work) -> Floats:
        """Return the seconds of the matmul on one GPU."""
        tp, linear_s = work.shards.tp, work.gpu.linear_s
        if self.split == "sequence":
            return linear_s(work.gpu_tokens, self.outputs, self.inputs)
        if self.split == "whole":
            return linear_s(work.tokens, self.outputs, self.inputs / tp)
        keys_and_values = self.kv_outputs / kv_shards(work.model, tp)
        outputs = self.outputs / tp + keys_and_values
        return linear_s(work.tokens, outputs, self.inputs)


def linears(model: Model, is_dense: bool) -> list[Linear]:
    """Return the matmuls of a layer with a weight, in the order in which they run."""
    mlp = model.d_ff if is_dense or model.moe is None else model.moe.shared_d_ff
    ins = [Linear(model.d_model, mlp, "tensor")] * (2 if model.gated_mlp else 1)
    out = Linear(mlp, model.d_model, "whole")
    return [*_attention(model), *([*ins, out] if mlp else [])]


def _attention(model: Model) -> list[Linear]:
    width = model.d_model
    if model.mixer != "attention":
        return _state_space(model)
    out = Linear(output_width(model), width, "whole")
    if model.mla is not None:
        return [*_latents(model, model.mla), out]
    queries = query_width(model) * (2 if model.output_gate else 1)
    return [Linear(width, queries, "tensor", kv_projected(model)), out]


def _state_space(model: Model) -> list[Linear]:
    mixer = model.state_space
    if model.mixer == "none" or mixer is None:
        return []
    out = Linear(mixer.inner, model.d_model, "whole")
    return [Linear(model.d_model, mixer.input_width, "tensor"), out]


def _latents(model: Model, mla: LatentAttention) -> list[Linear]:
    width, queries = model.d_model, query_width(model)
    down = Linear(width, latent_down_width(model), "sequence")
    up = Linear(mla.kv_rank, latent_up_width(model), "tensor")
    if not mla.q_rank:
        return [Linear(width, queries, "tensor"), down, up]
    to_queries = Linear(mla.q_rank, queries, "tensor")
    return [Linear(width, mla.q_rank, "sequence"), to_queries, down, up]


def kept_per_op(layer: Layer, is_dense: bool) -> list[Saved]:
    """Return what a layer that is recomputed by operations keeps beside attention.

    These are tensors that a layer which is not recomputed does not save.
    """
    model, size = layer.model, layer.element * layer.model.d_model
    kept = [Saved("layer input", 0.0, "sequence", PER_OP, size)]
    matmuls = linears(model, is_dense)
    for linear in matmuls[::2]:
        kept += linear.kept(layer)
    scattered = sum(linear.split == "whole" for linear in matmuls)
    kept.append(Saved("scattered results", 0.0, "scattered", PER_OP, scattered * size))
    if model.moe is not None and not is_dense:
        copies = model.moe.top_k * (model.moe.capacity_factor or 1.0)
        # Tokens that have come to their experts, and their results that have come back.
        sent = 2 * copies * size
        kept.append(Saved("exchanged tokens", 0.0, "exchanged", PER_OP, sent))
    return kept


def repeated_matmuls_s(work: Work, is_dense: bool) -> Floats:
    """Return the seconds of the matmuls with a weight that are repeated."""
    seconds = np.zeros(len(work.shards))
    for linear in linears(work.model, is_dense)[1::2]:
        seconds = seconds + linear.seconds(work)
    return seconds
