"""Muon: whole matrices are orthogonalised by Newton-Schulz iterations in the update.

Sources: Jordan et al. 2024, 'Muon: An optimizer for hidden layers in neural networks';
Liu et al. 2025 (Moonlight, arXiv 2502.16982, section 2). An iteration on an m x n
matrix, m <= n, has three matmuls: X X^T, its square, and the polynomial of both times
X. Megatron-LM has five iterations in 16 bits (`--muon-num-ns-steps`,
`--muon-fp32-matmul-prec`), queries, keys and values apart (`--muon-no-split-qkv`), and
each tensor-parallel part of a matrix for itself (`--muon-tp-mode` blockwise). With
sharded optimizers every rank has whole matrices, as many as the others (core/optimizer/
layer_wise_optimizer.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.cost.activations import linears
from meshwright.cost.job import Job
from meshwright.cost.parameters_and_flops import expert_width, kv_shards, mlp_inputs
from meshwright.cost.roofline import GpuRates, gpu_rates
from meshwright.cost.saved import Split
from meshwright.cost.state import updates_matrices
from meshwright.plans.columns import Floats
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.model import Model

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
    """Return the matrices of one routed expert, which nothing splits."""
    if model.moe is None:
        return []
    width = expert_width(model, model.moe)
    up = Matrix(model.moe.d_ff, width, "sequence")
    return [up] * mlp_inputs(model) + [Matrix(width, model.moe.d_ff, "sequence")]


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
