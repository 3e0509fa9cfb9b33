"""The parameters that one GPU holds, and the groups that shard and replicate them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.cost.adapters import adapter_params
from meshwright.cost.job import Job
from meshwright.cost.parameters_and_flops import (
    dense_layer_params,
    embedding_params,
    expert_params,
    head_params,
    layer_params,
    matrix_params,
)
from meshwright.cost.state import (
    end_state,
    has_muon,
    layer_state,
    matrix_state,
    state_bytes,
)
from meshwright.frameworks.base.framework import StateBytes
from meshwright.plans.columns import Floats, Ints
from meshwright.plans.skeletons import Sharding, Skeletons
from meshwright.topology.groups import (
    DP_REPLICATE,
    EXPERT_REPLICATE,
)


@dataclass(frozen=True)
class Weights:
    """Parameters on one GPU before ZeRO, and their groups, one row per skeleton."""

    params: Floats
    sharding: Sharding
    replicas: Ints
    """Members of the group that holds replicas."""
    replica_group: int
    """Column of that group in `PathCosts`."""
    state: StateBytes
    """State of each of the parameters."""
    is_adapter: bool = False


def layer_weights(job: Job, rows: Skeletons) -> list[Weights]:
    """Return the weights of one layer: those of experts and adapters separately."""
    model, is_dense = job.spec.model, job.spec.model.moe is None
    weights = _matrices_and_vectors(job, rows, layer_params(model, rows.tp), is_dense)
    if model.moe:
        params, state = expert_params(model, rows.ep), matrix_state(job.spec)
        weights.append(_experts(rows, params, state))
    return weights + _adapters(job, rows, is_dense)


def dense_layer_weights(job: Job, rows: Skeletons) -> list[Weights]:
    """Return the weights of a leading layer without experts."""
    params = dense_layer_params(job.spec.model, rows.tp)
    weights = _matrices_and_vectors(job, rows, params, is_dense=True)
    return weights + _adapters(job, rows, is_dense=True)


def _matrices_and_vectors(
    job: Job, rows: Skeletons, params: Floats, is_dense: bool
) -> list[Weights]:
    """Return the weights of a layer, norms and biases apart if they differ in state."""
    spec = job.spec
    if not has_muon(spec):
        return [_common(rows, params, layer_state(spec))]
    matrices = matrix_params(spec.model, rows.tp, is_dense)
    return [
        _common(rows, matrices, matrix_state(spec)),
        _common(rows, params - matrices, layer_state(spec)),
    ]


def embedding_weights(job: Job, rows: Skeletons) -> list[Weights]:
    """Return the weights before the first layer."""
    params = embedding_params(job.spec.model, rows.tp)
    return [_common(rows, params, end_state(job.spec))]


def head_weights(job: Job, rows: Skeletons) -> list[Weights]:
    """Return the weights after the last layer."""
    params = head_params(job.spec.model, rows.tp, rows.pp)
    return [_common(rows, params, end_state(job.spec))]


def by_state(held: list[Weights]) -> list[tuple[StateBytes, list[Weights]]]:
    """Return weights in groups of those that have the same state."""
    states = dict.fromkeys(block.state for block in held)
    return [(state, [own for own in held if own.state == state]) for state in states]


def _adapters(job: Job, rows: Skeletons, is_dense: bool) -> list[Weights]:
    """Return the adapters of a layer, which are trained, if it has any."""
    if job.spec.training.lora is None:
        return []
    params = adapter_params(job.spec, rows.tp, is_dense)
    own = _common(rows, params, state_bytes(job.spec))
    return [replace(own, is_adapter=True)]


def _common(rows: Skeletons, params: Floats, state: StateBytes) -> Weights:
    return Weights(params, rows.sharding, rows.dp_replicate, DP_REPLICATE, state)


def _experts(rows: Skeletons, params: Floats, state: StateBytes) -> Weights:
    sharding = rows.expert_sharding
    replicas = rows.expert_copies // sharding.members
    return Weights(params, sharding, replicas, EXPERT_REPLICATE, state)
