"""Gradients in the compute precision that all weights of a shape share.

See `Framework.has_gradient_buffers`. Experts of a layer have one shape, so that one of
them counts; shared experts of the same width have it too.
"""

from __future__ import annotations

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.parameters_and_flops import (
    dense_mlp_params,
    one_expert_params,
    table_params,
)
from meshwright.cost.state import end_state, layer_state
from meshwright.cost.weights import Weights
from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.columns import Floats, Parts
from meshwright.plans.precision import ELEMENT_BYTES
from meshwright.plans.skeletons import Skeletons
from meshwright.topology.groups import DP_REPLICATE


def _bytes(job: Job, params: Floats) -> Floats:
    has_buffers = framework_of(job.spec).has_gradient_buffers
    return params * (has_buffers * ELEMENT_BYTES[job.spec.training.precision])


def layer_gradients(job: Job, rows: Skeletons, held: list[Weights]) -> Floats:
    """Return the bytes for the shapes of a layer, given its weights."""
    moe, trained = job.spec.model.moe, [o for o in held if not o.state.is_frozen]
    params = sum(own.params for own in trained if own.replica_group == DP_REPLICATE)
    if moe is None or all(own.replica_group == DP_REPLICATE for own in trained):
        return _bytes(job, params + np.zeros(len(rows)))
    is_shared = (rows.tp == 1) & np.bool_(moe.shared_d_ff == moe.d_ff)
    expert = one_expert_params(job.spec.model)
    return _bytes(job, params + np.where(is_shared, 0, expert))


def leading_gradients(job: Job, rows: Skeletons) -> Parts:
    """Return the bytes for the MLP of leading dense layers."""
    is_trained = not layer_state(job.spec).is_frozen
    params = is_trained * dense_mlp_params(job.spec.model, rows.tp)
    return {"workspace": _bytes(job, params)}


def head_gradients(job: Job, rows: Skeletons) -> Parts:
    """Return the bytes for the head."""
    is_trained = not end_state(job.spec).is_frozen
    params = is_trained * table_params(job.spec.model, rows.tp)
    return {"workspace": _bytes(job, params)}
