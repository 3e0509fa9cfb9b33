"""The blocks of a model, layers, embedding and head, with their collectives.

Step time, link loads and the ledger of collectives all come from these lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from meshwright.cost import traffic
from meshwright.cost.activations import linears
from meshwright.cost.job import Job
from meshwright.cost.parameters_and_flops import expert_width, kv_shards, mlp_inputs
from meshwright.cost.roofline import GpuRates, gpu_rates
from meshwright.cost.saved import Split
from meshwright.cost.state import trains_ends, updates_matrices
from meshwright.cost.traffic import Collective
from meshwright.cost.weights import (
    Weights,
    dense_layer_weights,
    embedding_weights,
    head_weights,
    layer_weights,
    mtp_weights,
)
from meshwright.frameworks.base.registry import recomputed_bits
from meshwright.plans.columns import Floats
from meshwright.plans.skeletons import (
    MLA_UP_PROJ,
    MLP,
    MOE,
    PER_OP,
    SHARED_EXPERTS,
    Skeletons,
)
from meshwright.spec.model import Model

Operations = list[Collective]


@dataclass(frozen=True)
class Block:
    """The weights and collectives of a block, one row per skeleton."""

    weights: list[Weights]
    tp: Operations
    """Tensor parallelism in a forward."""
    tp_back: Operations
    """Tensor parallelism in a backward."""
    ep: Operations
    """Expert parallelism in a forward, and again in a backward."""
    ring: Operations
    """Context parallelism in a forward."""
    ring_back: Operations
    """Context parallelism in a backward."""
    gather: Operations
    """All-gathers of weights, before a forward and again before a backward."""
    reduce: Operations
    """Reductions of gradients after a backward."""
    end: Operations
    """Operations at the end of a step."""
    orthogonalised_s: Floats | float = 0.0
    """Seconds of an update beside its traffic: see the function of this name."""
    repeated: dict[str, Operations] = field(default_factory=dict)
    """Collectives that selective recomputation repeats, and gathers of split
    checkpoints, by the part repeated; none is hidden."""

    @property
    def forward(self) -> dict[str, Operations]:
        """Return the collectives of a forward, by the part of the step."""
        return {"tp": self.tp, "ep": self.ep, "cp": self.ring, "zero": self.gather}

    @property
    def backward(self) -> dict[str, Operations]:
        """Return the collectives of a backward, by the part of the step."""
        zero = [*self.gather, *self.reduce]
        return {"tp": self.tp_back, "ep": self.ep, "cp": self.ring_back, "zero": zero}

    def recompute(self, rows: Skeletons) -> dict[str, Operations]:
        """Return the collectives of recomputation.

        A forward that is repeated as a whole has its weights already.
        """
        is_full = rows.repeats_layers
        whole = {
            name: traffic.only(operations, is_full)
            for name, operations in self.forward.items()
            if name != "zero"
        }
        return whole | self.repeated


def layer(job: Job, rows: Skeletons) -> Block:
    """Return the repeated layer of the model."""
    calls = traffic.reductions(job.spec.model)
    exchange = traffic.expert_exchange(job, rows)
    block = _layer(job, rows, layer_weights(job, rows), calls, exchange)
    update_s = orthogonalised_s(job, rows, is_dense=job.spec.model.moe is None)
    repeated = _repeated(job, rows, block)
    return replace(block, repeated=repeated, orthogonalised_s=update_s)


def dense_layer(job: Job, rows: Skeletons) -> Block:
    """Return a leading layer without experts."""
    block = _layer(job, rows, dense_layer_weights(job, rows), 2, [])
    bits = recomputed_bits(job.spec, rows)
    mlp = traffic.only(traffic.tensor_parallel(job, rows, 1), bits & MLP > 0)
    update_s = orthogonalised_s(job, rows, is_dense=True)
    return replace(block, repeated={"mlp": mlp}, orthogonalised_s=update_s)


def _repeated(job: Job, rows: Skeletons, block: Block) -> dict[str, Operations]:
    """Return the collectives of a layer that selective recomputation repeats.

    Megatron-LM repeats a module's forward as a whole (`cost.compute`). Recomputation
    by operations repeats all-gathers alone (`cost.activations`).
    """
    bits, moe = recomputed_bits(job.spec, rows), job.spec.model.moe
    has_shared = moe is not None and moe.shared_d_ff > 0
    in_mlp = MLP if moe is None else (MOE | SHARED_EXPERTS) * has_shared
    gathers = [one for one in block.tp if one.operation == "all_gather"]
    found = {
        "latents": (MLA_UP_PROJ, traffic.latent_gathers(job, rows)),
        "mlp": (in_mlp, traffic.tensor_parallel(job, rows, 1)),
        "experts": (MOE, block.ep),
        "inputs": (PER_OP, gathers),
        "keys and values": (PER_OP, block.ring),
    }
    every = int(np.bitwise_or.reduce(bits, initial=0))
    repeated = {
        name: traffic.only(operations, bits & of_it > 0)
        for name, (of_it, operations) in found.items()
        if of_it & every
    }
    gathers = traffic.checkpoint_gathers(job, rows)
    return repeated | ({"checkpoints": gathers} if gathers else {})


def _layer(
    job: Job, rows: Skeletons, held: list[Weights], calls: int, exchange: Operations
) -> Block:
    reductions = traffic.tensor_parallel(job, rows, calls)
    ring, ring_back = [
        traffic.context_parallel(job, rows, is_backward)
        if job.spec.model.mixer == "attention"
        else []
        for is_backward in (False, True)
    ]
    return Block(
        weights=held,
        tp=reductions,
        tp_back=reductions,
        ep=exchange,
        ring=ring,
        ring_back=ring_back,
        gather=traffic.gather_weights(rows, held),
        reduce=traffic.reduce_gradients(job, rows, held),
        end=traffic.step_end(job, rows, held),
    )


def embedding(job: Job, rows: Skeletons) -> Block:
    """Return the embedding.

    The results of its shards of the vocabulary are summed in the forward. Under
    sequence parallelism they are scattered, and their gradients gathered, unless the
    table is frozen.
    """
    whole, gathered, scattered = traffic.tensor_parallel(job, rows, 1)
    held = embedding_weights(job, rows)
    backward = [gathered] if trains_ends(job.spec) else []
    return _end(job, rows, held, [whole, scattered], backward)


def head(job: Job, rows: Skeletons) -> Block:
    """Return the head; the gradients of its input are summed in the backward."""
    whole, gathered, scattered = traffic.tensor_parallel(job, rows, 1)
    held = head_weights(job, rows)
    return _end(job, rows, held, [gathered], [whole, scattered])


def _end(
    job: Job,
    rows: Skeletons,
    held: list[Weights],
    forward: Operations,
    backward: Operations,
) -> Block:
    at_end = traffic.step_end(job, rows, held)
    return Block(
        weights=held,
        tp=forward,
        tp_back=backward,
        ep=[],
        ring=[],
        ring_back=[],
        gather=traffic.gather_weights(rows, held),
        reduce=traffic.reduce_gradients(job, rows, held),
        end=[*at_end, *traffic.tied_tables(job, rows)],
    )


def mtp_layer(job: Job, rows: Skeletons) -> Block:
    """Return a layer that predicts a further token, with the head that it shares.

    It reads the embedding of the next token. The matrix that joins it with the stream
    reads twice the stream's width, and its results, which are split, are gathered and
    scattered again: in both passes together as much as two more sums (Megatron-LM core
    0.19.2, transformer/multi_token_prediction.py, `_concat_embeddings`).
    """
    usual, joined = layer(job, rows), traffic.tensor_parallel(job, rows, 2)
    held, table, logits = mtp_weights(job, rows), embedding(job, rows), head(job, rows)
    return replace(
        usual,
        weights=held,
        tp=[*usual.tp, *joined, *table.tp, *logits.tp],
        tp_back=[*usual.tp_back, *joined, *table.tp_back, *logits.tp_back],
        gather=traffic.gather_weights(rows, held),
        reduce=traffic.reduce_gradients(job, rows, held),
        end=traffic.step_end(job, rows, held),
        orthogonalised_s=usual.orthogonalised_s + _joining_s(job, rows),
    )


LAYER, DENSE_LAYER, EMBEDDING, HEAD = "layer", "dense layer", "embedding", "head"
MTP_LAYER = "MTP layer"


def blocks(job: Job, rows: Skeletons) -> dict[str, Block]:
    """Return the blocks of a model by name, those of rare layers if there are any."""
    model, found = job.spec.model, {LAYER: layer(job, rows)}
    if model.first_dense_layers:
        found[DENSE_LAYER] = dense_layer(job, rows)
    if model.mtp_layers:
        found[MTP_LAYER] = mtp_layer(job, rows)
    return {**found, EMBEDDING: embedding(job, rows), HEAD: head(job, rows)}


ITERATIONS = 5


class Matrix(NamedTuple):
    """A matrix, and how a tensor-parallel group splits it."""

    outputs: int
    inputs: int
    split: Split
    """`whole` where its inputs are split, as for results of matmuls."""

    def seconds(self, gpu: GpuRates, rows: Skeletons, model: Model) -> Floats:
        """Return the seconds to orthogonalise the part of one GPU."""
        outputs, inputs = self.outputs * np.ones(len(rows)), self.inputs
        if self.split == "tensor":
            return _newton_schulz_s(gpu, outputs / rows.tp, inputs)
        if self.split == "kv":
            return _newton_schulz_s(gpu, outputs / kv_shards(model, rows.tp), inputs)
        if self.split == "whole":
            return _newton_schulz_s(gpu, outputs, inputs / rows.tp)
        if self.split == "routed inner":
            return _newton_schulz_s(gpu, outputs / rows.etp, inputs)
        return _newton_schulz_s(gpu, outputs, inputs)


def _newton_schulz_s(gpu: GpuRates, outputs: Floats, inputs: Floats | int) -> Floats:
    m, n = np.minimum(outputs, inputs), np.maximum(outputs, inputs)
    once_s = gpu.matmul_s(m, m, n) + gpu.matmul_s(m, m, m) + gpu.matmul_s(m, n, m)
    return ITERATIONS * once_s


def layer_matrices(model: Model, is_dense: bool) -> list[Matrix]:
    """Return the matrices of a layer without routed experts."""
    found = []
    for linear in linears(model, is_dense):
        found.append(Matrix(linear.outputs, linear.inputs, linear.split))
        if linear.kv_outputs:
            found += [Matrix(linear.kv_outputs // 2, linear.inputs, "kv")] * 2
    if model.moe is not None and not is_dense:
        found.append(Matrix(model.moe.n_experts, model.d_model, "sequence"))
    return found


def _expert_matrices(model: Model) -> list[Matrix]:
    """Return the matrices of one routed expert."""
    if model.moe is None:
        return []
    width = expert_width(model, model.moe)
    up = Matrix(model.moe.d_ff, width, "routed inner")
    # The iterations take as long for the matrix back, which has the same two widths.
    return [up] * (mlp_inputs(model) + 1)


def orthogonalised_s(job: Job, rows: Skeletons, is_dense: bool) -> Floats | float:
    """Return the seconds of the iterations on a layer's matrices, on one GPU.

    They are 0 under other optimizers.
    """
    if not updates_matrices(job.spec):
        return 0.0
    spec, model, result = job.spec, job.spec.model, np.zeros(len(rows))
    gpu = gpu_rates(spec.cluster.topology.gpu, spec.training.precision, job.efficiency)
    for matrix in layer_matrices(model, is_dense):
        result = result + matrix.seconds(gpu, rows, model) / rows.sharding.optimizer
    if model.moe is None or is_dense:
        return result
    each = sum(matrix.seconds(gpu, rows, model) for matrix in _expert_matrices(model))
    local = model.moe.n_experts / rows.ep / rows.expert_sharding.optimizer
    return result + local * each


def _joining_s(job: Job, rows: Skeletons) -> Floats | float:
    """Return the same for the matrix that joins the stream with a next embedding."""
    spec, width = job.spec, job.spec.model.d_model
    if not updates_matrices(spec):
        return 0.0
    gpu = gpu_rates(spec.cluster.topology.gpu, spec.training.precision, job.efficiency)
    matrix = Matrix(width, 2 * width, "tensor")
    return matrix.seconds(gpu, rows, spec.model) / rows.sharding.optimizer
