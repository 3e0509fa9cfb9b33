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
from meshwright.cost.weights import Weights
from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.columns import Floats, Parts
from meshwright.plans.precision import ELEMENT_BYTES
from meshwright.plans.skeletons import Skeletons


def _bytes(job: Job, params: Floats) -> Floats:
    has_buffers = framework_of(job.spec).has_gradient_buffers
    return params * (has_buffers * ELEMENT_BYTES[job.spec.training.precision])


def layer_gradients(job: Job, rows: Skeletons, common: Weights) -> Floats:
    """Return the bytes for the shapes of a layer, given its weights beside experts."""
    moe, params = job.spec.model.moe, common.params
    if moe is None:
        return _bytes(job, params)
    is_shared = (rows.tp == 1) & np.bool_(moe.shared_d_ff == moe.d_ff)
    expert = one_expert_params(job.spec.model)
    return _bytes(job, params + np.where(is_shared, 0, expert))


def leading_gradients(job: Job, rows: Skeletons) -> Parts:
    """Return the bytes for the MLP of leading dense layers."""
    return {"workspace": _bytes(job, dense_mlp_params(job.spec.model, rows.tp))}


def head_gradients(job: Job, rows: Skeletons) -> Parts:
    """Return the bytes for the head."""
    return {"workspace": _bytes(job, table_params(job.spec.model, rows.tp))}
