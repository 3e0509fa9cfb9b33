"""Time costs: seconds per layer, micro-batch and step, by part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from meshwright.cost import traffic
from meshwright.cost.blocks import (
    DENSE_LAYER,
    EMBEDDING,
    HEAD,
    LAYER,
    Block,
    dense_layer,
    embedding,
    head,
    layer,
)
from meshwright.cost.collectives import exposed_in_turn_s, hidden_s
from meshwright.cost.compute import Kernels, LayerKernels, kernels
from meshwright.cost.job import Job
from meshwright.cost.offload import copies
from meshwright.cost.repeated import of_bits
from meshwright.cost.state import state_bytes
from meshwright.cost.weights import Weights
from meshwright.frameworks.base.registry import context_exchange_of
from meshwright.frameworks.base.selective import recomputed_bits
from meshwright.plans.columns import Columns, Floats, Ints, Parts, added, scaled
from meshwright.plans.recomputation import MLP
from meshwright.plans.skeletons import FULL, KEEPS_ALL, SELECTIVE, Skeletons


@dataclass(frozen=True)
class TimeCosts(Columns):
    """Seconds that make up a step, one row per skeleton.

    A stage of n layers, r of them recomputed, takes n x (forward + backward) + r x
    recompute per micro-batch, with `send` for each neighbour it sends to, and `first`
    or `last` where it is an end of the pipeline. After the last micro-batch it takes
    n x sync_layer, and `sync_first` or `sync_last`.
    """

    forward: Parts
    backward: Parts
    weight_s: Floats
    """The part of a layer's backward for gradients of weights, which may wait."""
    recompute_s: Floats
    first: Parts
    """Includes the difference of leading dense layers to repeated ones."""
    first_weight_s: Floats
    """The difference of leading dense layers to repeated ones in `weight_s`."""
    last: Parts
    send_s: Floats
    sync_layer: Parts
    sync_first: Parts
    sync_last: Parts


@dataclass(frozen=True)
class BlockTimes:
    """Seconds of one block by part, per micro-batch and at the end of the step."""

    forward: Parts
    """Of embedding and head this includes the backward."""
    backward: Parts
    sync: Parts
    weight_s: Floats
    """The part of the backward for gradients of weights, which may wait."""
    repeated_s: Floats
    """The collectives that selective recomputation repeats."""


def time_costs(job: Job, rows: Skeletons) -> TimeCosts:
    """Return the seconds that make up every stage of every skeleton."""
    seconds = _layer_kernels(job, rows)
    times = _block_times(job, rows, seconds)
    repeated, first, last = (times[name] for name in (LAYER, EMBEDDING, HEAD))
    count = job.spec.model.first_dense_layers
    none = BlockTimes({}, {}, {}, np.zeros(len(rows)), np.zeros(len(rows)))
    bits = recomputed_bits(job.spec, rows)
    lead = _leading(times[DENSE_LAYER], repeated, count) if count else none
    lead_again = _leading_recompute(count, bits, seconds, lead) if count else {}
    return TimeCosts(
        forward=repeated.forward,
        backward=repeated.backward,
        weight_s=repeated.weight_s,
        recompute_s=_recompute_s(rows, bits, seconds, repeated),
        first=added([lead.forward, first.forward, lead_again]),
        first_weight_s=lead.weight_s,
        last=last.forward,
        send_s=traffic.seconds(job, rows, traffic.pipeline_send(job, rows)),
        sync_layer=repeated.sync,
        sync_first=added([lead.sync, first.sync]),
        sync_last=last.sync,
    )


def block_times(job: Job, rows: Skeletons) -> dict[str, BlockTimes]:
    """Return the seconds of every block of `cost.blocks.blocks`, by name."""
    return _block_times(job, rows, _layer_kernels(job, rows))


def _layer_kernels(job: Job, rows: Skeletons) -> Kernels:
    """Return kernel times, computed once per distinct set of shards."""
    distinct, inverse = rows.shards.distinct()
    found = kernels(job.spec, job.efficiency, distinct)
    every = int(np.bitwise_or.reduce(recomputed_bits(job.spec, rows), initial=0))
    needed = {bits: s for bits, s in found.repeated.items() if bits & every}
    return replace(found, repeated=needed).take(inverse)


def _block_times(job: Job, rows: Skeletons, seconds: Kernels) -> dict[str, BlockTimes]:
    """Return the seconds of blocks, built one by one since their columns are long."""
    result = {LAYER: _layer(job, rows, layer(job, rows), seconds.layer)}
    if job.spec.model.first_dense_layers:
        result[DENSE_LAYER] = _layer(job, rows, dense_layer(job, rows), seconds.dense)
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

    The end of the step hides behind the compute that one backward has left: a second of
    compute hides one second of traffic, once over the whole step.
    """
    moved = copies(job, rows, block.weights)
    zero_s, zero_back_s = _zero_s(job, rows, block)
    exposed = {
        "tp": traffic.seconds(job, rows, block.tp),
        "ep": traffic.seconds(job, rows, block.ep),
    }
    hiding = traffic.seconds(job, rows, block.ring), zero_s, moved.forward_s
    is_hidden = context_exchange_of(job.spec) == "ring"
    behind_s = is_hidden * (compute.attention_s + compute.wait_s)
    forward = _pass(job, exposed, compute.forward_s, behind_s, *hiding)
    hiding = traffic.seconds(job, rows, block.ring_back), zero_back_s, moved.backward_s
    behind_s = is_hidden * (compute.attention_backward_s + compute.wait_backward_s)
    backward = _pass(job, exposed, compute.backward_s, behind_s, *hiding)
    return BlockTimes(
        forward=forward.parts,
        backward=backward.parts,
        sync=_sync(job, rows, block, backward.left_s),
        # Half of a wait for the host is one for the kernels of weight gradients. What
        # is deferred leaves the backward and fills a bubble, so that twice as much
        # compute must hide no traffic.
        weight_s=np.minimum(
            compute.weight_s + compute.wait_backward_s / 2, backward.left_s / 2
        ),
        repeated_s=traffic.seconds(job, rows, chain(*block.repeated.values())),
    )


class _Pass(NamedTuple):
    """A forward or backward of a layer."""

    parts: Parts
    left_s: Floats
    """Compute that does not hide traffic yet."""


def _pass(
    job: Job,
    exposed: Parts,
    compute_s: Floats,
    behind_s: Floats,
    ring_s: Floats,
    zero_s: Floats,
    copies_s: Floats,
) -> _Pass:
    """Return a forward or backward in which one second of compute hides one of traffic.

    `exposed` traffic and compute wait for each other. The ring of context parallelism
    hides behind `behind_s`: the attention that it feeds (Liu et al. 2023, section 3)
    and the wait for the host; `behind_s` is 0 where attention waits for all of it. ZeRO
    hides behind the rest of the pass, and copies to and from the host behind what ZeRO
    leaves.
    """
    overlap = job.efficiency.gather_overlap
    hidden_ring_s = hidden_s(ring_s, behind_s, overlap)
    exposed_zero_s, exposed_copies_s, left_s = exposed_in_turn_s(
        zero_s, copies_s, compute_s - hidden_ring_s, overlap
    )
    parts = {
        "compute": compute_s,
        **exposed,
        "cp": ring_s - hidden_ring_s,
        "zero": exposed_zero_s,
        "offload": exposed_copies_s,
    }
    return _Pass(parts, left_s)


def _leading(dense: BlockTimes, layer: BlockTimes, count: int) -> BlockTimes:
    """Return the difference of the leading dense layers to as many repeated ones."""
    more = [scaled(parts, count) for parts in (dense.forward, dense.backward)]
    less = [scaled(parts, -count) for parts in (layer.forward, layer.backward)]
    sync = added([scaled(dense.sync, count), scaled(layer.sync, -count)])
    weight_s = count * (dense.weight_s - layer.weight_s)
    forward = added([*more, *less])
    return BlockTimes(forward, {}, sync, weight_s, count * dense.repeated_s)


def _recompute_s(
    rows: Skeletons, bits: Ints, seconds: Kernels, times: BlockTimes
) -> Floats:
    """Return the extra seconds of a recomputed layer: its forward, or parts of it.

    The weights are there already, since the backward gathers or fetches them.
    """
    fetched = ("zero", "offload")
    forward_s = sum(s for name, s in times.forward.items() if name not in fetched)
    again_s = of_bits(seconds.repeated, bits) + times.repeated_s
    again = [again_s, forward_s]
    return np.select([rows.recompute == SELECTIVE, rows.recompute == FULL], again, 0.0)


def _leading_recompute(
    count: int, bits: Ints, seconds: Kernels, lead: BlockTimes
) -> Parts:
    """Return what leading dense layers repeat of their MLP, as part of the first stage.

    They repeat it wherever `mlp` is recomputed. All else of them that is recomputed
    counts as that of a repeated layer.
    """
    kernels_s = np.where(bits & MLP > 0, seconds.repeated_dense_s, 0.0)
    return {"recompute": count * kernels_s + lead.repeated_s}


def _zero_s(job: Job, rows: Skeletons, block: Block) -> tuple[Floats, Floats]:
    """Return the ZeRO seconds of a block's forward and backward.

    Stage 3 gathers weights for the forward and again for the backward; from stage 2
    on gradients are reduced after every micro-batch (Rajbhandari et al. 2019, 7.2).
    """
    gather = traffic.seconds(job, rows, block.gather)
    return gather, gather + traffic.seconds(job, rows, block.reduce)


def _end(
    job: Job, rows: Skeletons, block: Block, compute_s: Floats, hide_s: Floats
) -> BlockTimes:
    """Return the seconds of the embedding or the head.

    Their traffic at the end of the step is exposed.
    """
    moved, overlap = copies(job, rows, block.weights), job.efficiency.gather_overlap
    forward_s, backward_s = _zero_s(job, rows, block)
    copies_s = moved.forward_s + moved.backward_s
    zero_s, copies_s, _ = exposed_in_turn_s(
        forward_s + backward_s, copies_s, hide_s, overlap
    )
    both = {
        "compute": compute_s,
        "tp": traffic.seconds(job, rows, [*block.tp, *block.tp_back]),
        "zero": zero_s,
        "offload": copies_s,
    }
    none = np.zeros(len(rows))
    return BlockTimes(both, {}, _sync(job, rows, block, none), none, none)


def _sync(job: Job, rows: Skeletons, block: Block, hide_s: Floats) -> Parts:
    """Return the end of the step: traffic not hidden by `hide_s`, and the update."""
    ends = traffic.seconds(job, rows, block.end)
    overlap, moved = job.efficiency.grad_overlap, copies(job, rows, block.weights)
    ends_s, down_s, _ = exposed_in_turn_s(ends, moved.end_down_s, hide_s, overlap)
    return {
        "dp": ends_s,
        "optimizer": _optimizer_s(job, rows, block.weights),
        "offload": down_s + moved.update_s,
    }


def _optimizer_s(job: Job, rows: Skeletons, held: list[Weights]) -> Floats:
    """Return the seconds of updates on the GPU; for the host see `cost.offload`."""
    moved = np.where(rows.offload == KEEPS_ALL, state_bytes(job.spec).updated, 0.0)
    params = sum(w.params / w.sharding.optimizer for w in held)
    gpu = job.spec.cluster.topology.gpu
    rate = gpu.memory_gb_s * 1e9 * job.efficiency.memory
    return np.asarray(params * moved / rate)
