"""Seconds per layer, micro-batch and step, by part, a row per skeleton."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cost import traffic
from meshwright.cost.arrays import Floats, Parts, added, scaled, take
from meshwright.cost.collectives import exposed_in_turn_s, exposed_s
from meshwright.cost.compute import Kernels, kernels
from meshwright.cost.framework import state_bytes
from meshwright.cost.offload import copies
from meshwright.cost.weights import (
    Weights,
    dense_layer_weights,
    embedding_weights,
    head_weights,
    layer_weights,
)
from meshwright.job import Job
from meshwright.skeleton import FULL, KEEPS_ALL, SELECTIVE, Skeletons


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
    weight_s: Floats
    """Of a layer's backward: what only gradients of weights need, and may wait."""
    recompute_s: Floats
    first: Parts
    """What leading layers without experts take less or more is in here."""
    last: Parts
    send_s: Floats
    sync_layer: Parts
    sync_first: Parts
    sync_last: Parts


@dataclass(frozen=True)
class _Layer:
    """One kind of layer: its kernels, weights and traffic."""

    forward_s: Floats
    backward_s: Floats
    weights: list[Weights]
    tp_s: Floats
    """Exposed, forward; the backward has as much."""
    ep_s: Floats


def time_costs(job: Job, rows: Skeletons) -> TimeCosts:
    """Return the seconds that make up every stage of every skeleton."""
    own = _layer_kernels(job, rows)
    layer = _layer(job, rows, own)
    rings = _rings(job, rows, own)
    forward, backward = _passes(job, rows, layer, rings)
    sync = _sync(job, rows, layer.weights, layer.backward_s)
    lead, lead_sync = _leading(job, rows, own, [forward, backward], rings, sync)
    # Nothing runs beside the first gather and the last reduction of a step.
    alone = np.zeros(len(rows))
    embedding, head = embedding_weights(job, rows), head_weights(job, rows)
    return TimeCosts(
        forward=forward,
        backward=backward,
        # A bubble is filled by no more than the least of a layer's three passes.
        weight_s=np.minimum(own.weight_s, own.forward_s),
        recompute_s=_recompute_s(rows, own, forward),
        first=added([lead, _end(job, rows, embedding, own.embedding_s, alone)]),
        last=_end(job, rows, head, own.head_s, own.head_s),
        send_s=traffic.seconds(job, rows, traffic.pipeline_send(job, rows)),
        sync_layer=sync,
        sync_first=added([lead_sync, _sync_end(job, rows, embedding)]),
        sync_last=_sync_end(job, rows, head),
    )


def _layer_kernels(job: Job, rows: Skeletons) -> Kernels:
    """Return kernel times, worked out once per distinct degree and micro-batch."""
    distinct, inverse = rows.shards.distinct()
    return take(kernels(job.spec, job.efficiency, distinct), inverse)


def _layer(job: Job, rows: Skeletons, own: Kernels) -> _Layer:
    """Return the layer that the model repeats."""
    calls = traffic.reductions(job.spec.model)
    exchange = traffic.expert_exchange(job, rows, 2)
    return _Layer(
        own.forward_s,
        own.backward_s,
        layer_weights(job, rows),
        traffic.seconds(job, rows, traffic.tensor_parallel(job, rows, calls)),
        traffic.seconds(job, rows, exchange),
    )


def _dense_layer(job: Job, rows: Skeletons, own: Kernels) -> _Layer:
    """Return a leading layer without experts."""
    return _Layer(
        own.dense_forward_s,
        own.dense_backward_s,
        dense_layer_weights(job, rows),
        traffic.seconds(job, rows, traffic.tensor_parallel(job, rows, 2)),
        np.zeros(len(rows)),
    )


@dataclass(frozen=True)
class _Ring:
    """What context parallelism passes round beside one pass of attention."""

    traffic_s: Floats
    attention_s: Floats


def _passes(
    job: Job, rows: Skeletons, layer: _Layer, rings: tuple[_Ring, _Ring]
) -> tuple[Parts, Parts]:
    """Return the forward and the backward of a layer."""
    zero = _zero_s(job, rows, layer.weights)
    moved = copies(job, rows, layer.weights)
    return (
        _pass(job, layer, layer.forward_s, rings[0], zero[0], moved.forward_s),
        _pass(job, layer, layer.backward_s, rings[1], zero[1], moved.backward_s),
    )


def _pass(
    job: Job,
    layer: _Layer,
    compute_s: Floats,
    ring: _Ring,
    zero_s: Floats,
    copies_s: Floats,
) -> Parts:
    """Return one pass by part; each second of compute hides one of traffic.

    The ring hides behind the attention that it feeds (Liu et al. 2023, section 3),
    ZeRO behind what is left of the pass, copies to and from the host behind the rest.
    """
    overlap = job.efficiency.gather_overlap
    exposed_ring_s = exposed_s(ring.traffic_s, ring.attention_s, overlap)
    left_s = compute_s - (ring.traffic_s - exposed_ring_s)
    exposed_zero_s, exposed_copies_s = exposed_in_turn_s(
        zero_s, copies_s, left_s, overlap
    )
    return {
        "compute": compute_s,
        "tp": layer.tp_s,
        "ep": layer.ep_s,
        "cp": exposed_ring_s,
        "zero": exposed_zero_s,
        "offload": exposed_copies_s,
    }


def _rings(job: Job, rows: Skeletons, own: Kernels) -> tuple[_Ring, _Ring]:
    """Return the ring traffic of attention, forward and backward."""
    forward = traffic.seconds(job, rows, traffic.context_parallel(job, rows, False))
    backward = traffic.seconds(job, rows, traffic.context_parallel(job, rows, True))
    return (
        _Ring(forward, own.attention_s),
        _Ring(backward, own.attention_backward_s),
    )


def _leading(
    job: Job,
    rows: Skeletons,
    own: Kernels,
    passes: list[Parts],
    rings: tuple[_Ring, _Ring],
    sync: Parts,
) -> tuple[Parts, Parts]:
    """Return what leading dense layers take more than as many repeated ones."""
    count = job.spec.model.first_dense_layers
    if not count:
        return {}, {}
    dense = _dense_layer(job, rows, own)
    ours = [*_passes(job, rows, dense, rings)]
    our_sync = _sync(job, rows, dense.weights, dense.backward_s)
    less = [scaled(parts, -count) for parts in (*passes, sync)]
    more = [scaled(parts, count) for parts in (*ours, our_sync)]
    return added([*more[:2], *less[:2]]), added([more[2], less[2]])


def _recompute_s(rows: Skeletons, own: Kernels, forward: Parts) -> Floats:
    """Return the extra seconds of a recomputed layer: its forward, or cheap parts.

    Weights are there already: the backward gathers or fetches them anyway.
    """
    fetched = ("zero", "offload")
    forward_s = sum(s for name, s in forward.items() if name not in fetched)
    again = [own.selective_s, forward_s]
    return np.select([rows.recompute == SELECTIVE, rows.recompute == FULL], again, 0.0)


def _zero_s(job: Job, rows: Skeletons, held: list[Weights]) -> tuple[Floats, Floats]:
    """Return the ZeRO seconds of some weights' forward and backward.

    Stage 3 gathers weights for the forward and again for the backward; from stage 2
    on gradients are reduced after every micro-batch (Rajbhandari et al. 2019, 7.2).
    """
    gather = traffic.seconds(job, rows, traffic.gather_weights(job, rows, held))
    reduce = traffic.seconds(job, rows, traffic.reduce_gradients(job, rows, held))
    return gather, gather + reduce


def _end(
    job: Job, rows: Skeletons, held: list[Weights], compute_s: Floats, hide_s: Floats
) -> Parts:
    """Return the seconds per micro-batch of the embedding or the head."""
    one_reduction = traffic.tensor_parallel(job, rows, 1)
    moved, overlap = copies(job, rows, held), job.efficiency.gather_overlap
    forward_s, backward_s = _zero_s(job, rows, held)
    copies_s = moved.forward_s + moved.backward_s
    zero_s, copies_s = exposed_in_turn_s(
        forward_s + backward_s, copies_s, hide_s, overlap
    )
    return {
        "compute": compute_s,
        "tp": traffic.seconds(job, rows, one_reduction),
        "zero": zero_s,
        "offload": copies_s,
    }


def _sync(job: Job, rows: Skeletons, held: list[Weights], hide_s: Floats) -> Parts:
    """Return the end of the step: traffic that nothing hides, and the update."""
    ends = traffic.seconds(job, rows, traffic.step_end(job, rows, held))
    overlap, moved = job.efficiency.grad_overlap, copies(job, rows, held)
    ends_s, down_s = exposed_in_turn_s(ends, moved.end_down_s, hide_s, overlap)
    return {
        "dp": ends_s,
        "optimizer": _optimizer_s(job, rows, held),
        "offload": down_s + moved.update_s,
    }


def _sync_end(job: Job, rows: Skeletons, held: list[Weights]) -> Parts:
    """Return the end of the step of embedding or head: nothing hides its traffic."""
    parts = _sync(job, rows, held, np.zeros(len(rows)))
    tied = traffic.seconds(job, rows, traffic.tied_tables(job, rows))
    return {**parts, "dp": parts["dp"] + tied}


def _optimizer_s(job: Job, rows: Skeletons, held: list[Weights]) -> Floats:
    """Return the seconds of updates on the GPU; the host's are in `cost.offload`."""
    moved = np.where(rows.offload == KEEPS_ALL, state_bytes(job.spec).updated, 0.0)
    own = sum(w.params / np.where(rows.zero >= 1, w.shards, 1) for w in held)
    gpu = job.spec.cluster.topology.gpu
    rate = gpu.memory_gb_s * 1e9 * job.efficiency.memory
    return np.asarray(own * moved / rate)
