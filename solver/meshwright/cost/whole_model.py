"""Parameters, FLOPs of a step and bytes of state of a whole model, on all its GPUs."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from meshwright.cost.parameters_and_flops import (
    ONE,
    attention_matrices,
    dense_layer_params,
    embedding_params,
    expert_params,
    expert_width,
    head_params,
    layer_params,
    mlp_inputs,
    mtp_params,
    mtp_projection_params,
    one_expert_params,
    output_width,
    query_width,
    scan_macs,
)
from meshwright.cost.state import (
    end_copy_state,
    end_state,
    layer_state,
    state_bytes,
)
from meshwright.cost.weights import adapters
from meshwright.frameworks.base.framework import StateBytes
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec
from meshwright.spec.training import Lora


class KindOfLayer(NamedTuple):
    """Layers that are alike, as a model that has only such layers."""

    name: str
    model: Model
    layers: int
    is_dense: bool
    """Whether they have no experts."""


def kinds_of_layers(model: Model) -> list[KindOfLayer]:
    """Return the layers of a model by kind; leading dense ones are a kind too.

    Those that predict further tokens count as of the last kind.
    """
    if not model.pattern:
        leading, is_dense = model.first_dense_layers, model.moe is None
        layers = model.n_layers + model.mtp_layers - leading
        rest = KindOfLayer("layer", model, layers, is_dense)
        return [KindOfLayer("dense", model, leading, True), rest] if leading else [rest]
    order, counts = model.order, Counter(model.order.leading)
    for name in order.repeated:
        counts[name] += order.repeats
    counts[order.repeated[-1]] += model.mtp_layers
    kinds = ((name, model.of_kind(name)) for name in order.names)
    return [KindOfLayer(n, kind, counts[n], kind.moe is None) for n, kind in kinds]


def total_params(model: Model) -> int:
    """Return the parameters of the whole model."""
    ends = embedding_params(model, ONE) + head_params(model, ONE, ONE)
    further = model.mtp_layers * int(mtp_params(model, ONE)[0])
    return (
        further
        + int(ends[0])
        + sum(kind.layers * _layer_params(kind) for kind in kinds_of_layers(model))
    )


def stated_params(model: Model) -> int:
    """Return the parameters by which models are compared, as their authors state them.

    Layers that predict further tokens are left out: they only help to train the others.
    """
    return total_params(model.model_copy(update={"mtp_layers": 0}))


def _layer_params(kind: KindOfLayer) -> int:
    if kind.is_dense:
        return int(dense_layer_params(kind.model, ONE)[0])
    return int((layer_params(kind.model, ONE) + expert_params(kind.model, ONE))[0])


def active_params(model: Model) -> int:
    """Return the parameters that one token uses; of routed experts, top_k."""
    if model.moe is None:
        return total_params(model)
    layers = sum(kind.layers for kind in kinds_of_layers(model) if not kind.is_dense)
    idle = layers * (model.moe.n_experts - model.moe.top_k)
    return total_params(model) - idle * one_expert_params(model)


def layer_matmul_params(model: Model, is_dense: bool = False) -> int:
    """Return the weights of one layer in the matmuls of a token."""
    mixing = sum(attention_matrices(model))
    if is_dense or model.moe is None:
        return mixing + (mlp_inputs(model) + 1) * model.d_model * model.d_ff
    moe, matrices = model.moe, mlp_inputs(model) + 1
    routed = matrices * expert_width(model, moe) * moe.top_k * moe.d_ff
    shared = matrices * model.d_model * moe.shared_d_ff
    whole = moe.n_experts + moe.shared_gate + 2 * moe.latent_d
    return mixing + routed + shared + model.d_model * whole


def step_flops(model: Model, seq_len: int, global_batch: float) -> float:
    """Return the model FLOPs of one step: no recomputation, causal attention once.

    They are 6 FLOPs per matmul weight and token, with head, router and top_k experts
    (Kaplan et al. 2020, table 1), and 6 per multiply-add between queries and the keys
    and values that they may see: 3 x seq_len x (query width + output width) per layer
    and token for the half of the scores that a causal mask keeps (Korthikanti et al.
    2022, appendix A, halved), and less inside a window.
    """
    mixing = math.fsum(
        kind.layers * mixing_macs(kind.model, seq_len)
        for kind in kinds_of_layers(model)
    )
    return 6.0 * (matmul_params(model) + mixing) * seq_len * global_batch


def matmul_params(model: Model) -> int:
    """Return the weights in the matmuls of a token, with those of the head.

    Those of the head count once for each token that is predicted.
    """
    layers = sum(
        kind.layers * layer_matmul_params(kind.model, kind.is_dense)
        for kind in kinds_of_layers(model)
    )
    head, further = model.vocab * model.d_model, model.mtp_layers
    return layers + head + further * (head + mtp_projection_params(model))


def recomputed_flops(model: Model, seq_len: int, global_batch: float) -> float:
    """Return the FLOPs of one repeated layer's forward in a step, in the mean."""
    macs = 0.0
    for name, share in model.order.shares().items():
        kind = model.of_kind(name)
        macs += share * (layer_matmul_params(kind) + mixing_macs(kind, seq_len))
    return 2.0 * macs * seq_len * global_batch


def mixing_macs(model: Model, seq_len: int) -> float:
    """Return the multiply-adds per layer and token between tokens of a sequence."""
    if model.mixer == "none":
        return 0.0
    if (mixer := model.mixing_space) is not None:
        return scan_macs(mixer, is_causal=True)
    seen = keys_seen(model, seq_len)
    macs = seen * (query_width(model) + output_width(model))
    indexer = model.indexer
    if indexer is None:
        return macs
    return macs + seq_len / 2 * indexer.n_heads * indexer.head_dim


def keys_seen(model: Model, seq_len: int) -> float:
    """Return how many keys a token attends to in the mean under a causal mask.

    All before it are half of the sequence. In a window of w tokens it is w, but for
    the first w tokens, which see half of that; in a chunk half of the chunk.
    """
    if model.attention_chunk:
        return min(model.attention_chunk, seq_len) / 2
    window = model.attention_window
    if model.picker is not None:
        window = model.picker.top_k
    if not 0 < window < seq_len:
        return seq_len / 2
    return window - window**2 / (2 * seq_len)


def job_flops(spec: Spec) -> float:
    """Return the model FLOPs of one step: no recomputation, causal attention once.

    A frozen weight has 4 FLOPs per token instead of 6, for nothing needs its gradient;
    LoRA's adapters have their 6, and a head that is trained beside them.
    """
    model, training = spec.model, spec.training
    texts = training.global_batch * training.texts
    flops = step_flops(model, training.text_tokens, texts)
    if training.lora is None:
        return flops
    head = training.lora.trains_ends * model.vocab * model.d_model
    more = 6.0 * _adapter_params(model, training.lora)
    more -= 2.0 * (matmul_params(model) - head)
    return flops + more * training.seq_len * training.global_batch


def state_size(spec: Spec) -> float:
    """Return the bytes of weights, gradients and optimizer state."""
    trained = math.fsum(params * state.total for params, state in _trained(spec))
    return trained if spec.training.lora is None else trained + _frozen_size(spec)


def checkpoint_size(spec: Spec) -> float:
    """Return the bytes of a checkpoint: what is trained, and its optimizer state."""
    return math.fsum(
        params * (state.weights + state.optimizer) for params, state in _trained(spec)
    )


def _frozen_size(spec: Spec) -> float:
    model = spec.model
    at_ends = float((embedding_params(model, ONE) + head_params(model, ONE, ONE))[0])
    layers = (total_params(model) - at_ends) * layer_state(spec).weights
    return layers + at_ends * end_state(spec).weights


def trained_params(spec: Spec) -> int:
    """Return the parameters that are trained: all, or those beside frozen ones."""
    return sum(params for params, _ in _trained(spec))


def _trained(spec: Spec) -> list[tuple[int, StateBytes]]:
    """Return how many parameters are trained in each state."""
    model, lora, state = spec.model, spec.training.lora, state_bytes(spec)
    if lora is None:
        return [(total_params(model), state)]
    copies = 2 * lora.trains_ends * model.vocab * model.d_model
    return [(_adapter_params(model, lora), state), (copies, end_copy_state(spec))]


def _adapter_params(model: Model, lora: Lora) -> int:
    return sum(kind.layers * _of_layer(kind, lora) for kind in kinds_of_layers(model))


def _of_layer(kind: KindOfLayer, lora: Lora) -> int:
    found = adapters(kind.model, lora, kind.is_dense)
    return sum(lora.rank * (adapter.inputs + adapter.outputs) for adapter in found)
