"""What a plan puts on every link, per step and direction."""

from __future__ import annotations

import numpy as np

from meshwright.cost import traffic
from meshwright.cost.arrays import Floats
from meshwright.cost.price import Prices, Split
from meshwright.cost.traffic import Collective
from meshwright.cost.weights import (
    Weights,
    dense_layer_weights,
    embedding_weights,
    head_weights,
    layer_weights,
)
from meshwright.job import Job
from meshwright.skeleton import FULL, Skeletons
from meshwright.spec.gpu import PRECISIONS
from meshwright.topology.groups import GROUPS, group_loads
from meshwright.topology.paths import Place


def group_bytes(job: Job, prices: Prices, split: Split) -> Floats:
    """Return bytes per step that a GPU passes on in each group, (stages, groups).

    `prices` has one row. Bytes are per direction: a pipeline stage sends activations
    one way and gradients the other.
    """
    rows = prices.rows
    job, m = job.at(PRECISIONS[rows.precision[0]]), int(rows.microbatches[0])
    layers, recomputed = split.layers[:, None], split.recomputed[:, None]
    own = layer_weights(job, rows)
    each = _passed(_per_layer(job, rows, own))
    again = _passed(_forward(job, rows)) * float(rows.recompute[0] == FULL)
    once = _passed(traffic.step_end(job, rows, own))
    result: Floats = m * (layers * each + recomputed * again) + layers * once
    result[0] += _end_bytes(job, rows, embedding_weights(job, rows), m)
    result[0] += _leading_bytes(job, rows, each, once, m)
    result[-1] += _end_bytes(job, rows, head_weights(job, rows), m)
    if rows.pp[0] > 1:
        result += m * rows.vpp[0] * _passed(traffic.pipeline_send(job, rows))
    return result


def link_seconds(job: Job, prices: Prices, split: Split, place: Place) -> Floats:
    """Return how long links carry traffic per step, (stages, groups, links).

    At the links' rated bandwidth, every group of a kind at once; `prices` has
    one row.
    """
    fabric = job.fabric.placed(place.order)
    loads = group_loads(fabric, place.mesh, int(prices.rows.ep[0]))
    result: Floats = group_bytes(job, prices, split)[:, :, None] * loads[None]
    return result


def _per_layer(job: Job, rows: Skeletons, held: list[Weights]) -> list[Collective]:
    """Return the collectives of one layer and micro-batch, forward and backward."""
    return [
        *_forward(job, rows),
        *traffic.tensor_parallel(job, rows, traffic.reductions(job.spec.model)),
        *traffic.expert_exchange(job, rows, 2),
        *traffic.context_parallel(job, rows, True),
        *_zero(job, rows, held),
    ]


def _forward(job: Job, rows: Skeletons) -> list[Collective]:
    """Return what the forward of one layer passes on, beside weights."""
    return [
        *traffic.tensor_parallel(job, rows, traffic.reductions(job.spec.model)),
        *traffic.expert_exchange(job, rows, 2),
        *traffic.context_parallel(job, rows, False),
    ]


def _zero(job: Job, rows: Skeletons, held: list[Weights]) -> list[Collective]:
    """Return what ZeRO passes on per micro-batch, forward and backward."""
    gathers = traffic.gather_weights(job, rows, held)
    return [*2 * gathers, *traffic.reduce_gradients(job, rows, held)]


def _leading_bytes(
    job: Job, rows: Skeletons, each: Floats, once: Floats, microbatches: int
) -> Floats:
    """Return what leading dense layers pass on more than as many repeated ones."""
    count = job.spec.model.first_dense_layers
    if not count:
        return np.zeros(len(GROUPS))
    held = dense_layer_weights(job, rows)
    ours = _passed(
        [
            *traffic.tensor_parallel(job, rows, 4),
            *traffic.context_parallel(job, rows, False),
            *traffic.context_parallel(job, rows, True),
            *_zero(job, rows, held),
        ]
    )
    ours_once = _passed(traffic.step_end(job, rows, held))
    more: Floats = microbatches * (ours - each) + ours_once - once
    return count * more


def _end_bytes(
    job: Job, rows: Skeletons, held: list[Weights], microbatches: int
) -> Floats:
    """Return the bytes per group of the embedding or the head."""
    each = [*traffic.tensor_parallel(job, rows, 1), *_zero(job, rows, held)]
    once = [*traffic.step_end(job, rows, held), *traffic.tied_tables(job, rows)]
    return microbatches * _passed(each) + _passed(once)


def _passed(operations: list[Collective]) -> Floats:
    """Return the bytes passed on, by group."""
    result = np.zeros(len(GROUPS))
    for operation in operations:
        result[operation.group] += operation.ring_bytes[0]
    return result
