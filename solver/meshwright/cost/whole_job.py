"""FLOPs of a step and bytes of the state of a job, all its GPUs together.

A job trains all weights, or with LoRA adapters alone.
"""

from __future__ import annotations

from meshwright.cost.adapters import adapters
from meshwright.cost.parameters_and_flops import ONE, embedding_params, head_params
from meshwright.cost.state import end_state, layer_state, state_bytes
from meshwright.cost.whole_model import matmul_params, step_flops, total_params
from meshwright.spec.model import Model
from meshwright.spec.spec import Spec
from meshwright.spec.training import Lora


def job_flops(spec: Spec) -> float:
    """Return the model FLOPs of one step: no recomputation, causal attention once.

    A frozen weight has 4 FLOPs per token instead of 6, for nothing needs its gradient;
    LoRA's adapters have their 6.
    """
    model, training = spec.model, spec.training
    flops = step_flops(model, training.seq_len, training.global_batch)
    if training.lora is None:
        return flops
    more = 6.0 * trained_params(spec) - 2.0 * matmul_params(model)
    return flops + more * training.seq_len * training.global_batch


def state_size(spec: Spec) -> float:
    """Return the bytes of weights, gradients and optimizer state."""
    trained = trained_params(spec) * state_bytes(spec).total
    return trained if spec.training.lora is None else trained + _frozen_size(spec)


def checkpoint_size(spec: Spec) -> float:
    """Return the bytes of a checkpoint: what is trained, and its optimizer state."""
    state = state_bytes(spec)
    return trained_params(spec) * (state.weights + state.optimizer)


def _frozen_size(spec: Spec) -> float:
    model = spec.model
    at_ends = float((embedding_params(model, ONE) + head_params(model, ONE, ONE))[0])
    layers = (total_params(model) - at_ends) * layer_state(spec).weights
    return layers + at_ends * end_state(spec).weights


def trained_params(spec: Spec) -> int:
    """Return the parameters that are trained: all, or those of LoRA's adapters."""
    model, lora = spec.model, spec.training.lora
    if lora is None:
        return total_params(model)
    leading = model.first_dense_layers
    repeating = _of_layer(model, lora, is_dense=model.moe is None)
    in_lead = leading * _of_layer(model, lora, is_dense=True)
    return in_lead + (model.n_layers - leading) * repeating


def _of_layer(model: Model, lora: Lora, is_dense: bool) -> int:
    found = adapters(model, lora, is_dense)
    return sum(lora.rank * (own.inputs + own.outputs) for own in found)
