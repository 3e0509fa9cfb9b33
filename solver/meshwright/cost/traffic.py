"""The collectives of a step: their groups, bytes, number of calls and seconds.

Seconds are by the alpha-beta model, from what a group pays on its links.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.parameters_and_flops import (
    expert_width,
    kv_shards,
    kv_width,
    latent_down_width,
    output_width,
    query_width,
    table_params,
    value_width,
)
from meshwright.cost.state import (
    copies_of_token,
    end_state,
    sums_whole_gradients,
)
from meshwright.cost.weights import Weights
from meshwright.frameworks.base.registry import context_exchange_of, framework_of
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.gpu import ELEMENT_BYTES
from meshwright.spec.model import Model
from meshwright.topology.groups import CP, EP, PP, TP


def all_gather_s(
    whole_bytes: Floats, n: Ints, s_per_byte: Floats, latency_s: Floats
) -> Floats:
    """Return the seconds of a ring in which each member gets all `whole_bytes`."""
    return (n - 1) * (whole_bytes / n * s_per_byte + latency_s)


def reduce_scatter_s(
    whole_bytes: Floats, n: Ints, s_per_byte: Floats, latency_s: Floats
) -> Floats:
    """Return the seconds of a ring that sums `whole_bytes`, 1/n left on each member."""
    return all_gather_s(whole_bytes, n, s_per_byte, latency_s)


def all_reduce_s(
    whole_bytes: Floats, n: Ints, s_per_byte: Floats, latency_s: Floats
) -> Floats:
    """Return the seconds to sum `whole_bytes` on all members, by ring or tree."""
    ring = 2 * all_gather_s(whole_bytes, n, s_per_byte, latency_s)
    steps = 2 * np.ceil(np.log2(np.maximum(n, 1)))
    tree = np.where(n > 1, 2 * whole_bytes * s_per_byte, 0.0) + steps * latency_s
    return np.minimum(ring, tree)


def all_to_all_s(
    whole_bytes: Floats, n: Ints, s_per_byte: Floats, latency_s: Floats
) -> Floats:
    """Return the seconds in which each member sends 1/n of `whole_bytes` to each.

    All messages are sent at once, so that latency counts once.
    """
    result: Floats = (n - 1) / n * whole_bytes * s_per_byte + latency_s
    return result


CHAIN_HOP = 3
"""Latency of a hop of a chain over that of its link. NCCL takes 3.4 us inside a host
and 14 us between hosts for messages that are large (NCCL 2.18, src/graph/tuning.cc:
`hwLat`, ring, Simple), 4.7 us in the mean of eight GPUs to a host."""


def broadcasts_s(
    whole_bytes: Floats,
    n: Ints,
    s_per_byte: Floats,
    latency_s: Floats,
    pieces: Floats | float,
) -> Floats:
    """Return the seconds to send pieces of `whole_bytes` to all, each down a chain.

    A chain passes a piece on while it comes, and has all hops to pass before the next
    piece starts at another member (NCCL, src/device/broadcast.h, which has no tree).
    """
    result: Floats = np.where(n > 1, whole_bytes * s_per_byte, 0.0)
    return result + pieces * (n - 1) * CHAIN_HOP * latency_s


def send_s(message_bytes: Floats, s_per_byte: Floats, latency_s: Floats) -> Floats:
    """Return the seconds to send `message_bytes` to a neighbour."""
    return message_bytes * s_per_byte + latency_s


def hidden_s(traffic_s: Floats, compute_s: Floats, overlap: float) -> Floats:
    """Return the seconds of traffic that compute hides, at most a share `overlap`."""
    return np.minimum(overlap * traffic_s, compute_s)


SLOWS_COMPUTE = 0.3
"""Seconds that a hidden second of a collective adds to the kernels beside it.

NCCL's kernel takes 16 to 32 of the 108 to 148 processors of a GPU, a block for each of
its channels, and both compete for memory bandwidth. On measured runs of FSDP and of
Megatron-LM 0.2 to 0.4 fit equally well. Copies to the host take no processor.
"""


def exposed_in_turn_s(
    collectives_s: Floats, copies_s: Floats, compute_s: Floats, overlap: float
) -> tuple[Floats, Floats, Floats]:
    """Return the seconds that collectives and copies add, and the compute left over.

    Copies hide behind the compute that collectives leave, so that one second of compute
    hides at most one second of traffic. Collectives slow the compute that hides them.
    """
    hidden_first_s = hidden_s(collectives_s, compute_s, overlap)
    left_s = compute_s - hidden_first_s
    hidden_second_s = hidden_s(copies_s, left_s, overlap)
    added_s = collectives_s - (1 - SLOWS_COMPUTE) * hidden_first_s
    exposed = added_s, copies_s - hidden_second_s
    return *exposed, left_s - hidden_second_s


Operation = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "broadcast"
]

RENEWS_WEIGHTS: tuple[Operation, ...] = ("all_gather", "broadcast")
"""The operations at the end of a step by which ranks get the weights of others."""


class Collective(NamedTuple):
    """One operation of all groups of one axis, one row per skeleton.

    `whole_bytes` is the result of an all-gather or the input of a reduction on each
    member, or the message sent; it is 0 where a row has no such operation.
    """

    group: int
    """Column of the group in `PathCosts`."""
    operation: Operation
    whole_bytes: Floats
    members: Ints
    calls: int = 1
    pieces: Floats | float = 1.0
    """Of a broadcast: members that send a piece of the whole, one after another."""
    bucket_share: Floats | float = 1.0
    """Of a bucket of gradients that is sent at once: its latency is shared."""

    def seconds(self, job: Job, rows: Skeletons) -> Floats:
        """Return the seconds of all calls."""
        if not self.whole_bytes.any():
            return np.zeros(len(rows))
        s_per_byte = rows.paths.s_per_byte[:, self.group] / job.efficiency.link
        latency_s = rows.paths.latency_s[:, self.group] * job.efficiency.latency
        latency_s = self.bucket_share * latency_s
        if self.operation == "send":
            once = send_s(self.whole_bytes, s_per_byte, latency_s)
        elif self.operation == "broadcast":
            paid = self.whole_bytes, self.members, s_per_byte, latency_s
            once = broadcasts_s(*paid, self.pieces)
        else:
            formula = _FORMULAS[self.operation]
            once = formula(self.whole_bytes, self.members, s_per_byte, latency_s)
        return np.where(self.whole_bytes > 0, self.calls * once, 0.0)

    @property
    def ring_bytes(self) -> Floats:
        """Return the bytes that each member passes on in all calls."""
        if self.operation == "send":
            return self.calls * self.whole_bytes
        passes = 2 if self.operation == "all_reduce" else 1
        share = (self.members - 1) / self.members
        return self.calls * passes * share * self.whole_bytes


_FORMULAS = {
    "all_reduce": all_reduce_s,
    "all_gather": all_gather_s,
    "reduce_scatter": reduce_scatter_s,
    "all_to_all": all_to_all_s,
}


def seconds(job: Job, rows: Skeletons, operations: Iterable[Collective]) -> Floats:
    """Return the seconds of operations, one after another."""
    result = np.zeros(len(rows))
    for operation in operations:
        result = result + operation.seconds(job, rows)
    return result


def only(operations: Iterable[Collective], is_there: Bools) -> list[Collective]:
    """Return operations that some rows alone have."""
    return [
        one._replace(whole_bytes=np.where(is_there, one.whole_bytes, 0.0))
        for one in operations
    ]


def hidden_bytes(job: Job, rows: Skeletons) -> Floats:
    """Return the bytes of one micro-batch's residual stream."""
    training = job.spec.training
    width = job.spec.model.d_model * ELEMENT_BYTES[training.precision]
    return rows.shards.tokens(training.seq_len) * width


def tensor_parallel(job: Job, rows: Skeletons, calls: int) -> list[Collective]:
    """Return `calls` all-reduces of the residual stream over the tensor axis.

    Under sequence parallelism each is a reduce-scatter and an all-gather (Korthikanti
    et al. 2022, section 4.2.2).
    """
    hidden = np.where(rows.tp > 1, hidden_bytes(job, rows), 0.0)
    split = np.where(rows.sequence_parallel, hidden, 0.0)
    return [
        Collective(TP, "all_reduce", hidden - split, rows.tp, calls),
        Collective(TP, "all_gather", split, rows.tp, calls),
        Collective(TP, "reduce_scatter", split, rows.tp, calls),
    ]


def checkpoint_gathers(job: Job, rows: Skeletons) -> list[Collective]:
    """Return the all-gather of a recomputed layer's input, where it was split.

    Of a segment the first layer alone has an input that was kept; the gather counts as
    a part of one for each of its layers.
    """
    if not job.spec.training.partition_activations:
        return []
    is_split = rows.repeats_layers & (rows.tp > 1)
    whole = np.where(is_split, hidden_bytes(job, rows) / rows.recompute_segment, 0.0)
    return [Collective(TP, "all_gather", whole, rows.tp)]


def latent_gathers(job: Job, rows: Skeletons) -> list[Collective]:
    """Return the all-gathers of latent vectors before they are projected to heads.

    Under sequence parallelism every GPU of a tensor-parallel group has compressed its
    tokens alone (Megatron-LM multi_latent_attention.py).
    """
    model, training = job.spec.model, job.spec.training
    if model.mla is None or model.mixer != "attention":
        return []
    width = (model.mla.q_rank or model.d_model) + model.mla.kv_rank
    tokens = rows.shards.tokens(training.seq_len)
    whole = tokens * width * ELEMENT_BYTES[training.precision]
    gathered = np.where((rows.tp > 1) & rows.sequence_parallel, whole, 0.0)
    return [Collective(TP, "all_gather", gathered, rows.tp)]


def reductions(model: Model) -> int:
    """Return the number of all-reduces over the tensor axis in a layer's forward.

    Attention and MLP have one each (Shoeybi et al. 2019, section 3), and so has the
    backward. Routed experts are not split over the tensor axis, but shared ones are.
    """
    inner = model.d_ff if model.moe is None else model.moe.shared_d_ff
    return (model.mixer != "none") + (inner > 0)


def expert_exchange(job: Job, rows: Skeletons) -> list[Collective]:
    """Return the all-to-alls of tokens over the expert-parallel group in one pass.

    A layer has two forward, to the experts and back, and two backward (Lepikhin et al.
    2020, GShard, section 3.2). Each token goes to top_k experts. Where tensor
    parallelism splits experts, its GPUs gather what each got, and scatter the sums of
    results on the way back (Megatron Core, moe/token_dispatcher.py).
    """
    moe = job.spec.model.moe
    if moe is None:
        return []
    hidden = hidden_bytes(job, rows) / rows.shards.sequence_shards
    hidden = hidden * expert_width(job.spec.model, moe) / job.spec.model.d_model
    copies = hidden * copies_of_token(job.spec, rows)
    sent = np.where(rows.ep > 1, copies, 0.0)
    exchange = Collective(EP, "all_to_all", sent, rows.ep, calls=2)
    if (rows.etp == 1).all():
        return [exchange]
    whole = np.where(rows.etp > 1, rows.etp * copies, 0.0)
    return [
        exchange,
        Collective(TP, "all_gather", whole, rows.etp, calls=1),
        Collective(TP, "reduce_scatter", whole, rows.etp, calls=1),
    ]


def context_parallel(job: Job, rows: Skeletons, is_backward: bool) -> list[Collective]:
    """Return the collectives of a layer's attention over the context axis.

    Every GPU gets the keys and values of all, and the backward sums their gradients; in
    a ring it gets keys and values again (Liu et al. 2023, Ring Attention, section 3).
    """
    exchange = context_exchange_of(job.spec)
    if exchange == "ulysses":
        return _ulysses(job, rows)
    training, width = job.spec.training, _passed_width(job.spec.model, rows)
    element = ELEMENT_BYTES[training.precision]
    whole = rows.micro_batch * (training.seq_len * element) * width
    passed = np.where(rows.cp > 1, whole, 0.0)
    gather = Collective(CP, "all_gather", passed, rows.cp)
    if not is_backward:
        return [gather]
    reduce = Collective(CP, "reduce_scatter", passed, rows.cp)
    return [gather, reduce] if exchange == "ring" else [reduce]


def _passed_width(model: Model, rows: Skeletons) -> Floats:
    """Return the width of keys and values that a GPU gets of a token.

    Where an indexer picks tokens, all heads share one key, which is the value as well,
    and every GPU has those of all heads; the indexer has another (Megatron-LM d98e8a6,
    transformer/experimental_attention_variant/dsa.py: `DSAttention.forward`).
    """
    if model.picker is not None:
        of_indexer = model.indexer.head_dim if model.indexer is not None else 0
        return np.full(len(rows), float(latent_down_width(model) + of_indexer))
    return (kv_width(model) + value_width(model)) / kv_shards(model, rows.tp)


def _ulysses(job: Job, rows: Skeletons) -> list[Collective]:
    """Return the four all-to-alls of a layer's attention, the same in both passes.

    Queries, keys and values go to the GPUs of their heads, and results come back
    (Jacobs et al. 2023, DeepSpeed Ulysses, section 3.2). KV heads that are fewer than
    the GPUs are repeated, one for each.
    """
    training, model = job.spec.training, job.spec.model
    repeats = np.maximum(rows.cp / model.n_kv_heads, 1.0)
    widths = (
        query_width(model) / rows.tp,
        repeats * kv_width(model) / rows.tp,
        repeats * value_width(model) / rows.tp,
        output_width(model) / rows.tp,
    )
    tokens = rows.shards.tokens(training.seq_len) * ELEMENT_BYTES[training.precision]
    sent = np.where(rows.cp > 1, tokens, 0.0)
    return [Collective(CP, "all_to_all", sent * width, rows.cp) for width in widths]


def pipeline_send(job: Job, rows: Skeletons) -> list[Collective]:
    """Return the send of one micro-batch to a neighbouring stage, one way.

    Each tensor-parallel rank sends its share. Without sequence parallelism the
    receivers then gather the whole (Narayanan et al. 2021, section
    4.1; DeepSpeed's pipeline partitions what it sends likewise).
    """
    whole = np.where(rows.pp > 1, hidden_bytes(job, rows), 0.0)
    gathered = np.where(rows.sequence_parallel | (rows.tp == 1), 0.0, whole)
    return [
        Collective(PP, "send", whole / rows.tp, rows.pp),
        Collective(TP, "all_gather", gathered, rows.tp),
    ]


def gather_weights(rows: Skeletons, held: list[Weights]) -> list[Collective]:
    """Return ZeRO-3's all-gather of weights, once per forward and per backward."""
    is_sharded = rows.sharding.shards_weights
    return [
        _in_shards(block, "all_gather", np.where(is_sharded, block.state.gathered, 0.0))
        for block in held
    ]


def reduce_gradients(
    job: Job, rows: Skeletons, held: list[Weights]
) -> list[Collective]:
    """Return the reduce-scatter that ZeRO-2 and 3 do after every micro-batch.

    Beside some pipelines they do it at the end of the step.
    """
    is_sharded = _shards_each_time(job, rows)
    return [
        _in_shards(
            block, "reduce_scatter", np.where(is_sharded, block.state.reduced, 0.0)
        )
        for block in held
    ]


def _shards_each_time(job: Job, rows: Skeletons) -> Bools:
    return rows.sharding.shards_gradients & ~sums_whole_gradients(job.spec, rows)


def _in_shards(
    held: Weights,
    operation: Operation,
    per_param: Floats,
    bucket_share: Floats | float = 1.0,
) -> Collective:
    """Return an operation on some weights, in the group that shards them."""
    shards, whole = held.sharding, held.params * per_param
    return Collective(
        shards.group, operation, whole, shards.members, bucket_share=bucket_share
    )


TENSORS = 7
"""Tensors of a layer that a code base deals out whole: queries, keys and values as one,
the output, three of the MLP, and two norms (InternLM 01e7fd6, modeling_internlm.py)."""


def step_end(job: Job, rows: Skeletons, held: list[Weights]) -> list[Collective]:
    """Return the collectives at the end of a step (Rajbhandari et al. 2019, 7).

    ZeRO-0 all-reduces gradients, in the group that would shard as a reduce-scatter and
    an all-gather; ZeRO-1 reduce-scatters them and gathers weights; ZeRO-2 has reduced
    them already; ZeRO-3 has no weights to gather. Replicas of a shard all-reduce it.
    Nothing renews frozen weights. Where whole tensors are dealt out, ZeRO-1
    all-reduces gradients and broadcasts the tensors of one member after another.
    """
    shards, operations = rows.sharding, []
    is_done = _shards_each_time(job, rows)
    deals = np.bool_(framework_of(job.spec).deals_tensors) & (rows.zero == 1)
    layers = job.spec.model.n_layers / rows.pp
    for block in held:
        state = block.state
        bucket = np.minimum(block.params / framework_of(job.spec).bucket_params, 1.0)
        in_shards = partial(_in_shards, block, bucket_share=bucket)
        reduced = np.where(is_done | deals, 0.0, state.reduced)
        summed = np.where(shards.shards_optimizer, state.renewed, state.reduced)
        gathered = np.where(shards.shards_weights, 0.0, summed)
        shard = block.params * state.reduced / block.sharding.members
        shared = np.where(block.replicas > 1, shard, 0)
        operations.append(in_shards("reduce_scatter", reduced))
        if deals.any():
            pieces = np.minimum(block.sharding.members / layers, TENSORS)
            sent = in_shards("broadcast", np.where(deals, gathered, 0.0))
            dealt = in_shards("all_reduce", np.where(deals, state.reduced, 0.0))
            operations += [dealt, sent._replace(pieces=pieces)]
        operations += [
            in_shards("all_gather", gathered * ~deals),
            Collective(
                block.replica_group,
                "all_reduce",
                shared,
                block.replicas,
                bucket_share=bucket,
            ),
        ]
    return operations


def tied_tables(job: Job, rows: Skeletons) -> list[Collective]:
    """Return the sum over two copies of the embedding at the ends of a pipeline."""
    if not job.spec.model.copies_embedding:
        return []
    held = table_params(job.spec.model, rows.tp) * end_state(job.spec).reduced
    whole = np.where(rows.pp > 1, held, 0.0)
    return [Collective(PP, "all_reduce", whole, np.full(len(rows), 2))]
