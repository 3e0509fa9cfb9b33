"""The parameters that one GPU holds, and the groups that shard and replicate them."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.cost.job import Job
from meshwright.cost.parameters_and_flops import (
    dense_layer_params,
    embedding_params,
    expert_params,
    head_params,
    layer_params,
)
from meshwright.plans.columns import Floats, Ints
from meshwright.plans.sharding import Sharding
from meshwright.plans.skeletons import Skeletons
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


def layer_weights(job: Job, rows: Skeletons) -> list[Weights]:
    """Return the weights of one layer, those of its experts separately."""
    weights = [_common(rows, layer_params(job.spec.model, rows.tp))]
    if job.spec.model.moe:
        weights.append(_experts(rows, expert_params(job.spec.model, rows.ep)))
    return weights


def dense_layer_weights(job: Job, rows: Skeletons) -> list[Weights]:
    """Return the weights of a leading layer without experts."""
    return [_common(rows, dense_layer_params(job.spec.model, rows.tp))]


def embedding_weights(job: Job, rows: Skeletons) -> list[Weights]:
    """Return the weights before the first layer."""
    return [_common(rows, embedding_params(job.spec.model, rows.tp))]


def head_weights(job: Job, rows: Skeletons) -> list[Weights]:
    """Return the weights after the last layer."""
    return [_common(rows, head_params(job.spec.model, rows.tp, rows.pp))]


def _common(rows: Skeletons, params: Floats) -> Weights:
    return Weights(params, rows.sharding, rows.dp_replicate, DP_REPLICATE)


def _experts(rows: Skeletons, params: Floats) -> Weights:
    sharding = rows.expert_sharding
    replicas = rows.expert_copies // sharding.members
    return Weights(params, sharding, replicas, EXPERT_REPLICATE)
