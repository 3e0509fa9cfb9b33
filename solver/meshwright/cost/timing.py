"""Time costs: seconds per layer, micro-batch and step, by part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from meshwright.cost import traffic
from meshwright.cost.blocks import (
    DENSE_LAYER,
    EMBEDDING,
    HEAD,
    LAYER,
    MTP_LAYER,
    Block,
    dense_layer,
    embedding,
    head,
    layer,
    mtp_layer,
)
from meshwright.cost.compute import Kernels, LayerKernels, kernels, of_bits
from meshwright.cost.hiding import (
    LayerCompute,
    at_step_end,
    exposed_send_s,
    host_send_s,
    host_step_s,
    layer_passes,
    zero_traffic,
)
from meshwright.cost.job import Job
from meshwright.cost.offload import Copies, copies, layer_copies, reference_copies
from meshwright.cost.traffic import exposed_in_turn_s
from meshwright.cost.weights import Weights, by_state
from meshwright.frameworks.base.registry import leading_columns, recomputed_bits
from meshwright.plans.columns import Columns, Floats, Ints, Parts, added, scaled
from meshwright.plans.skeletons import MLP, Skeletons
from meshwright.spec.plan_fields import KEEPS_ALL, SELECTIVE


@dataclass(frozen=True)
class TimeCosts(Columns):
    """Seconds that make up a step, one row per skeleton.

    A stage of n layers, r of them recomputed, takes n x (forward + backward) + r x
    recompute per micro-batch, with `send` for each neighbour it sends to, `lead` for
    each leading part, and `first` or `last` where it is an end of the pipeline. After
    the last micro-batch it takes n x sync_layer, `sync_lead` for each leading part, and
    `sync_first` or `sync_last`.
    """

    forward: Parts
    backward: Parts
    weight_s: Floats
    """The part of a layer's backward for gradients of weights, which may wait."""
    recompute_s: Floats
    lead: Parts
    """Difference of a leading part to repeated layers."""
    lead_weight_s: Floats
    """The same in `weight_s`."""
    leading: Ints
    """Leading parts of the model: see `Model.leading_parts`."""
    most_leading: Ints
    """The most of them that a stage holds: see `most_leading_parts`."""
    first: Parts
    last: Parts
    send_s: Floats
    sync_layer: Parts
    sync_lead: Parts
    sync_first: Parts
    sync_last: Parts


@dataclass(frozen=True)
class BlockTimes:
    """Seconds of one block by part, per micro-batch and at the end of the step."""

    forward: Parts
    """The seconds of embedding, head and MTP layer include the backward."""
    backward: Parts
    sync: Parts
    weight_s: Floats
    """The part of the backward for gradients of weights, which may wait."""
    again_s: Floats
    """A forward that recomputation repeats as a whole."""
    repeated_s: Floats
    """The collectives that selective recomputation repeats, or that gather the input
    of a layer for full recomputation."""
    left_s: Floats
    """Compute, and waits for the host, of a forward that hide no traffic yet."""


def time_costs(job: Job, rows: Skeletons) -> TimeCosts:
    """Return the seconds that make up every stage of every skeleton."""
    seconds = _layer_kernels(job, rows)
    times = _block_times(job, rows, seconds)
    repeated, first, last = (times[name] for name in (LAYER, EMBEDDING, HEAD))
    at_end, synced_at_end = last.forward, last.sync
    lead = BlockTimes({}, {}, {}, *[np.zeros(len(rows))] * 4)
    bits, lead_again = recomputed_bits(job.spec, rows), Parts()
    if job.spec.model.first_dense_layers:
        lead = _leading(times[DENSE_LAYER], repeated)
        lead_again = _leading_recompute(bits, seconds, lead)
    if count := job.spec.model.mtp_layers:
        further = times[MTP_LAYER]
        again = {"recompute": _recompute_s(rows, bits, seconds, further)}
        at_end = added([at_end, scaled(added([further.forward, again]), count)])
        synced_at_end = added([synced_at_end, scaled(further.sync, count)])
    return TimeCosts(
        forward=repeated.forward,
        backward=repeated.backward,
        weight_s=repeated.weight_s,
        recompute_s=_recompute_s(rows, bits, seconds, repeated),
        lead=added([lead.forward, lead_again]),
        lead_weight_s=lead.weight_s,
        **leading_columns(job.spec, rows),
        first=first.forward,
        last=at_end,
        send_s=_send_s(job, rows, repeated),
        sync_layer=repeated.sync,
        sync_lead=lead.sync,
        sync_first=added([first.sync, {"host": np.full(len(rows), host_step_s(job))}]),
        sync_last=synced_at_end,
    )


def _send_s(job: Job, rows: Skeletons, layer: BlockTimes) -> Floats:
    """Return the seconds of a send that no compute hides, for chunks of one layer."""
    send_s = traffic.seconds(job, rows, traffic.pipeline_send(job, rows))
    seen_s = exposed_send_s(job, rows, send_s, layer.left_s)
    return seen_s + host_send_s(job, rows)


def block_times(job: Job, rows: Skeletons) -> dict[str, BlockTimes]:
    """Return the seconds of every block of `cost.blocks.blocks`, by name."""
    return _block_times(job, rows, _layer_kernels(job, rows))


def _layer_kernels(job: Job, rows: Skeletons) -> Kernels:
    """Return kernel times, computed once per distinct set of shards."""
    distinct, inverse = rows.shards.distinct()
    every = int(np.bitwise_or.reduce(recomputed_bits(job.spec, rows), initial=0))
    return kernels(job.spec, job.efficiency, distinct, every).take(inverse)


def _block_times(job: Job, rows: Skeletons, seconds: Kernels) -> dict[str, BlockTimes]:
    """Return the seconds of blocks, built one by one since their columns are long."""
    result = {LAYER: _layer(job, rows, layer(job, rows), seconds.layer)}
    if job.spec.model.first_dense_layers:
        result[DENSE_LAYER] = _layer(job, rows, dense_layer(job, rows), seconds.dense)
    if job.spec.model.mtp_layers:
        further = _layer(job, rows, mtp_layer(job, rows), seconds.layer)
        beside = {"compute": seconds.beside_mtp_s}
        both = added([further.forward, further.backward, beside])
        result[MTP_LAYER] = replace(further, forward=both, backward={})
    # Nothing hides the first gather and the last reduction of a step.
    alone = np.zeros(len(rows))
    result[EMBEDDING] = _end(
        job, rows, embedding(job, rows), seconds.embedding_s, alone
    )
    result[HEAD] = _end(job, rows, head(job, rows), seconds.head_s, seconds.head_s)
    return result


def _layer(
    job: Job, rows: Skeletons, block: Block, compute: LayerKernels
) -> BlockTimes:
    """Return the seconds of a layer with these kernels.

    The end of the step hides behind the compute that one backward has left. A frozen
    reference has a forward as that of the layer, which keeps nothing.
    """
    moved = layer_copies(job, rows, block.weights)
    once = LayerCompute(
        compute.forward_s,
        compute.attention_s,
        compute.matmuls_s,
        compute.dispatch_s,
        compute.awaited_s,
        compute.unneeded_s,
    )
    twice = LayerCompute(
        compute.backward_s,
        compute.attention_backward_s,
        compute.matmuls_backward_s,
        compute.dispatch_backward_s,
        compute.awaited_backward_s,
        np.zeros(len(rows)),
        passes=2,
    )
    forward, backward, again_s = layer_passes(job, rows, block, once, twice, moved)
    waited = {"offload": np.zeros(len(rows)) + moved.waited_s}
    referred = Parts()
    if job.spec.training.forwards > 1:
        fetched = reference_copies(job, rows, block.weights)
        referred = layer_passes(job, rows, block, once, twice, fetched).forward.parts
    return BlockTimes(
        forward=added([forward.parts, waited, referred]),
        backward=added([backward.parts, waited]),
        sync=_sync(job, rows, block, moved, backward.left_s),
        # Half of a wait for the host is one for the kernels of weight gradients, and
        # half of the traffic that hides does so behind them: what hides traffic stays
        # in the backward, only the rest may fill a bubble.
        weight_s=np.clip(
            compute.weight_s + (backward.wait_s - backward.hidden_s) / 2,
            0,
            backward.left_s / 2,
        ),
        again_s=again_s,
        repeated_s=traffic.seconds(job, rows, chain(*block.repeated.values())),
        left_s=forward.left_s,
    )


def _leading(dense: BlockTimes, layer: BlockTimes) -> BlockTimes:
    """Return the difference of a leading dense layer to a repeated one."""
    less = [scaled(parts, -1) for parts in (layer.forward, layer.backward)]
    sync = added([dense.sync, scaled(layer.sync, -1)])
    weight_s = dense.weight_s - layer.weight_s
    forward = added([dense.forward, dense.backward, *less])
    again_s, left_s = dense.again_s - layer.again_s, np.zeros(len(weight_s))
    return BlockTimes(forward, {}, sync, weight_s, again_s, dense.repeated_s, left_s)


def _recompute_s(
    rows: Skeletons, bits: Ints, seconds: Kernels, times: BlockTimes
) -> Floats:
    """Return the extra seconds of a recomputed layer: its forward, or parts of it."""
    parts_s = of_bits(seconds.repeated, bits)
    again_s = np.where(rows.recompute == SELECTIVE, parts_s, times.again_s)
    is_repeated = (rows.recompute == SELECTIVE) | rows.repeats_layers
    return np.where(is_repeated, again_s + times.repeated_s, 0.0)


def _leading_recompute(bits: Ints, seconds: Kernels, lead: BlockTimes) -> Parts:
    """Return the seconds of the MLP that a leading dense layer repeats.

    It repeats it wherever `mlp` is recomputed. All else of them that is recomputed
    counts as that of a repeated layer.
    """
    kernels_s = np.where(bits & MLP > 0, seconds.repeated_dense_s, 0.0)
    return {"recompute": kernels_s + lead.repeated_s}


def _end(
    job: Job, rows: Skeletons, block: Block, compute_s: Floats, hide_s: Floats
) -> BlockTimes:
    """Return the seconds of the embedding or the head.

    Their traffic at the end of the step is exposed. A third of the kernels of both
    passes are those of a forward, which a frozen reference has once more.
    """
    moved, overlap = copies(job, rows, block.weights), job.efficiency.gather_overlap
    forward, backward = zero_traffic(job, rows, block)
    may_hide_s = forward.may_hide_s + backward.may_hide_s
    exposed_s = forward.exposed_s + backward.exposed_s
    messages = [*block.tp, *block.tp_back]
    moved_s = moved.forward_s + moved.backward_s
    if job.spec.training.forwards > 1:
        may_hide_s = may_hide_s + forward.may_hide_s
        exposed_s = exposed_s + forward.exposed_s
        messages += block.tp
        moved_s = moved_s + reference_copies(job, rows, block.weights).forward_s
        compute_s, hide_s = 4 / 3 * compute_s, 4 / 3 * hide_s
    zero_s, copies_s, _ = exposed_in_turn_s(may_hide_s, moved_s, hide_s, overlap)
    both = {
        "compute": compute_s,
        "tp": traffic.seconds(job, rows, messages),
        "zero": zero_s + exposed_s,
        "offload": copies_s,
    }
    none = np.zeros(len(rows))
    return BlockTimes(both, {}, _sync(job, rows, block, moved, none), *[none] * 4)


def _sync(
    job: Job, rows: Skeletons, block: Block, moved: Copies, hide_s: Floats
) -> Parts:
    """Return the end of the step: traffic not hidden by `hide_s`, and the update.

    GPU and host update what each of them has at the same time.
    """
    ends = at_step_end(job, rows, block)
    ends_s, down_s, _ = exposed_in_turn_s(
        ends.may_hide_s, moved.end_down_s, hide_s, job.efficiency.grad_overlap
    )
    on_gpu_s = _optimizer_s(job, rows, block.weights)
    return {
        "dp": ends_s + ends.exposed_s,
        "optimizer": on_gpu_s + block.orthogonalised_s,
        "offload": down_s + np.maximum(moved.update_s - on_gpu_s, 0.0),
    }


def _optimizer_s(job: Job, rows: Skeletons, held: list[Weights]) -> Floats:
    """Return the seconds of updates on the GPU; for the host see `cost.offload`."""
    gpu, moved = job.spec.cluster.topology.gpu, np.zeros(len(rows))
    share = 1 - job.spec.training.offload_fraction
    for state, blocks in by_state(held):
        kept = np.where(rows.offload == KEEPS_ALL, 1.0, share)
        updated = kept * (state.updated + state.by_operations)
        moved = moved + sum(w.params / w.sharding.optimizer for w in blocks) * updated
    rate = gpu.memory_gb_s * 1e9 * job.efficiency.memory
    return np.asarray(moved / rate)
