"""Seconds per layer, micro-batch and step, by part, a row per skeleton."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cost import traffic
from meshwright.cost.arrays import Floats, Parts
from meshwright.cost.collectives import exposed_s
from meshwright.cost.compute import Kernels, kernels
from meshwright.cost.framework import state_bytes
from meshwright.cost.transformer import (
    embedding_params,
    head_params,
    layer_params,
)
from meshwright.job import Job
from meshwright.skeleton import FULL, SELECTIVE, Skeletons


@dataclass(frozen=True)
class TimeCosts:
    """Seconds, a row per skeleton.

    A stage of n layers, r of them recomputed, takes n x (forward + backward) + r x
    recompute per micro-batch, with `send` for each neighbour it sends to, and `first`
    or `last` where it is an end of the pipeline. After the last micro-batch it takes
    n x sync_layer, and `sync_first` or `sync_last`.
    """

    forward: Parts
    backward: Parts
    recompute_s: Floats
    first: Parts
    last: Parts
    send_s: Floats
    sync_layer: Parts
    sync_first: Parts
    sync_last: Parts


def time_costs(job: Job, rows: Skeletons) -> TimeCosts:
    """Return the seconds that make up every stage of every skeleton."""
    model = job.spec.model
    layer = _layer_kernels(job, rows)
    tp_s = traffic.seconds(job, rows, traffic.tensor_parallel(job, rows, 2))
    weights = layer_params(model, rows.tp)
    embedding = embedding_params(model, rows.tp)
    head = head_params(model, rows.tp, rows.pp)
    # Nothing runs beside the first gather and the last reduction of a step.
    alone = np.zeros(len(rows))
    forward_zero, backward_zero = _zero_s(job, rows, weights, layer)
    return TimeCosts(
        forward={"compute": layer.forward_s, "tp": tp_s, "zero": forward_zero},
        backward={"compute": layer.backward_s, "tp": tp_s, "zero": backward_zero},
        recompute_s=_recompute_s(rows, layer, tp_s),
        first=_end(job, rows, embedding, layer.embedding_s, alone),
        last=_end(job, rows, head, layer.head_s, layer.head_s),
        send_s=traffic.seconds(job, rows, traffic.pipeline_send(job, rows)),
        sync_layer=_sync(job, rows, weights, layer.backward_s),
        sync_first=_sync_end(job, rows, embedding),
        sync_last=_sync_end(job, rows, head),
    )


def _layer_kernels(job: Job, rows: Skeletons) -> Kernels:
    """Return kernel times, worked out once per distinct degree and micro-batch."""
    distinct, inverse = rows.shards.distinct()
    return kernels(job.spec, job.efficiency, distinct).take(inverse)


def _recompute_s(rows: Skeletons, layer: Kernels, tp_s: Floats) -> Floats:
    """Return the extra seconds of a recomputed layer: its forward, or cheap parts."""
    again = [layer.selective_s, layer.forward_s + tp_s]
    return np.select([rows.recompute == SELECTIVE, rows.recompute == FULL], again, 0.0)


def _zero_s(
    job: Job, rows: Skeletons, weights: Floats, layer: Kernels
) -> tuple[Floats, Floats]:
    """Return exposed ZeRO seconds of a layer's forward and backward.

    Stage 3 gathers weights for the forward and again for the backward; from stage 2
    on gradients are reduced after every micro-batch (Rajbhandari et al. 2019, 7.2).
    """
    gather = traffic.seconds(job, rows, traffic.gather_weights(job, rows, weights))
    reduce = traffic.seconds(job, rows, traffic.reduce_gradients(job, rows, weights))
    overlap = job.efficiency.gather_overlap
    return (
        exposed_s(gather, layer.forward_s, overlap),
        exposed_s(gather + reduce, layer.backward_s, overlap),
    )


def _end(
    job: Job, rows: Skeletons, params: Floats, compute_s: Floats, hide_s: Floats
) -> Parts:
    """Return the seconds per micro-batch of the embedding or the head."""
    gather = traffic.seconds(job, rows, traffic.gather_weights(job, rows, params))
    reduce = traffic.seconds(job, rows, traffic.reduce_gradients(job, rows, params))
    one_reduction = traffic.tensor_parallel(job, rows, 1)
    return {
        "compute": compute_s,
        "tp": traffic.seconds(job, rows, one_reduction),
        "zero": exposed_s(2 * gather + reduce, hide_s, job.efficiency.gather_overlap),
    }


def _sync(job: Job, rows: Skeletons, params: Floats, hide_s: Floats) -> Parts:
    """Return the end of the step: traffic that nothing hides, and the update."""
    ends = traffic.seconds(job, rows, traffic.step_end(job, rows, params))
    return {
        "dp": exposed_s(ends, hide_s, job.efficiency.grad_overlap),
        "optimizer": _optimizer_s(job, rows, params),
    }


def _sync_end(job: Job, rows: Skeletons, params: Floats) -> Parts:
    """Return the end of the step of embedding or head: nothing hides its traffic."""
    parts = _sync(job, rows, params, np.zeros(len(rows)))
    tied = traffic.seconds(job, rows, traffic.tied_tables(job, rows))
    return {**parts, "dp": parts["dp"] + tied}


def _optimizer_s(job: Job, rows: Skeletons, params: Floats) -> Floats:
    """Return the seconds of the update: state read and written, gradients read."""
    state = state_bytes(job.spec)
    moved = 2 * (state.optimizer + state.weights) + state.gradients
    held = params / np.where(rows.zero >= 1, rows.dp_shard, 1)
    gpu = job.spec.cluster.topology.gpu
    return held * moved / (gpu.memory_gb_s * 1e9 * job.efficiency.memory)
