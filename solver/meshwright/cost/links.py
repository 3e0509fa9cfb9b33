"""What a plan puts on every link, per step and direction."""

from __future__ import annotations

import numpy as np

from meshwright.cost import traffic
from meshwright.cost.arrays import Floats
from meshwright.cost.price import Prices, Split
from meshwright.cost.traffic import Collective
from meshwright.cost.transformer import embedding_params, head_params, layer_params
from meshwright.job import Job
from meshwright.skeleton import FULL
from meshwright.spec.pins import AXES
from meshwright.topology.paths import Meshes


def axis_bytes(job: Job, prices: Prices, split: Split) -> Floats:
    """Return bytes per step that a GPU passes on for each axis, (stages, axes).

    `prices` has one row. Bytes are per direction: a pipeline stage sends activations
    one way and gradients the other.
    """
    rows = prices.rows
    stages = len(split.layers)
    m = int(rows.microbatches[0])
    per_layer = _passed(_per_layer(job, prices))
    again = _passed(traffic.tensor_parallel(job, rows, 2))
    is_full = float(rows.recompute[0] == FULL)
    recomputed = is_full * split.recomputed[:, None] * again
    result = m * (split.layers[:, None] * per_layer + recomputed)
    params = layer_params(job.spec.model, rows.tp)
    result = result + split.layers[:, None] * _passed(
        traffic.step_end(job, rows, params)
    )
    embedding = embedding_params(job.spec.model, rows.tp)
    head = head_params(job.spec.model, rows.tp, rows.pp)
    result[0] += _end_bytes(job, prices, embedding, m)
    result[-1] += _end_bytes(job, prices, head, m)
    if stages > 1:
        result += m * _passed(traffic.pipeline_send(job, rows))
    return result


def link_seconds(job: Job, prices: Prices, split: Split, mesh: Meshes) -> Floats:
    """Return how long links carry traffic per step, (stages, axes, links).

    At the links' rated bandwidth, every group of an axis at once; `mesh` is (axes,
    levels) and `prices` has one row.
    """
    loads = job.fabric.loads(mesh[None])[0]
    result: Floats = axis_bytes(job, prices, split)[:, :, None] * loads[None]
    return result


def _per_layer(job: Job, prices: Prices) -> list[Collective]:
    """Return the collectives of one layer and micro-batch, forward and backward."""
    rows = prices.rows
    params = layer_params(job.spec.model, rows.tp)
    return [
        *traffic.tensor_parallel(job, rows, 4),
        *2 * traffic.gather_weights(job, rows, params),
        *traffic.reduce_gradients(job, rows, params),
    ]


def _end_bytes(job: Job, prices: Prices, params: Floats, microbatches: int) -> Floats:
    """Return the bytes per axis of the embedding or the head."""
    rows = prices.rows
    each = [
        *traffic.tensor_parallel(job, rows, 1),
        *2 * traffic.gather_weights(job, rows, params),
        *traffic.reduce_gradients(job, rows, params),
    ]
    once = [*traffic.step_end(job, rows, params), *traffic.tied_tables(job, rows)]
    return microbatches * _passed(each) + _passed(once)


def _passed(operations: list[Collective]) -> Floats:
    """Return the bytes passed to the ring neighbour, by axis."""
    result = np.zeros(len(AXES))
    for operation in operations:
        result[operation.axis] += operation.ring_bytes[0]
    return result
