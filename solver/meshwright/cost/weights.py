"""The parameters that one GPU holds, LoRA's adapters among them, and their groups.

Adapters are two small matrices beside a frozen one (Hu et al. 2021, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.parameters_and_flops import (
    dense_layer_params,
    embedding_params,
    expert_params,
    head_params,
    kv_shards,
    kv_width,
    latent_down_width,
    latent_up_width,
    layer_params,
    matrix_params,
    mlp_inputs,
    mtp_params,
    mtp_projection_params,
    output_width,
    query_width,
    table_params,
)
from meshwright.cost.roofline import Work
from meshwright.cost.saved import Saved, Split
from meshwright.cost.state import (
    FROZEN_BYTES,
    end_copy_state,
    end_state,
    has_wide_stream,
    layer_state,
    matrix_state,
    reference_state,
    state_bytes,
    updates_matrices,
)
from meshwright.frameworks.base.framework import StateBytes
from meshwright.plans.columns import Floats, Ints
from meshwright.plans.skeletons import Sharding, Skeletons
from meshwright.spec.model import Model
from meshwright.spec.model_parts import LatentAttention, StateSpace
from meshwright.spec.spec import Spec
from meshwright.spec.training import GROUPS, Lora
from meshwright.topology.groups import (
    DP_REPLICATE,
    EXPERT_REPLICATE,
)


@dataclass(frozen=True)
class Weights:
    """Parameters on one GPU before ZeRO, and their groups, one row per skeleton."""

    params: Floats
    sharding: Sharding
    replicas: Ints
    """Members of the group that holds replicas."""
    replica_group: int
    """Column of that group in `PathCosts`."""
    state: StateBytes
    """State of each of the parameters."""
    is_adapter: bool = False


def layer_weights(
    job: Job,
    rows: Skeletons,
    further: Floats | float = 0.0,
    of_matrices: Floats | float = 0.0,
) -> list[Weights]:
    """Return the weights of one layer: those of experts and adapters separately.

    `further` are parameters of a GPU beside those of a layer, `of_matrices` those of
    them that are of matrices.
    """
    model, is_dense = job.spec.model, job.spec.model.moe is None
    params = layer_params(model, rows.tp) + further
    weights = _matrices_and_vectors(job, rows, params, of_matrices, is_dense=is_dense)
    if model.moe:
        params, state = expert_params(model, rows.expert_gpus), matrix_state(job.spec)
        weights.append(_experts(rows, params, state))
    return weights + _adapters(job, rows, is_dense)


def reference_weights(job: Job, trained: list[Weights]) -> list[Weights]:
    """Return the weights of a frozen copy of trained ones, if the job has one."""
    state = reference_state(job.spec)
    return [] if state is None else [replace(block, state=state) for block in trained]


def mtp_weights(job: Job, rows: Skeletons) -> list[Weights]:
    """Return the same for a layer that predicts a further token."""
    model = job.spec.model
    joins = mtp_projection_params(model) / rows.tp
    return layer_weights(job, rows, mtp_params(model, rows.tp), joins)


def dense_layer_weights(job: Job, rows: Skeletons) -> list[Weights]:
    """Return the weights of a leading layer without experts."""
    params = dense_layer_params(job.spec.model, rows.tp)
    weights = _matrices_and_vectors(job, rows, params, 0.0, is_dense=True)
    return weights + _adapters(job, rows, is_dense=True)


def _matrices_and_vectors(
    job: Job,
    rows: Skeletons,
    params: Floats,
    further: Floats | float,
    *,
    is_dense: bool,
) -> list[Weights]:
    """Return the weights of a layer, norms and biases apart if they differ in state.

    `further` are parameters of matrices beside those of a layer.
    """
    spec = job.spec
    if not updates_matrices(spec):
        return [_common(rows, params, layer_state(spec))]
    matrices = matrix_params(spec.model, rows.tp, is_dense) + further
    return [
        _common(rows, matrices, matrix_state(spec)),
        _common(rows, params - matrices, layer_state(spec)),
    ]


def embedding_weights(job: Job, rows: Skeletons) -> list[Weights]:
    """Return the weights before the first layer."""
    params = embedding_params(job.spec.model, rows.tp)
    return [_common(rows, params, end_state(job.spec)), *_end_copy(job, rows)]


def head_weights(job: Job, rows: Skeletons) -> list[Weights]:
    """Return the weights after the last layer."""
    params = head_params(job.spec.model, rows.tp, rows.pp)
    return [_common(rows, params, end_state(job.spec)), *_end_copy(job, rows)]


def _end_copy(job: Job, rows: Skeletons) -> list[Weights]:
    """Return the table that is trained in the place of a frozen one, if one is."""
    lora = job.spec.training.lora
    if lora is None or not lora.trains_ends:
        return []
    params = table_params(job.spec.model, rows.tp)
    return [_common(rows, params, end_copy_state(job.spec))]


def by_state(held: list[Weights]) -> list[tuple[StateBytes, list[Weights]]]:
    """Return weights in groups of those that have the same state."""
    states = dict.fromkeys(block.state for block in held)
    return [(state, [part for part in held if part.state == state]) for state in states]


def _adapters(job: Job, rows: Skeletons, is_dense: bool) -> list[Weights]:
    """Return the adapters of a layer, which are trained, if it has any."""
    if job.spec.training.lora is None:
        return []
    params = adapter_params(job.spec, rows.tp, is_dense)
    weights = _common(rows, params, state_bytes(job.spec))
    return [replace(weights, is_adapter=True)]


def _common(rows: Skeletons, params: Floats, state: StateBytes) -> Weights:
    return Weights(params, rows.sharding, rows.dp_replicate, DP_REPLICATE, state)


def _experts(rows: Skeletons, params: Floats, state: StateBytes) -> Weights:
    sharding = rows.expert_sharding
    replicas = rows.expert_copies // sharding.members
    return Weights(params, sharding, replicas, EXPERT_REPLICATE, state)


ADDED = 5
"""Passes over a matrix's output: its adapter's is scaled, and both are added."""

DROPPED = 2.5
"""Passes over an adapter's input: dropout reads and writes it, and a mask of a byte."""

CAST = 3
"""Passes of a cast to fp32, or back."""

UNPACKED_BYTES = 14
"""Bytes that PyTorch's operations move to unpack a weight of GPTQ, beside those of the
packed weight and of the result: shifted to int32 (4), cast to int8 (5), masked (2),
less its zero (2), and read to be scaled (1) (AutoGPTQ 0.7
qlinear_cuda_old.py: `forward`)."""


class Passes(NamedTuple):
    """Passes of 16-bit numbers that an adapter takes beside its matmuls."""

    inputs: float
    outputs: float
    inputs_back: float
    outputs_back: float

    @classmethod
    def of(cls, lora: Lora, *, is_wide: bool) -> Passes:
        """Return those of PEFT's adapters (0.19 tuners/lora/layer.py, `forward`).

        Fused ones add to what is there, which one pass reads: the result of the matrix
        forward, the gradient of its input backward (unsloth kernels/fast_lora.py).

        `is_wide` says that matrices get fp32 numbers and hand them on.

        Inputs are cast to the format of adapters and some are dropped; results are
        scaled and added. The backward drops and casts the gradient of inputs, and adds
        it to that of the matrix; it scales that of results.
        """
        wide = 2.0 if is_wide else 1.0
        if lora.adapters == "fused":
            drop = lora.dropout * DROPPED
            return cls(drop, wide, drop + wide, 0.0)
        if lora.adapters == "fp32":
            cast, drop = (0 if is_wide else CAST), DROPPED + 2
            # Scaled in fp32, added to 16 bits, and cast to them.
            there = 10 if is_wide else 4 + 5 + CAST
            back = 4 if is_wide else CAST + CAST + 4
        elif lora.adapters == "autocast" and (is_wide or not lora.is_quantised):
            # Matrices of bitsandbytes leave the cast to autocast.
            cast, drop = CAST + (0 if is_wide else CAST), DROPPED + 2
            there, back = ADDED, 2
        else:
            cast, drop, there, back = 0, DROPPED, ADDED, 2
        once = cast + lora.dropout * drop
        return cls(once, there, once + 3 * wide, back)


class Adapter(NamedTuple):
    """The adapter of one matrix, or of several of one shape."""

    inputs: int
    outputs: int
    split: Split
    """How the output of the matrix is split; `whole` where its input is split, and
    `sequence` where neither is and every GPU has its own tokens."""
    is_mlp: bool = False

    def params(self, model: Model, tp: Ints, rank: int) -> Floats:
        """Return the parameters on one GPU."""
        inputs, outputs = self._widths(model, tp)
        return np.asarray(rank * (inputs + outputs))

    def _widths(self, model: Model, tp: Ints) -> tuple[Floats, Floats]:
        """Return the widths of input and output on one GPU."""
        whole = np.ones(len(tp))
        parts = {"tensor": tp, "kv": kv_shards(model, tp)}
        read = self.inputs / (tp if self.split == "whole" else whole)
        return np.asarray(read), np.asarray(self.outputs / parts.get(self.split, whole))

    def matmuls_s(self, work: Work, rank: int) -> Floats:
        """Return the seconds of both matmuls, forward."""
        read, made = self._widths(work.model, work.shards.tp)
        lora, tokens = work.spec.training.lora, self._tokens(work)
        is_wide = lora is not None and lora.adapters == "fp32"
        matmul_s = work.gpu.fp32_matmul_s if is_wide else work.gpu.matmul_s
        return matmul_s(tokens, rank, read) + matmul_s(tokens, made, rank)

    def streams_s(self, work: Work, passes: Passes) -> tuple[Floats, Floats]:
        """Return the seconds of all but matmuls, forward and backward."""
        read, made = self._widths(work.model, work.shards.tp)
        tokens, stream_s = self._tokens(work), work.gpu.stream_s
        there = passes.inputs * read + passes.outputs * made
        back = passes.inputs_back * read + passes.outputs_back * made
        return stream_s(tokens * there), stream_s(tokens * back)

    def _tokens(self, work: Work) -> Floats:
        return work.gpu_tokens if self.split == "sequence" else work.tokens


def adapters(model: Model, lora: Lora, is_dense: bool) -> list[Adapter]:
    """Return the adapters of a layer; the router and routed experts have none."""
    heads = lora.projections
    found = _of_attention(model, heads) if model.mixer == "attention" else []
    if (mixer := model.mixing_space) is not None:
        found += _of_state_space(model, mixer, heads)
    inner = model.d_ff if is_dense or model.moe is None else model.moe.shared_d_ff
    if inner:
        found += _mlp(model, inner, heads)
    return found


def matrices(model: Model, lora: Lora, is_dense: bool) -> list[Adapter]:
    """Return the frozen matrices of a layer, but for those of routed experts."""
    return adapters(model, lora.model_copy(update={"targets": (*GROUPS,)}), is_dense)


def _of_attention(model: Model, heads: frozenset[str]) -> list[Adapter]:
    found, d = list[Adapter](), model.d_model
    if model.mla is not None:
        found += _latents(model, model.mla, heads)
    else:
        gate = 2 if model.output_gate else 1
        widths = {"q_proj": gate * query_width(model), "k_proj": kv_width(model)}
        if not model.keys_are_values:
            widths["v_proj"] = kv_width(model)
        splits: dict[str, Split] = {"q_proj": "tensor"}
        found += [
            Adapter(d, width, splits.get(name, "kv"))
            for name, width in widths.items()
            if name in heads
        ]
    if "o_proj" in heads:
        found.append(Adapter(output_width(model), d, "whole"))
    return found


def _of_state_space(
    model: Model, mixer: StateSpace, heads: frozenset[str]
) -> list[Adapter]:
    found, d = list[Adapter](), model.d_model
    if "in_proj" in heads:
        found.append(Adapter(d, mixer.input_width, "tensor"))
    if "out_proj" in heads:
        found.append(Adapter(mixer.inner, d, "whole"))
    return found


def _latents(
    model: Model, mla: LatentAttention, heads: frozenset[str]
) -> list[Adapter]:
    """Return the adapters on the two ways through latents, to queries and to keys."""
    d, queries, found = model.d_model, query_width(model), []
    if "q_proj" in heads and mla.q_rank:
        found.append(Adapter(d, mla.q_rank, "sequence"))
    if "q_proj" in heads:
        found.append(Adapter(mla.q_rank or d, queries, "tensor"))
    if heads & {"k_proj", "v_proj"}:
        found.append(Adapter(d, latent_down_width(model), "sequence"))
        found.append(Adapter(mla.kv_rank, latent_up_width(model), "tensor"))
    return found


def _mlp(model: Model, inner: int, heads: frozenset[str]) -> list[Adapter]:
    d = model.d_model
    names = ("up_proj", "gate_proj")[: mlp_inputs(model)]
    found = [Adapter(d, inner, "tensor", True) for name in names if name in heads]
    if "down_proj" in heads:
        found.append(Adapter(inner, d, "whole", True))
    return found


def adapter_params(spec: Spec, tp: Ints, is_dense: bool) -> Floats:
    """Return the parameters of a layer's adapters on one GPU."""
    lora, result = spec.training.lora, np.zeros(len(tp))
    if lora is None:
        return result
    for adapter in adapters(spec.model, lora, is_dense):
        result = result + adapter.params(spec.model, tp, lora.rank)
    return result


class LoraKernels(NamedTuple):
    """Seconds that LoRA adds to a layer's kernels."""

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    """The matmuls of the adapters' gradients, part of the backward."""
    mlp_s: Floats
    """The part of the forward in an MLP, or in shared experts."""


def lora_kernels(work: Work, lora: Lora, is_dense: bool) -> LoraKernels:
    """Return the seconds of adapters, and of bringing frozen weights to 16 bits."""
    zeros = np.zeros(len(work.shards))
    matmuls_s = forward_s = backward_s = mlp_s = zeros
    is_wide = has_wide_stream(work.spec)
    passes = Passes.of(lora, is_wide=is_wide)
    for adapter in adapters(work.model, lora, is_dense):
        low_rank_s = adapter.matmuls_s(work, lora.rank)
        there_s, back_s = adapter.streams_s(work, passes)
        matmuls_s, forward_s = matmuls_s + low_rank_s, forward_s + there_s
        backward_s = backward_s + back_s
        if adapter.is_mlp:
            mlp_s = mlp_s + low_rank_s + there_s
    again_s = zeros
    if is_wide and lora.is_quantised:
        again_s = _casts_s(work, lora, is_dense)
    if lora.weights != "bf16":
        unpacked = UNPACKED_BYTES if lora.weights == "gptq" else 0.0
        read = (FROZEN_BYTES[lora.weights] + unpacked) / work.gpu.element
        again_s = again_s + work.gpu.stream_s((read + 1) * _params(work, is_dense))
    forward_s = forward_s + matmuls_s + again_s
    backward_s = backward_s + 2 * matmuls_s + again_s
    return LoraKernels(forward_s, backward_s, matmuls_s, mlp_s)


def _casts_s(work: Work, lora: Lora, is_dense: bool) -> Floats:
    """Return the seconds to cast fp32 inputs of quantised matrices, and results back.

    They multiply in 16 bits and return what they got (bitsandbytes 0.49 nn/modules.py:
    `Linear4bit.forward`).
    """
    result = np.zeros(len(work.shards))
    casts = Passes(CAST, CAST, CAST, CAST)
    for matrix in matrices(work.model, lora, is_dense):
        result = result + matrix.streams_s(work, casts)[0]
    return result


def _params(work: Work, is_dense: bool) -> Floats:
    """Return the frozen parameters of a layer on one GPU."""
    model, shards = work.model, work.shards
    if is_dense:
        return dense_layer_params(model, shards.tp)
    return layer_params(model, shards.tp) + expert_params(model, shards.expert_gpus)


def dequantised_bytes(spec: Spec, tp: Ints) -> Floats:
    """Return the bytes of the largest matrix in 16 bits, where weights are in fewer."""
    lora, model = spec.training.lora, spec.model
    if lora is None or lora.weights == "bf16":
        return np.zeros(len(tp))
    inner = max(model.d_ff if model.moe is None else 0, query_width(model))
    if (mixer := model.mixing_space) is not None:
        inner = max(inner, mixer.input_width)
    routed = 0
    if model.moe is not None:
        inner, routed = max(inner, model.moe.shared_d_ff), model.moe.d_ff
    if model.first_dense_layers:
        inner = max(inner, model.d_ff)
    return np.asarray(2 * model.d_model * np.maximum(inner / tp, routed))


def saved_by(adapter: Adapter, element: int, lora: Lora) -> list[Saved]:
    """Return the input of B, which the gradients of B need; that of A is elsewhere.

    With dropout each adapter has a copy of its inputs, of which some are dropped, and a
    mask of a byte each (PEFT tuners/lora/layer.py: `Linear.forward`).
    """
    split: Split = "sequence" if adapter.split == "sequence" else "whole"
    tensors = [Saved("adapter", element * lora.rank, split)]
    if lora.dropout:
        read: Split = "tensor" if adapter.split == "whole" else split
        size = (element + 1) * adapter.inputs
        tensors.append(Saved("adapter input, dropped, and mask", size, read))
    return tensors
