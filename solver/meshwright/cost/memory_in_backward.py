"""Memory that the backward needs beside what is held: recomputed, or in transit."""

from __future__ import annotations

import numpy as np

from meshwright.cost import offload
from meshwright.cost.adapters import dequantised_bytes
from meshwright.cost.gradient_buffers import layer_gradients
from meshwright.cost.job import Job
from meshwright.cost.parameters_and_flops import mlp_inputs
from meshwright.cost.state import sums_whole_gradients
from meshwright.cost.weights import Weights, by_state
from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.columns import Floats
from meshwright.plans.precision import ELEMENT_BYTES
from meshwright.plans.skeletons import GRADIENTS, Skeletons


def bytes_at_work(job: Job, rows: Skeletons, freed: Floats) -> Floats:
    """Return the bytes of recomputed layers and of gradients in the backward."""
    spec, model = job.spec, job.spec.model
    tokens = rows.shards.tokens(spec.training.seq_len)
    inner = mlp_inputs(model) * model.d_ff
    if model.mixer == "state_space" and model.state_space is not None:
        inner = max(inner, model.state_space.input_width)
    widest = model.d_model + inner / rows.tp
    return freed + tokens * widest * ELEMENT_BYTES[spec.training.precision]


def bytes_in_transit(job: Job, rows: Skeletons, held: list[Weights]) -> Floats:
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
    visits = visits & ~sums_whole_gradients(job.spec, rows)
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
