"""The tensors that a layer saves for its backward, one by one.

With plain attention, dropout, n_kv_heads = n_heads and d_ff = 4 d_model these add up
to Korthikanti et al. 2022, eq. 1 (34 + 5 a s / h bytes per token and width), eq. 2
under tensor and eq. 4 under sequence parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from meshwright.cost.arrays import Floats
from meshwright.cost.shards import Shards
from meshwright.cost.transformer import (
    input_norms,
    kv_shards,
    kv_width,
    output_norms,
    query_width,
)
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}


@dataclass(frozen=True)
class Saved:
    """One saved tensor."""

    name: str
    bytes_per_token: float
    split: Literal["tensor", "kv", "sequence"]
    """Over the tensor-parallel group always, over as many of it as there are key and
    value heads, or only under sequence parallelism."""
    is_selective: bool = False
    """Whether selective recomputation frees it: cheap to compute, large to keep."""


def saved_tensors(spec: Spec) -> list[Saved]:
    """Return what one layer saves per token.

    Selective recomputation frees the attention scores of plain attention (Korthikanti
    et al. 2022, section 5). Fused attention never saves those; there it frees norm
    and activation outputs (Megatron-LM's `--recompute-modules layernorm mlp_act`).
    """
    model, element = spec.model, ELEMENT_BYTES[spec.training.precision]
    fused = spec.training.attention == "flash"
    width = element * model.d_model
    tensors = [
        Saved("attention norm input", width, "sequence"),
        Saved("attention input", width, "sequence", fused),
        Saved("queries", element * query_width(model), "tensor"),
        Saved("keys and values", 2 * element * kv_width(model), "kv"),
        Saved("attention output", element * query_width(model), "tensor"),
    ]
    tensors += _later_norms(model, width, fused)
    tensors += _scores(model, element, spec.training.seq_len, fused)
    tensors += _mlp(model, element, fused)
    if model.dropout:
        tensors.append(Saved("residual dropout masks", 2 * model.d_model, "sequence"))
    return tensors


def _later_norms(model: Model, width: int, fused: bool) -> list[Saved]:
    """Return what the norms of a layer save beside the first.

    Parallel attention and MLP read the layer's input, so that their norms save one
    tensor between them. A norm after them saves what it reads alone.
    """
    tensors = []
    if not model.parallel_residual:
        tensors.append(Saved("mlp norm input", width, "sequence"))
    if input_norms(model) > 1:
        tensors.append(Saved("mlp input", width, "sequence", fused))
    if output_norms(model):
        inputs = output_norms(model) * width
        tensors.append(Saved("output norm inputs", inputs, "sequence"))
    return tensors


def _scores(model: Model, element: int, seq_len: int, fused: bool) -> list[Saved]:
    if fused:
        return [Saved("softmax statistics", 4 * model.n_heads, "tensor")]
    scores = model.n_heads * seq_len
    tensors = [Saved("softmax output", element * scores, "tensor", True)]
    if model.dropout:
        kept = (element + 1) * scores
        tensors.append(Saved("score dropout and mask", kept, "tensor", True))
    return tensors


def _mlp(model: Model, element: int, fused: bool) -> list[Saved]:
    inner = element * model.d_ff
    inputs = 2 if model.gated_mlp else 1
    return [
        Saved("activation function input", inputs * inner, "tensor"),
        Saved("activation function output", inner, "tensor", fused),
    ]


def layer_input_bytes(spec: Spec, shards: Shards) -> Floats:
    """Return the bytes per token of a layer's input, all that full recompute keeps."""
    element = ELEMENT_BYTES[spec.training.precision]
    return element * spec.model.d_model / shards.sequence_shards


def saved_bytes(spec: Spec, shards: Shards, selective: bool) -> Floats:
    """Return the bytes per token that one layer saves on one GPU."""
    splits = {
        "tensor": shards.tp,
        "kv": kv_shards(spec.model, shards.tp),
        "sequence": shards.sequence_shards,
    }
    kept = [t for t in saved_tensors(spec) if not (selective and t.is_selective)]
    result = np.zeros(len(shards))
    for tensor in kept:
        result = result + tensor.bytes_per_token / splits[tensor.split]
    return result


def dense_saved_bytes(spec: Spec, shards: Shards, selective: bool) -> Floats:
    """Stub."""
    return saved_bytes(spec, shards, selective)
