"""Every collective of a step: on which axis, what it moves, how often.

Time and link loads are both read off these lists, so that no traffic is timed that is
not on a link, or the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from meshwright.cost import collectives
from meshwright.cost.activations import ELEMENT_BYTES
from meshwright.cost.arrays import Floats, Ints
from meshwright.cost.framework import state_bytes
from meshwright.cost.transformer import table_params
from meshwright.job import Job
from meshwright.skeleton import DP_REPLICATE, DP_SHARD, PP, TP, Skeletons

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "send"]


@dataclass(frozen=True)
class Collective:
    """One operation of every group of an axis, a row per skeleton.

    `whole_bytes` is what an all-gather leaves and a reduction takes on each member,
    or what is sent; 0 where the row has no such operation.
    """

    axis: int
    operation: Operation
    whole_bytes: Floats
    members: Ints
    calls: int = 1

    def seconds(self, job: Job, rows: Skeletons) -> Floats:
        """Return the seconds of all calls, at the efficiency of real links."""
        s_per_byte = rows.paths.s_per_byte[:, self.axis] / job.efficiency.link
        latency_s = rows.paths.latency_s[:, self.axis] * job.efficiency.latency
        if self.operation == "send":
            once = collectives.send_s(self.whole_bytes, s_per_byte, latency_s)
        else:
            formula = _FORMULAS[self.operation]
            once = formula(self.whole_bytes, self.members, s_per_byte, latency_s)
        return np.where(self.whole_bytes > 0, self.calls * once, 0.0)

    @property
    def ring_bytes(self) -> Floats:
        """Return the bytes that each member passes to its neighbour in all calls."""
        if self.operation == "send":
            return self.calls * self.whole_bytes
        passes = 2 if self.operation == "all_reduce" else 1
        share = (self.members - 1) / self.members
        return self.calls * passes * share * self.whole_bytes


_FORMULAS = {
    "all_reduce": collectives.all_reduce_s,
    "all_gather": collectives.all_gather_s,
    "reduce_scatter": collectives.reduce_scatter_s,
}


def seconds(job: Job, rows: Skeletons, operations: Iterable[Collective]) -> Floats:
    """Return the seconds of operations one after the other."""
    result = np.zeros(len(rows))
    for operation in operations:
        result = result + operation.seconds(job, rows)
    return result


def hidden_bytes(job: Job, rows: Skeletons) -> Floats:
    """Return the bytes of one micro-batch's residual stream."""
    training = job.spec.training
    width = job.spec.model.d_model * ELEMENT_BYTES[training.precision]
    return rows.micro_batch.astype(np.float64) * (training.seq_len * width)


def tensor_parallel(job: Job, rows: Skeletons, calls: int) -> list[Collective]:
    """Return `calls` all-reduces of the residual stream over the tensor axis.

    A layer has two forward and two backward (Shoeybi et al. 2019, section 3). Under
    sequence parallelism each is a reduce-scatter and an all-gather (Korthikanti et
    al. 2022, section 4.2.2).
    """
    hidden = np.where(rows.tp > 1, hidden_bytes(job, rows), 0.0)
    split = np.where(rows.sequence_parallel, hidden, 0.0)
    return [
        Collective(TP, "all_reduce", hidden - split, rows.tp, calls),
        Collective(TP, "all_gather", split, rows.tp, calls),
        Collective(TP, "reduce_scatter", split, rows.tp, calls),
    ]


def pipeline_send(job: Job, rows: Skeletons) -> list[Collective]:
    """Return the send of one micro-batch to a neighbouring stage, one way.

    Under sequence parallelism each tensor-parallel rank sends its own share.
    """
    share = np.where(rows.sequence_parallel, rows.tp, 1)
    message = np.where(rows.pp > 1, hidden_bytes(job, rows) / share, 0.0)
    return [Collective(PP, "send", message, rows.pp)]


def gather_weights(job: Job, rows: Skeletons, params: Floats) -> list[Collective]:
    """Return ZeRO-3's all-gather of weights, once per forward and per backward."""
    whole = np.where(rows.zero == 3, params * state_bytes(job.spec).gathered, 0.0)
    return [Collective(DP_SHARD, "all_gather", whole, rows.dp_shard)]


def reduce_gradients(job: Job, rows: Skeletons, params: Floats) -> list[Collective]:
    """Return the reduce-scatter that ZeRO-2 and 3 do after every micro-batch."""
    whole = np.where(rows.zero >= 2, params * state_bytes(job.spec).reduced, 0.0)
    return [Collective(DP_SHARD, "reduce_scatter", whole, rows.dp_shard)]


def step_end(job: Job, rows: Skeletons, params: Floats) -> list[Collective]:
    """Return what data parallelism does once per step (Rajbhandari et al. 2019, 7).

    ZeRO-0 all-reduces gradients; ZeRO-1 reduce-scatters them and gathers weights;
    ZeRO-2 has reduced them already; ZeRO-3 has no weights to gather. Replicas of a
    shard all-reduce what it holds.
    """
    state, shard = state_bytes(job.spec), rows.dp_shard
    reduced = np.where(rows.zero == 1, params * state.reduced, 0.0)
    gathers = (rows.zero == 1) | (rows.zero == 2)
    gathered = np.where(gathers, params * state.gathered, 0.0)
    held = np.where(rows.dp_replicate > 1, params * state.reduced / shard, 0.0)
    return [
        Collective(DP_SHARD, "reduce_scatter", reduced, shard),
        Collective(DP_SHARD, "all_gather", gathered, shard),
        Collective(DP_REPLICATE, "all_reduce", held, rows.dp_replicate),
    ]


def tied_tables(job: Job, rows: Skeletons) -> list[Collective]:
    """Return the sum over the two copies of a tied table at the ends of a pipeline."""
    model, state = job.spec.model, state_bytes(job.spec)
    has_copies = (rows.pp > 1) & np.bool_(model.tied_embeddings)
    held = table_params(model, rows.tp) * state.reduced
    whole = np.where(has_copies, held, 0.0)
    return [Collective(PP, "all_reduce", whole, np.full(len(rows), 2))]
