"""What a plan puts on every link, per step and direction."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np

from meshwright.cost import traffic
from meshwright.cost.arrays import Floats, Ints
from meshwright.cost.blocks import DENSE_LAYER, EMBEDDING, HEAD, LAYER, blocks
from meshwright.cost.price import Prices, Split
from meshwright.cost.schedule import sends
from meshwright.cost.traffic import Collective
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
    rows, counts = prices.rows, block_counts(job, split)
    job, m = job.at(PRECISIONS[rows.precision[0]]), int(rows.microbatches[0])
    onward, back = sends(len(split.layers), int(rows.vpp[0]))
    sent, gathered = traffic.pipeline_send(job, rows)
    result = m * np.maximum(onward, back)[:, None] * _passed([sent])
    # What either neighbour sends is gathered the same way round.
    result = result + m * (onward + back)[:, None] * _passed([gathered])
    for name, block in blocks(job, rows).items():
        each = _passed(_all(block.forward, block.backward))
        passed = m * each + _passed(block.end)
        result = result + counts[name][:, None] * passed
        if name == LAYER:
            again = recomputed_layers(rows, split)[:, None]
            result = result + m * again * _passed(_all(block.recompute))
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


def block_counts(job: Job, split: Split) -> dict[str, Ints]:
    """Return how many of each block of a model every stage holds, (stages,)."""
    index = np.arange(len(split.layers))
    leading = job.spec.model.first_dense_layers * (index == 0)
    return {
        LAYER: split.layers - leading,
        DENSE_LAYER: leading,
        EMBEDDING: 1 * (index == 0),
        HEAD: 1 * (index == len(index) - 1),
    }


def recomputed_layers(rows: Skeletons, split: Split) -> Ints:
    """Return how many layers of every stage have all of their forward again."""
    return np.where(rows.recompute[0] == FULL, split.recomputed, 0)


def _all(*passes: dict[str, list[Collective]]) -> Iterable[Collective]:
    return chain.from_iterable(chain(*(own.values() for own in passes)))


def _passed(operations: Iterable[Collective]) -> Floats:
    """Return the bytes passed on, by group."""
    result = np.zeros(len(GROUPS))
    for operation in operations:
        result[operation.group] += operation.ring_bytes[0]
    return result
