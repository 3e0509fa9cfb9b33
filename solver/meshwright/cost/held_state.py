"""Held state: weights, gradients, optimizer of a layer and of the ends of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from meshwright.cost import offload
from meshwright.cost.job import Job
from meshwright.cost.parameters_and_flops import (
    dense_mlp_params,
    mtp_projection_params,
    one_expert_params,
    table_params,
)
from meshwright.cost.state import (
    fp8_weight_bytes,
    keeps_whole_weights,
    layer_state,
    sharded_bytes,
    sums_whole_gradients,
    trains_ends,
    update_bytes,
)
from meshwright.cost.weights import (
    Weights,
    by_state,
    dense_layer_weights,
    dequantised_bytes,
    embedding_weights,
    head_weights,
    layer_weights,
    mtp_weights,
    reference_weights,
)
from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.columns import Columns, Floats, Parts, added, scaled
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.gpu import ELEMENT_BYTES
from meshwright.spec.plan_fields import GRADIENTS
from meshwright.topology.groups import DP_REPLICATE


@dataclass(frozen=True)
class HeldState(Columns):
    """The state, on the GPU and on the host; it does not depend on micro-batches."""

    layer: Parts
    lead: Parts
    """Difference of a leading dense layer to a repeated one."""
    beside_lead: Parts
    """What a stage with leading dense layers holds beside them."""
    first: Parts
    last: Parts
    in_transit: Floats
    update: Floats
    """Temporaries of the update of the whole model, part of the optimizer's bytes."""
    host_layer: Floats
    host_lead: Floats
    host_first: Floats
    host_last: Floats


def held_state(job: Job, rows: Skeletons) -> HeldState:
    """Return the bytes of state of a layer, and of the ends of the model beside it."""
    distinct, inverse = rows.distinct_in_state()
    return _held(job, distinct).take(inverse)


def _held(job: Job, rows: Skeletons) -> HeldState:
    weights = layer_weights(job, rows)
    embedding, head = embedding_weights(job, rows), head_weights(job, rows)
    whole = _whole_model(job, rows, weights, [*embedding, *head])
    at_once = _updated_at_once(job, rows, whole)
    layer = _layer_state(job, rows, weights, at_once)
    further = _further(job, rows, at_once)
    host_layer = _on_host(job, rows, weights)
    has_lead = job.spec.model.first_dense_layers > 0
    return HeldState(
        layer=layer,
        lead=_leading(job, rows, layer, at_once) if has_lead else {},
        beside_lead=leading_gradients(job, rows) if has_lead else {},
        first=added(
            [
                _state(job, rows, embedding, at_once),
                _whole_end(job, rows, embedding),
            ]
        ),
        last=added(
            [
                _state(job, rows, head, at_once),
                head_gradients(job, rows),
                _whole_end(job, rows, head),
                further.state,
            ]
        ),
        in_transit=_in_transit(job, rows, weights),
        update=_update(job, rows, whole) * at_once,
        host_layer=host_layer,
        host_lead=_leading_host(job, rows, host_layer),
        host_first=_on_host(job, rows, embedding),
        host_last=_on_host(job, rows, head) + further.on_host,
    )


class _Further(NamedTuple):
    """What all layers that predict further tokens hold."""

    state: Parts
    on_host: Floats


def _further(job: Job, rows: Skeletons, at_once: Floats) -> _Further:
    """Return their bytes, with a buffer for gradients in the shape of their matrix."""
    count, model = job.spec.model.mtp_layers, job.spec.model
    if not count:
        return _Further({}, np.zeros(len(rows)))
    held = mtp_weights(job, rows)
    buffer = _bytes(job, mtp_projection_params(model) / rows.tp)
    state = scaled(_layer_state(job, rows, held, at_once), count)
    on_host = count * _on_host(job, rows, held)
    return _Further(added([state, {"workspace": buffer}]), on_host)


def _whole_end(job: Job, rows: Skeletons, held: list[Weights]) -> Parts:
    """Return the gathered weights of an end of the model, where ZeRO-3 keeps them.

    Layers are units of PyTorch's FSDP, and what is left belongs to its root, which is
    not resharded after the forward (distributed/fsdp/_fully_shard/_fsdp_state.py:
    `_lazy_init`).
    """
    if not framework_of(job.spec).keeps_whole_ends:
        return {}
    held = [*held, *reference_weights(job, held)]
    size = sum(block.params * block.state.gathered for block in held)
    return {"workspace": np.where(rows.sharding.shards_weights, size, 0.0)}


def _state(job: Job, rows: Skeletons, held: list[Weights], at_once: Floats) -> Parts:
    """Return the bytes of weights, gradients and optimizer state on the GPU.

    A frozen copy of the weights is among them, where a reference runs beside these.
    """
    held = [*held, *reference_weights(job, held)]
    has_cast, parts = framework_of(job.spec).has_cast_weights, []
    is_whole = sums_whole_gradients(job.spec, rows)
    keeps_weights = keeps_whole_weights(job.spec, rows)
    for block in held:
        state, shards = block.state, block.sharding
        weights, gradients, optimizer = sharded_bytes(state, shards)
        optimizer = optimizer - (1 - at_once) * update_bytes(state, shards)
        if has_cast and state.gathered < state.weights:
            # fp32 parameters are sharded like gradients; the cast copy only by ZeRO-3.
            cast = np.where(shards.shards_weights & ~keeps_weights, 0.0, state.gathered)
            weights = state.weights / shards.gradients + cast
        gradients = np.where(is_whole, state.reduced, gradients)
        parts.append(
            {
                "weights": block.params * weights,
                "gradients": block.params * gradients,
                "optimizer": block.params * optimizer,
            }
        )
    return offload.kept_state(job, rows, held, added(parts))


def _whole_model(
    job: Job, rows: Skeletons, layer: list[Weights], ends: list[Weights]
) -> list[Weights]:
    """Return the weights of the whole model on a GPU without a pipeline."""
    model = job.spec.model
    kinds = [(model.n_layers - model.first_dense_layers, layer), (1, ends)]
    if model.first_dense_layers:
        kinds.append((model.first_dense_layers, dense_layer_weights(job, rows)))
    if model.mtp_layers:
        kinds.append((model.mtp_layers, mtp_weights(job, rows)))
    return [
        replace(block, params=count * block.params)
        for count, held in kinds
        for block in held
    ]


def _updated_at_once(job: Job, rows: Skeletons, whole: list[Weights]) -> Floats:
    """Return the share of a GPU's parameters that an update takes at a time."""
    most = framework_of(job.spec).updated_params
    if math.isinf(most):
        return np.ones(len(rows))
    trained = np.zeros(len(rows))
    for block in whole:
        if not block.state.is_frozen:
            trained = trained + block.params / block.sharding.optimizer
    share = np.minimum(1.0, most / np.maximum(trained, 1.0))
    return np.where(rows.sharding.shards_weights, share, 1.0)


def _update(job: Job, rows: Skeletons, whole: list[Weights]) -> Floats:
    """Return the temporaries of an update of all that a GPU has, where they stay."""
    total = np.zeros(len(rows))
    for block in whole:
        total = total + block.params * update_bytes(block.state, block.sharding)
    state = {"gradients": 0 * total, "optimizer": total, "weights": 0 * total}
    return offload.kept_state(job, rows, [], state)["optimizer"]


def _layer_state(
    job: Job, rows: Skeletons, held: list[Weights], at_once: Floats
) -> Parts:
    """Return the same for a layer, with the fp8 copies that stay on the GPU."""
    stays = ~rows.sharding.shards_weights & ~offload.streams_weights(rows)
    copies = np.where(stays, fp8_weight_bytes(job.spec), 0)
    cast = sum(block.params for block in held if not block.is_adapter) * copies
    return added([_state(job, rows, held, at_once), {"weights": cast}])


def _leading(job: Job, rows: Skeletons, layer: Parts, at_once: Floats) -> Parts:
    """Return the difference in state of a leading dense layer to a repeated one."""
    dense = _layer_state(job, rows, dense_layer_weights(job, rows), at_once)
    return added([dense, scaled(layer, -1)])


def _leading_host(job: Job, rows: Skeletons, repeated: Floats) -> Floats:
    """Return the difference in bytes on the host to repeated layers."""
    if not job.spec.model.first_dense_layers:
        return np.zeros(len(rows))
    return _on_host(job, rows, dense_layer_weights(job, rows)) - repeated


def _on_host(job: Job, rows: Skeletons, held: list[Weights]) -> Floats:
    """Return the bytes of these, and of their frozen copy, on the host of a GPU."""
    return offload.host_bytes(job, rows, [*held, *reference_weights(job, held)])


def _in_transit(job: Job, rows: Skeletons, held: list[Weights]) -> Floats:
    """Return the bytes of gathered weights, and of gradients of one layer.

    ZeRO-3 holds the weights of one layer and those prefetched. From ZeRO-2 on the
    gradients of one layer wait to be reduced; PyTorch's FSDP keeps what a layer passes
    on, in the precision of the reduction, beside the gradients of the next one
    (distributed/fsdp/_fully_shard/_fsdp_param_group.py, `reduce_scatter_state`). The
    same holds for state on the host. Of quantised weights one matrix at a time is there
    in 16 bits, too.
    """
    framework = framework_of(job.spec)
    visits = rows.sharding.shards_weights | offload.streams_weights(rows)
    visits = visits & ~keeps_whole_weights(job.spec, rows)
    passes = rows.sharding.shards_gradients | (rows.offload >= GRADIENTS)
    element = ELEMENT_BYTES[job.spec.training.precision]
    result = dequantised_bytes(job.spec, rows.tp)
    result = result + np.where(passes, 0.0, layer_gradients(job, rows, held))
    for state, blocks in by_state(held):
        params = sum(block.params for block in blocks)
        ahead = np.minimum(params, framework.prefetched_params)
        gathered = np.where(visits, (params + ahead) * state.gathered, 0.0)
        is_cast = framework.has_cast_weights and not state.is_frozen
        waiting = element + state.reduced if is_cast else state.gradients
        result = result + gathered + np.where(passes, params * waiting, 0.0)
    return result


def _bytes(job: Job, params: Floats) -> Floats:
    has_buffers = framework_of(job.spec).has_gradient_buffers
    return params * (has_buffers * ELEMENT_BYTES[job.spec.training.precision])


def layer_gradients(job: Job, rows: Skeletons, held: list[Weights]) -> Floats:
    """Return the bytes for the shapes of a layer, given its weights."""
    moe = job.spec.model.moe
    trained = [part for part in held if not part.state.is_frozen]
    shared = [part for part in trained if part.replica_group == DP_REPLICATE]
    params = sum((part.params for part in shared), np.zeros(len(rows)))
    if moe is None or len(shared) == len(trained):
        return _bytes(job, params)
    is_shared = (rows.tp == 1) & np.bool_(moe.shared_d_ff == moe.d_ff)
    expert = one_expert_params(job.spec.model) / rows.etp
    return _bytes(job, params + np.where(is_shared, 0, expert))


def leading_gradients(job: Job, rows: Skeletons) -> Parts:
    """Return the bytes for the MLP of leading dense layers."""
    is_trained = not layer_state(job.spec).is_frozen
    params = is_trained * dense_mlp_params(job.spec.model, rows.tp)
    return {"workspace": _bytes(job, params)}


def head_gradients(job: Job, rows: Skeletons) -> Parts:
    """Return the bytes for the head."""
    params = trains_ends(job.spec) * table_params(job.spec.model, rows.tp)
    return {"workspace": _bytes(job, params)}
