"""Bytes per token that a layer, or the head, saves on one GPU.

Each saved tensor (`cost.activations`) is split over its own groups of GPUs.
"""

from __future__ import annotations

import numpy as np

from meshwright.cost.activations import layer_of, saved_tensors
from meshwright.cost.parameters_and_flops import kv_shards
from meshwright.cost.saved import Saved
from meshwright.cost.state import expert_imbalance
from meshwright.frameworks.base.registry import context_exchange_of
from meshwright.plans.columns import Floats, Ints
from meshwright.plans.precision import ELEMENT_BYTES
from meshwright.plans.skeletons import Shards
from meshwright.spec.spec import Spec


def head_saved_bytes(spec: Spec, shards: Shards) -> Floats:
    """Return the bytes per token that the final norm and the head save on one GPU.

    The matmul of the head is never in 8 bits. A frozen head needs no input for its
    gradient.
    """
    layer, width = layer_of(spec), spec.model.d_model
    tensors = layer.norms("final norm", width, 1, 1, "sequence")
    if layer.adapted is None:
        tensors = [*tensors, layer.saved("head input", width, "sequence")]
    return _on_one_gpu(tensors, spec, shards, 0)


def layer_input_bytes(spec: Spec, shards: Shards) -> Floats:
    """Return the bytes per token of a layer's input: what full recomputation keeps."""
    is_split = spec.training.partition_activations
    parts = shards.tp if is_split else shards.sequence_shards
    return ELEMENT_BYTES[spec.training.precision] * spec.model.d_model / parts


def saved_bytes(spec: Spec, shards: Shards, repeated: Ints | int = 0) -> Floats:
    """Return the bytes per token that one layer saves on one GPU.

    `repeated` is what is recomputed of it, as bits.
    """
    return _on_one_gpu(saved_tensors(spec, False), spec, shards, repeated)


def dense_saved_bytes(spec: Spec, shards: Shards, repeated: Ints | int = 0) -> Floats:
    """Return the bytes per token of a leading layer, whose MLP is dense."""
    return _on_one_gpu(saved_tensors(spec, True), spec, shards, repeated)


def _on_one_gpu(
    tensors: list[Saved], spec: Spec, shards: Shards, repeated: Ints | int
) -> Floats:
    sequence, kv = shards.sequence_shards, kv_shards(spec.model, shards.tp)
    exchange = context_exchange_of(spec)
    is_gathered, is_swapped = exchange == "gather", exchange == "ulysses"
    routed = sequence / np.where(shards.ep > 1, expert_imbalance(spec), 1.0)
    splits = {
        "tensor": shards.tp,
        "kv": kv,
        "keys": kv / shards.cp if is_gathered else kv,
        "sequence": sequence,
        "whole": np.ones(1),
        "scattered": np.where(shards.tp > 1, sequence, np.inf),
        "swapped": np.where((shards.cp > 1) & is_swapped, shards.tp, np.inf),
        "routed": routed,
        "exchanged": np.where(shards.ep > 1, routed, np.inf),
    }
    bits, result = np.asarray(repeated), np.zeros(len(shards))
    every = int(np.bitwise_or.reduce(bits, axis=None))
    for tensor in tensors:
        size: float | Floats = tensor.bytes_per_token
        if tensor.freed_by & every:
            is_freed = bits & tensor.freed_by > 0
            size = np.where(is_freed, tensor.kept_per_token, tensor.bytes_per_token)
        result = result + size / splits[tensor.split]
    return result
