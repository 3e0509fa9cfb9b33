"""Bytes of the state of a parameter and of the loss of a logit, for all frameworks.

The state of a parameter in mixed precision is the framework's `mixed_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from meshwright.frameworks.base.framework import LossPeak, StateBytes
from meshwright.frameworks.base.registry import framework_of, fused_of
from meshwright.frameworks.base.shared import is_pure
from meshwright.plans.columns import Bools, Floats
from meshwright.plans.skeletons import Sharding, Shards, Skeletons
from meshwright.spec.gpu import ELEMENT_BYTES, FORMATS
from meshwright.spec.spec import Spec
from meshwright.spec.training import MATRIX_OPTIMIZERS, Optimizer

BLOCK = 256
"""Numbers that share one fp32 scale in bitsandbytes' 8-bit optimizers (Dettmers et al.
2021, arXiv 2110.02861, section 2.1, have blocks of 2,048; release 0.44 has these)."""


ADAMW_BYTES = 8
"""Two fp32 moments of a parameter."""


class Moments(NamedTuple):
    """Bytes per parameter that an optimizer holds beside the weight."""

    usual: Callable[[Spec], float]
    matrices: float | None = None
    """Bytes for the matrices of layers where they differ, in `MATRIX_OPTIMIZERS`."""


MOMENTS: dict[Optimizer, Moments] = {
    # Two moments, in fp32 unless the spec says bf16, or weights are in bf16 alone.
    "adamw": Moments(lambda spec: ADAMW_BYTES / (2 if has_low_moments(spec) else 1)),
    # bitsandbytes: two moments of a byte.
    "adamw-8bit": Moments(lambda _: 2 * (1 + 4 / BLOCK)),
    # The momentum, as the moments of AdamW.
    "sgd": Moments(lambda spec: 2 if has_low_moments(spec) else 4),
    # Without momentum the mean square of every row and of every column in fp32:
    # 4 (r + c) bytes of r x c weights, taken as square ones of the model's width
    # (Shazeer and Stern 2018, section 3).
    "adafactor": Moments(lambda spec: 8 / spec.model.d_model),
    # The fp32 momentum of matrices; AdamW updates all other parameters.
    "muon": Moments(lambda _: ADAMW_BYTES, matrices=4),
}
"""Moments by optimizer."""


def has_low_moments(spec: Spec) -> bool:
    """Return whether moments are in bf16: they have the format of the weights."""
    return spec.training.moments == "bf16" or is_pure(spec.training)


def moment_bytes(spec: Spec) -> float:
    """Return the bytes per parameter that an optimizer holds beside the weight."""
    return MOMENTS[spec.training.optimizer].usual(spec)


NF4_BYTES = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Of a weight in NF4 with double quantisation: 4 bits, an 8-bit scale of every 64
weights, and an fp32 scale of every 256 of these (Dettmers et al. 2023, arXiv
2305.14314, section 3)."""

GPTQ_BYTES = (4 + (16 + 4) / 128) / 8
"""Of a weight as GPTQ keeps it: 4 bits, with a scale in 16 bits and a zero in four of
every 128 weights (AutoGPTQ, `group_size`)."""

FROZEN_BYTES = {
    "bf16": 2.0, "fp32": 4.0, "nf4": NF4_BYTES, "int8": 1.0, "gptq": GPTQ_BYTES
}  # fmt: skip
"""Bytes of a frozen weight. int8 has an fp32 scale of a whole row, which is left out
(Dettmers et al. 2022, arXiv 2208.07339, section 3)."""


FROZEN_FP8_BYTES = 1.0
"""Of a frozen weight in fp8 alone; transposed copies are made for each backward."""


def layer_state(spec: Spec) -> StateBytes:
    """Return the state of one parameter of a layer without its adapters.

    Beside LoRA's adapters it is frozen; norms and biases, which stay in 16 bits, count
    as the matrices do. A flat parameter of PyTorch's first FSDP has a gradient where
    any of its tensors is trained, as large as itself (torch 2.13
    distributed/fsdp/_flat_param.py: `_validate_tensors_to_flatten`).
    """
    lora = spec.training.lora
    if lora is None:
        return state_bytes(spec)
    is_fp8 = _has_primary_fp8(spec)
    frozen = _frozen(FROZEN_FP8_BYTES if is_fp8 else FROZEN_BYTES[lora.weights])
    if not lora.frozen_gradients:
        return frozen
    reduced = state_bytes(spec).reduced
    return replace(frozen, gradients=frozen.weights, reduced=reduced)


def _has_primary_fp8(spec: Spec) -> bool:
    training = spec.training
    return training.precision == "fp8" and training.fp8_weights == "primary"


def reference_state(spec: Spec) -> StateBytes | None:
    """Return the state of a parameter of a frozen copy of the model, if there is one.

    Beside adapters the model without them is the reference.
    """
    kept = spec.training.reference_model
    if kept == "none" or spec.training.lora is not None:
        return None
    return _frozen(FROZEN_BYTES[kept])


def end_state(spec: Spec) -> StateBytes:
    """Return the state of one parameter of embedding or head; none is quantised."""
    lora = spec.training.lora
    if lora is None:
        return state_bytes(spec)
    return _frozen(FROZEN_BYTES["fp32" if lora.upcast else "bf16"])


def trains_ends(spec: Spec) -> bool:
    """Return whether embedding and head have gradients."""
    lora = spec.training.lora
    return lora is None or lora.trains_ends


def end_copy_state(spec: Spec) -> StateBytes:
    """Return the state of a parameter of an end that is trained beside adapters.

    PEFT copies the module as it is loaded, and keeps the frozen one (0.19
    utils/other.py: `ModulesToSaveWrapper`). In 16 bits alone its moments have 16, too.
    """
    lora = spec.training.lora
    if lora is None or lora.ends != "bf16":
        return state_bytes(spec)
    alone = spec.training.model_copy(update={"master_weights": "none"})
    return state_bytes(spec.model_copy(update={"training": alone}))


def has_wide_stream(spec: Spec) -> bool:
    """Return whether operations hand on fp32 numbers between matmuls in 16 bits.

    PEFT's `prepare_model_for_kbit_training` (peft/utils/other.py) casts embedding,
    norms and head to fp32, and autocast casts layer norms (torch 2.13
    aten/src/ATen/autocast_mode.h: `AT_FORALL_FP32`). What follows an fp32 number is
    fp32, since matmuls in four bits return the format of their input (bitsandbytes
    nn/modules.py: `Linear4bit`).
    """
    lora = spec.training.lora
    if lora is None or lora.upcast:
        return lora is not None
    has_cast_norms = lora.adapters == "autocast" and spec.model.norm == "layernorm"
    return has_cast_norms and lora.weights in ("nf4", "int8")


def stream_bytes(spec: Spec) -> int:
    """Return the bytes of a number that one operation hands to the next."""
    return 4 if has_wide_stream(spec) else ELEMENT_BYTES[spec.training.precision]


def _frozen(size: float) -> StateBytes:
    """Return the state of a frozen weight, which is gathered as it is kept.

    FSDP gathers quantised weights, too (bitsandbytes, `quant_storage`), and casts fp32
    ones before.
    """
    gathered = min(size, FROZEN_BYTES["bf16"])
    return StateBytes(size, 0, 0, gathered, 0, is_frozen=True)


def state_bytes(spec: Spec) -> StateBytes:
    """Return the state of a trained parameter in the spec's framework and precision."""
    return _trained(spec, moment_bytes(spec))


def _trained(spec: Spec, moments: float) -> StateBytes:
    """Return the state of a parameter with the bytes of its moments.

    PyTorch's optimizers keep moments in the format of the weights that they update:
    2 + 2 + 4 bytes in pure bf16 (torch/optim/adamw.py: `zeros_like` of the parameter).
    Where fp8 weights stand for those, the optimizer keeps and shards the 16-bit ones:
    1 + 2 + 6 (llm.q b77d969 src/models/llama_weights.cpp).
    Without one kernel for all, an update has one for each of its eight operations, and
    makes the roots of all second moments first (torch/optim/adam.py:
    `_multi_tensor_adam`).
    """
    usual = framework_of(spec).mixed_state(spec.training, moments)
    if not FORMATS[spec.training.precision].is_mixed:
        usual = StateBytes(4, 4, moments, 4, 4)
    elif is_pure(spec.training):
        kept, master = (1, 2) if _has_primary_fp8(spec) else (2, 0)
        usual = StateBytes(kept, 2, master + moments, kept, usual.reduced)
    if not spec.training.foreach:
        return usual
    # Weights are read and written twice, gradients read twice, first moments moved 3
    # times, second ones 5 and their square roots 6.
    trained = usual.optimizer - moments or usual.weights
    again = 2 * trained + usual.gradients + 5 * moments
    # The square roots of all second moments, tensor by tensor.
    return replace(usual, copied=usual.copied + moments / 2, by_operations=again)


def matrix_state(spec: Spec) -> StateBytes:
    """Return the state of one parameter of a layer's matrices."""
    moments = MOMENTS[spec.training.optimizer].matrices
    return layer_state(spec) if moments is None else _trained(spec, moments)


def updates_matrices(spec: Spec) -> bool:
    """Return whether the optimizer updates the matrices of layers whole."""
    return spec.training.optimizer in MATRIX_OPTIMIZERS


def sharded_bytes(
    state: StateBytes, sharding: Sharding
) -> tuple[Floats, Floats, Floats]:
    """Return bytes per parameter of weights, gradients and optimizer under ZeRO."""
    main = _main_gradients(state, sharding)
    weights = state.weights / sharding.weights
    gradients = state.gradients / sharding.gradients + main
    optimizer = state.optimizer / sharding.optimizer + update_bytes(state, sharding)
    return weights, gradients, optimizer


def update_bytes(state: StateBytes, sharding: Sharding) -> Floats:
    """Return the bytes per parameter of an update's temporaries, in `optimizer`."""
    main = _main_gradients(state, sharding)
    return np.where(main > 0, 0.0, state.copied) / sharding.optimizer


def _main_gradients(state: StateBytes, sharding: Sharding) -> Floats:
    return np.where(sharding.shards_gradients, 0.0, state.main_gradients)


def summed_gradients(state: StateBytes, sharding: Sharding) -> Floats:
    """Return the bytes per parameter of the gradients that an update reads."""
    main = _main_gradients(state, sharding)
    return np.where(main > 0, main, state.gradients)


def keeps_whole_weights(spec: Spec, rows: Skeletons) -> Bools:
    """Return where a pipeline keeps gathered weights until the last micro-batch."""
    if not framework_of(spec).shards_gradients_after_pipeline:
        return np.zeros(len(rows), dtype=bool)
    return np.asarray((rows.pp > 1) & rows.sharding.shards_gradients)


def sums_whole_gradients(spec: Spec, rows: Skeletons) -> Bools:
    """Return where gradients are sharded only after the last micro-batch."""
    if spec.training.gradient_sync == "last":
        return rows.sharding.shards_gradients
    return keeps_whole_weights(spec, rows)


FP8_WEIGHT_COPIES = 2
"""As stored, and transposed."""


def fp8_input_bytes(spec: Spec) -> int:
    """Return the bytes of the fp8 copy of a matmul's input, 0 without one."""
    is_fp8, framework = spec.training.precision == "fp8", framework_of(spec)
    return int(is_fp8 and (framework.keeps_fp8_copies or framework.keeps_fp8_inputs))


def fp8_weight_bytes(spec: Spec) -> int:
    """Return the bytes of fp8 copies of a weight of a layer beside its 16 bits, or 0.

    Primary fp8 weights have both copies and no 16 bits, which takes as much as 16 bits
    alone (Transformer Engine, `fp8_model_init`; Megatron-LM's --fp8-param-gather).
    """
    has_copies = spec.training.fp8_weights != "primary"
    has_copies = has_copies and framework_of(spec).keeps_fp8_copies
    return FP8_WEIGHT_COPIES * fp8_input_bytes(spec) if has_copies else 0


FUSED_LOSS_BYTES = 4
"""A fused loss leaves the softmax in fp32."""


def loss_peak(spec: Spec) -> LossPeak:
    """Return the bytes per logit of the loss at its peak, beside the logit itself.

    The spec says them, or whether the loss is fused, else the framework, which may
    compile its loss where it compiles the model.
    """
    said, framework = spec.training.loss_bytes, framework_of(spec)
    if said is None and "loss" in fused_of(spec):
        said = FUSED_LOSS_BYTES
    if said is not None:
        return LossPeak(said, said)
    compiled = framework.compiled_loss if spec.training.compile else None
    return compiled or framework.loss


def loss_chunks(spec: Spec) -> int:
    """Return the parts of a sequence that the loss takes one after another."""
    return spec.training.loss_chunks or framework_of(spec).loss_chunks


def is_loss_parallel(spec: Spec) -> bool:
    """Return whether the loss is split over the vocabulary as the head is."""
    said = spec.training.loss_parallel
    return framework_of(spec).is_loss_parallel if said is None else said


EXPERT_IMBALANCE = 1.2
"""Tokens that the experts of the fullest GPU get, over the average, unless dropped.

The four peaks of models with experts in benchmarks/runs/simumax_b200.yaml ask for 1.2
or more."""


def expert_imbalance(spec: Spec) -> float:
    """Return the tokens of the experts on the fullest GPU, over the average."""
    moe, said = spec.model.moe, spec.training.expert_imbalance
    if said is not None:
        return said
    return 1.0 if moe is None or moe.capacity_factor else EXPERT_IMBALANCE


def copies_of_token(spec: Spec, shards: Shards | Skeletons) -> Floats:
    """Return the copies of a token that experts take, on the fullest GPU of a group.

    Each expert's tokens are padded to its capacity, if it has one. Where experts are on
    several GPUs all wait for the one that gets most tokens.
    """
    moe = spec.model.moe
    even = 0.0 if moe is None else moe.copies_per_token
    imbalance = np.where(shards.ep > 1, expert_imbalance(spec), 1.0)
    return np.asarray(even * imbalance)
