"""The load of every link under a plan, per step and direction."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np

from meshwright.cost import traffic
from meshwright.cost.blocks import DENSE_LAYER, EMBEDDING, HEAD, MTP_LAYER
from meshwright.cost.job import Job
from meshwright.cost.layer_kinds import blocks_of_kinds, jobs_of_kinds, layer_name
from meshwright.cost.price import per_row, stage_ends, stage_sends
from meshwright.cost.traffic import Collective
from meshwright.frameworks.base.registry import leading_columns
from meshwright.plans.columns import Floats, Ints
from meshwright.plans.skeletons import Skeletons, Split, dealt
from meshwright.spec.gpu import PRECISIONS
from meshwright.spec.plan_fields import SELECTIVE
from meshwright.topology.fabric import Place
from meshwright.topology.groups import GROUPS, group_loads


def group_bytes(job: Job, rows: Skeletons, split: Split) -> Floats:
    """Return the bytes per step that a GPU passes on, (rows, stages, groups).

    All rows have the same pp; their split is (rows, stages). Bytes are per
    direction: a pipeline stage sends activations one way and gradients the other.
    """
    result = np.zeros((*split.layers.shape, len(GROUPS)))
    for code in np.unique(rows.precision).tolist():
        index = np.flatnonzero(rows.precision == code)
        part = Split(split.layers[index], split.recomputed[index])
        in_precision = job.at(PRECISIONS[code])
        result[index] = _group_bytes(in_precision, rows.take(index), part)
    return result


def _group_bytes(job: Job, rows: Skeletons, split: Split) -> Floats:
    """Return the same for rows in the precision of the job."""
    counts, m = block_counts(job, rows, split), rows.microbatches[:, None]
    repeated = recompute_counts(job, rows, split)
    onward, back = stage_sends(rows, split)
    sent, gathered = (
        _passed(rows, [operation]) for operation in traffic.pipeline_send(job, rows)
    )
    result = _on_stages(np.maximum(onward, back), m * sent)
    # Sends from either neighbour are gathered in the same direction.
    result = result + _on_stages(onward + back, m * gathered)
    for name, block in blocks_of_kinds(job, rows).items():
        passes = [block.forward] * job.spec.training.forwards + [block.backward]
        microbatch = _passed(rows, _all(*passes))
        passed = m * microbatch + _passed(rows, block.end)
        result = result + _on_stages(counts[name], passed)
        if name in repeated:
            passed = m * _passed(rows, _all(block.recompute(rows)))
            result = result + _on_stages(repeated[name], passed)
    return result


def _on_stages(counts: Ints | Floats, passed: Floats) -> Floats:
    """Return (rows, stages) counts times (rows, groups) bytes."""
    return np.asarray(counts[..., None] * passed[:, None])


def link_seconds(job: Job, rows: Skeletons, split: Split, place: Place) -> Floats:
    """Return the seconds that each group keeps each link busy, (stages, groups, links).

    Links have their rated bandwidth, and all groups of one axis are active at once.
    There is one row; its split is (stages,).
    """
    one = Split(split.layers[None], split.recomputed[None])
    loads = link_loads(job, rows, place)
    return np.asarray(group_bytes(job, rows, one)[0][:, :, None] * loads[None])


def busy_seconds(job: Job, rows: Skeletons, split: Split, place: Place) -> Floats:
    """Return the seconds per step that links are busy, (rows, stages, links).

    All rows are on one mesh; their split is (rows, stages).
    """
    return np.asarray(group_bytes(job, rows, split) @ link_loads(job, rows, place))


def link_loads(job: Job, rows: Skeletons, place: Place) -> Floats:
    """Return seconds per byte of each group on each link, (groups, links).

    All rows are on one mesh.
    """
    fabric = job.fabric.placed(place.order)
    return group_loads(fabric, place.mesh, int(rows.expert_key[0]))


def block_counts(job: Job, rows: Skeletons, split: Split) -> dict[str, Ints | Floats]:
    """Return the number of each block that a stage holds, in the shape of the split.

    Beyond what leads, stages hold the pattern of kinds of layers some whole times; of
    other splits each layer counts as a share of the pattern.
    """
    index = np.arange(split.layers.shape[-1])
    first, last = stage_ends(rows, split)
    model, kinds = job.spec.model, jobs_of_kinds(job)
    ahead = (model.leading_layers if model.pattern else 0) * (index == 0)
    is_one = model.order.period == 1
    beyond = split.layers - ahead
    patterns = beyond if is_one else beyond / model.order.period
    lead = leading_columns(job.spec, rows)
    parts, most = (per_row(column, split.layers) for column in lead.values())
    dense = dealt(parts, most, index) * (not model.pattern)
    layers = {
        layer_name(kind): kind.per_pattern * patterns + kind.leading * (index == 0)
        for kind in kinds
    }
    layers[layer_name(kinds[0])] = layers[layer_name(kinds[0])] - dense
    return {
        **layers,
        DENSE_LAYER: dense,
        EMBEDDING: 1 * first,
        MTP_LAYER: model.mtp_layers * last,
        HEAD: 1 * last,
    }


def recompute_counts(job: Job, rows: Skeletons, split: Split) -> dict[str, Floats]:
    """Return the number of each block that a stage repeats, in the shape of the split.

    Recomputed layers count as repeated ones, spread over the pattern of kinds. Beside
    them, leading dense layers repeat their MLP wherever `mlp` is recomputed
    selectively, and layers that predict further tokens what a recomputed layer does.
    """
    is_selective = per_row(rows.recompute == SELECTIVE, split.layers)
    is_repeated = is_selective | per_row(rows.repeats_layers, split.layers)
    counts = block_counts(job, rows, split)
    return {
        **{
            layer_name(kind): kind.share * split.recomputed
            for kind in jobs_of_kinds(job)
        },
        DENSE_LAYER: np.where(is_selective, counts[DENSE_LAYER], 0.0),
        MTP_LAYER: np.where(is_repeated, counts[MTP_LAYER], 0.0),
    }


def _all(*passes: dict[str, list[Collective]]) -> Iterable[Collective]:
    return chain.from_iterable(chain(*(parts.values() for parts in passes)))


def _passed(rows: Skeletons, operations: Iterable[Collective]) -> Floats:
    """Return the bytes that a GPU passes on in operations, (rows, groups)."""
    result = np.zeros((len(rows), len(GROUPS)))
    for operation in operations:
        result[:, operation.group] += operation.ring_bytes
    return result
