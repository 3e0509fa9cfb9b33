"""Traffic of a layer that hides behind its compute, and the host that starts both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from meshwright.cost import traffic
from meshwright.cost.blocks import Block
from meshwright.cost.job import Job
from meshwright.cost.offload import Copies
from meshwright.cost.traffic import (
    RENEWS_WEIGHTS,
    Collective,
    exposed_in_turn_s,
    hidden_s,
)
from meshwright.cost.weights import adapters
from meshwright.frameworks.base.registry import (
    context_exchange_of,
    framework_of,
    overlap_of,
)
from meshwright.plans.columns import Bools, Columns, Floats, Parts, total
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.training import Overlaps


@dataclass(frozen=True)
class LayerCompute(Columns):
    """Seconds of the kernels of a forward or backward of a layer, (rows,)."""

    kernels_s: Floats
    attention_s: Floats
    """The core of attention, part of the kernels."""
    matmuls_s: Floats
    """The matmuls with weights, part of the kernels."""
    dispatch_s: Floats
    """The time in which the host starts the kernels."""
    awaited_s: Floats
    """The part of it before which the host waits for the GPU."""
    unneeded_s: Floats
    """The part of the kernels that recomputation of the whole layer leaves out."""
    passes: int = 1
    """Forwards that the host starts as many kernels as."""


class Fetched(NamedTuple):
    """Seconds of ZeRO's traffic: what may hide, and what the code base exposes."""

    may_hide_s: Floats
    exposed_s: Floats


_REPEATED = ("compute", "tp", "ep", "cp")
"""Parts of a forward that recomputation repeats."""


class Pass(NamedTuple):
    """A forward or backward of a layer."""

    parts: Parts
    left_s: Floats
    """Compute, and waits for the host, that do not hide traffic yet."""
    wait_s: Floats
    """The time that the GPU waits for a slower host."""
    hidden_s: Floats
    """Traffic that hides, but for a ring's, which attention alone hides."""


class LayerPasses(NamedTuple):
    """The passes of a layer."""

    forward: Pass
    backward: Pass
    again_s: Floats
    """A forward that recomputation repeats as a whole."""


def layer_passes(
    job: Job,
    rows: Skeletons,
    block: Block,
    once: LayerCompute,
    twice: LayerCompute,
    moved: Copies,
) -> LayerPasses:
    """Return the passes of a layer, given the kernels of its forward and backward.

    Both passes send tokens to experts and, under ZeRO-3, gather weights. A repeated
    forward finds the weights there, since the backward gathers or fetches them.
    """
    once, twice = started(job, rows, once), started(job, rows, twice)
    zero = zero_traffic(job, rows, block)
    ep_s = traffic.seconds(job, rows, block.ep)
    forward_s = _messages_s(job, rows, block.tp, ep_s, block.ring)
    calls = chain(block.tp, block.ep, block.ring)
    again_host_s = host_pass_s(job, rows, once.dispatch_s, calls)
    host_s = host_pass_s(job, rows, again_host_s, block.gather)
    forward = _pass(job, rows, forward_s, once, zero.forward, moved.forward_s, host_s)
    backward_s = _messages_s(job, rows, block.tp_back, ep_s, block.ring_back)
    calls = chain(block.tp_back, block.ep, block.ring_back, block.gather, block.reduce)
    host_s = host_pass_s(job, rows, twice.dispatch_s, calls)
    backward = _pass(
        job, rows, backward_s, twice, zero.backward, moved.backward_s, host_s
    )
    gpu_s = total({name: forward.parts[name] for name in _REPEATED})
    # The results of all layers of a segment but the last are inputs of the next.
    gpu_s = gpu_s - once.unneeded_s / rows.recompute_segment
    gpu_s = gpu_s + np.where(_has_graphs(job, rows), 0.0, once.awaited_s)
    return LayerPasses(forward, backward, np.maximum(gpu_s, again_host_s))


class _Messages(NamedTuple):
    """Seconds of the messages of a pass, by axis."""

    tp_s: Floats
    ep_s: Floats
    ring_s: Floats


def _messages_s(
    job: Job,
    rows: Skeletons,
    tp: list[traffic.Collective],
    ep_s: Floats,
    ring: list[traffic.Collective],
) -> _Messages:
    tp_s, ring_s = (traffic.seconds(job, rows, one) for one in (tp, ring))
    return _Messages(tp_s, ep_s, ring_s)


def _pass(
    job: Job,
    rows: Skeletons,
    messages: _Messages,
    compute: LayerCompute,
    fetched: Fetched,
    copies_s: Floats,
    host_s: Floats,
) -> Pass:
    """Return a pass in which traffic hides behind compute, kind after kind.

    The ring of context parallelism hides behind the attention that it feeds (Liu et al.
    2023, section 3). Messages of tensor parallelism hide behind the matmuls that read
    or write them, those of experts behind the compute of another micro-batch, ZeRO
    behind the rest of the pass, copies to and from the host behind what that leaves.
    The slower of the GPU, with the traffic that it waits for, and its host sets the
    pace; what the host starts after it has waited for the GPU comes on top.
    """
    tp_s, ep_s, ring_s = messages
    overlap, share = overlap_of(job.spec), job.efficiency.gather_overlap
    left_s, hidden_ring_s = compute.kernels_s, np.zeros(len(rows))
    if context_exchange_of(job.spec) == "ring":
        hidden_ring_s = hidden_s(ring_s, compute.attention_s, share)
        left_s = left_s - hidden_ring_s
    beside_ring_s = left_s
    if "tp" in overlap:
        most_s = np.minimum(compute.matmuls_s, left_s)
        tp_share = job.efficiency.tp_overlap
        hidden_tp_s = hidden_s(_hideable(job, rows) * tp_s, most_s, tp_share)
        tp_s, left_s = tp_s - hidden_tp_s, left_s - hidden_tp_s
    if "ep" in overlap:
        may_hide_s = framework_of(job.spec).hides_experts(rows) * ep_s
        hidden_ep_s = hidden_s(may_hide_s, left_s, share)
        ep_s, left_s = ep_s - hidden_ep_s, left_s - hidden_ep_s
    zero_s, copies_s, left_s = exposed_in_turn_s(
        fetched.may_hide_s, copies_s, left_s, share
    )
    parts = {
        "compute": compute.kernels_s,
        "tp": tp_s,
        "ep": ep_s,
        "cp": ring_s - hidden_ring_s,
        "zero": zero_s + fetched.exposed_s,
        "offload": copies_s,
    }
    alone_s = np.where(_has_graphs(job, rows), 0.0, compute.awaited_s)
    wait_s = np.maximum(host_s - total(parts), alone_s)
    parts = {**parts, "host": wait_s}
    return Pass(parts, left_s + wait_s, wait_s, beside_ring_s - left_s)


def _hideable(job: Job, rows: Skeletons) -> Floats:
    """Return the share of messages of tensor parallelism that a matmul may hide.

    The message and its matmul go in as many pieces as there are ranks; nothing runs
    beside the first piece or the last. Code bases split them under sequence
    parallelism, inside a node (Transformer Engine, userbuffers; PyTorch, async tensor
    parallelism).
    """
    is_split = rows.sequence_parallel & (rows.tp <= job.fabric.sizes[0])
    return np.where(is_split, 1 - 1 / rows.tp, 0.0)


class ZeroTraffic(NamedTuple):
    """ZeRO's traffic of the passes of a block."""

    forward: Fetched
    backward: Fetched


def zero_traffic(job: Job, rows: Skeletons, block: Block) -> ZeroTraffic:
    """Return ZeRO's traffic of a forward and a backward.

    Stage 3 gathers weights for both; from stage 2 on gradients are reduced after every
    micro-batch (Rajbhandari et al. 2019, 7.2).
    """
    gather_s, reduce_s = (
        traffic.seconds(job, rows, one) for one in (block.gather, block.reduce)
    )
    overlap, nothing = overlap_of(job.spec), np.zeros(len(rows))
    return ZeroTraffic(
        _fetched(overlap, gather_s, nothing), _fetched(overlap, gather_s, reduce_s)
    )


def at_step_end(job: Job, rows: Skeletons, block: Block) -> Fetched:
    """Return the collectives of a block at the end of a step.

    From ZeRO-1 on all-gather and broadcasts there are of weights.
    """
    all_s = traffic.seconds(job, rows, block.end)
    overlap = overlap_of(job.spec)
    if ("gradients" in overlap) == ("parameters" in overlap):
        return _fetched(overlap, np.zeros(len(rows)), all_s)
    gathers = [
        one._replace(whole_bytes=one.whole_bytes * rows.sharding.shards_optimizer)
        for one in block.end
        if one.operation in RENEWS_WEIGHTS
    ]
    gather_s = traffic.seconds(job, rows, gathers)
    return _fetched(overlap, gather_s, all_s - gather_s)


def _fetched(overlap: Overlaps, weights_s: Floats, gradients_s: Floats) -> Fetched:
    """Return the seconds of weights and of gradients that may hide."""
    may_hide_s = ("parameters" in overlap) * weights_s
    may_hide_s = may_hide_s + ("gradients" in overlap) * gradients_s
    return Fetched(may_hide_s, weights_s + gradients_s - may_hide_s)


def exposed_send_s(
    job: Job, rows: Skeletons, send_s: Floats, chunk_s: Floats
) -> Floats:
    """Return the seconds of a send to a neighbouring stage that no compute hides.

    Interleaved stages may send while they compute another chunk, or wait for their
    host. At least `chunk_s` of the forward of a chunk hides no other traffic: half of
    it is for each of the two sends of a chunk. What the backward has left hides the
    end of the step.
    """
    if "pp" not in overlap_of(job.spec):
        return send_s
    hidden = hidden_s(send_s, chunk_s / 2, job.efficiency.gather_overlap)
    return np.where(rows.vpp > 1, send_s - hidden, send_s)


MODULES = 9
"""Modules of a layer with parameters: four matrices of attention, three of an MLP, and
two norms."""

ADAPTER_MODULES = 2


def started(job: Job, rows: Skeletons, compute: LayerCompute) -> LayerCompute:
    """Return a pass whose kernels the host starts as the framework does in each row."""
    framework, lora = framework_of(job.spec), job.spec.training.lora
    usual, whole = framework.layer_dispatch, framework.whole_layer_dispatch
    dispatch_s = compute.dispatch_s
    if whole is not None:
        is_whole = (rows.zero >= 2) | np.bool_(lora is not None)
        is_whole = is_whole & (rows.tp * rows.pp == 1)
        dispatch_s = np.where(is_whole, whole / usual, 1.0) * dispatch_s
    if framework.hook_dispatch:
        model = job.spec.model
        modules = MODULES
        if lora is not None:
            modules += ADAPTER_MODULES * len(adapters(model, lora, model.moe is None))
        hooks_s = framework.hook_dispatch * modules * job.efficiency.dispatch_s
        hooks_s = hooks_s * compute.passes
        dispatch_s = dispatch_s + np.where(rows.zero == 3, hooks_s, 0.0)
    return replace(compute, dispatch_s=dispatch_s)


HOST_COLLECTIVE = 0.5
"""Host time of a collective, 0.1 ms: bookkeeping of a process group, events between
streams, and the launch of NCCL."""

HOST_SEND = 1.5
"""Host time of a message to a neighbouring stage, 0.3 ms: a batch of sends and receives
that the host waits for (megatron-core, pipeline_parallel/p2p_communication.py:
torch.cuda.synchronize)."""

HOST_STEP = 50
"""Host time between two steps, 10 ms: data, the norm of gradients, which the host
reads, the launches of the update, and logs."""


def host_pass_s(
    job: Job, rows: Skeletons, dispatch_s: Floats, operations: Iterable[Collective]
) -> Floats:
    """Return the seconds in which the host starts one pass of a layer."""
    call_s = HOST_COLLECTIVE * job.efficiency.dispatch_s
    seconds = np.array(dispatch_s)
    for one in operations:
        is_there = (one.whole_bytes > 0) & (one.members > 1)
        seconds = seconds + np.where(is_there, one.calls * call_s, 0.0)
    return np.where(_has_graphs(job, rows), 0.0, seconds)


def _has_graphs(job: Job, rows: Skeletons) -> Bools:
    """Return whether CUDA graphs replay the kernels, so that no pass waits."""
    said = job.spec.training.cuda_graphs
    if said is not None:
        return np.full(len(rows), said is True)
    is_usual = framework_of(job.spec).has_cuda_graphs
    return np.asarray(is_usual & (rows.pp == 1) & (rows.ep == 1))


def host_send_s(job: Job, rows: Skeletons) -> Floats:
    """Return the seconds of the host for a message to a neighbouring stage."""
    return np.where(rows.pp > 1, HOST_SEND * job.efficiency.dispatch_s, 0.0)


def host_step_s(job: Job) -> float:
    """Return the seconds of the host between two steps."""
    return HOST_STEP * job.efficiency.dispatch_s
