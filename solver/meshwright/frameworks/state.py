"""Bytes that each framework keeps: state per parameter, logits, and its own buffers.

Sources: Rajbhandari et al. 2019, section 3.1 (2 + 2 + 12 in mixed precision); for
Megatron-LM its docs on the distributed optimizer (fp32 main gradients, 2 + 4 + 12);
for FSDP, PyTorch's `MixedPrecisionPolicy` (fp32 parameters that are cast for compute,
4 + 4 + 8). DeepSpeed and InternEvo hold more than that while they update: see
`_deepspeed` and `_internevo`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Floats
from meshwright.plans.precision import FORMATS
from meshwright.plans.sharding import Sharding
from meshwright.spec.spec import Framework, Spec
from meshwright.spec.training import Training

BLOCK = 256
"""Numbers that share one fp32 scale in bitsandbytes' 8-bit optimizers (Dettmers et al.
2021, arXiv 2110.02861, section 2.1, have blocks of 2,048; release 0.44 has these)."""


ADAMW_BYTES = 8
"""Two fp32 moments of a parameter."""


def moment_bytes(spec: Spec) -> float:
    """Return the bytes per parameter that an optimizer knows beside the weight.

    AdamW has two fp32 moments, SGD the momentum; bitsandbytes' AdamW two of a byte.
    Adafactor without momentum has the mean square of every row and of every column in
    fp32: 4 (r + c) bytes of r x c weights, taken as square ones of the model's width
    (Shazeer and Stern 2018, section 3).
    """
    return {
        "adamw": ADAMW_BYTES,
        "adamw-8bit": 2 * (1 + 4 / BLOCK),
        "sgd": 4,
        "adafactor": 8 / spec.model.d_model,
    }[spec.training.optimizer]


@dataclass(frozen=True)
class StateBytes:
    """Bytes per parameter before sharding, and what crosses the links."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    """Weights as matmuls and ZeRO-3 all-gathers see them."""
    reduced: float
    """Gradients as reduce-scatters and all-reduces see them."""
    main_gradients: float = 0.0
    """fp32 sums beside the gradients, which ZeRO shards from stage 2 on never has."""
    copied: float = 0.0
    """Copies of gradients that the update makes where there are no such sums, and
    what it computes with them; sharded as the optimizer is."""

    @property
    def total(self) -> float:
        """Return the bytes per parameter without sharding, outside the update."""
        return self.weights + self.gradients + self.optimizer

    @property
    def updated(self) -> float:
        """Return what an update moves: state read and written, gradients read."""
        return 2 * (self.optimizer + self.weights) + self.gradients


def state_bytes(spec: Spec) -> StateBytes:
    """Return the state of one parameter under the spec's framework and precision."""
    moments = moment_bytes(spec)
    if not FORMATS[spec.training.precision].is_mixed:
        return StateBytes(4, 4, moments, 4, 4)
    return _MIXED[spec.framework](spec.training, moments)


def sharded_bytes(
    state: StateBytes, sharding: Sharding
) -> tuple[Floats, Floats, Floats]:
    """Return bytes per parameter of weights, gradients and optimizer under ZeRO."""
    main = _main_gradients(state, sharding)
    copied = np.where(main > 0, 0.0, state.copied)
    weights = state.weights / sharding.weights
    gradients = state.gradients / sharding.gradients + main
    optimizer = (state.optimizer + copied) / sharding.optimizer
    return weights, gradients, optimizer


def _main_gradients(state: StateBytes, sharding: Sharding) -> Floats:
    return np.where(sharding.shards_gradients, 0.0, state.main_gradients)


def summed_gradients(state: StateBytes, sharding: Sharding) -> Floats:
    """Return the bytes per parameter of the gradients that an update reads."""
    main = _main_gradients(state, sharding)
    return np.where(main > 0, main, state.gradients)


def _megatron(training: Training, moments: float) -> StateBytes:
    """Return the state of Megatron-LM, which adds up gradients in fp32.

    NeMo adds them up and reduces them in bf16 (`grad_reduce_in_fp32` false).
    """
    main = 2 if training.gradients == "bf16" else 4
    return StateBytes(2, main, 4 + moments, 2, main)


def _deepspeed(training: Training, moments: float) -> StateBytes:
    """Return the state of DeepSpeed.

    fp16, and any ZeRO from stage 2 on: the update flattens a rank's gradients, 2
    bytes, and casts them to fp32, 4 (runtime/zero/stage_1_and_2.py, `step`). bf16 up to
    stage 1: `BF16_Optimizer` adds gradients up in fp32 and does not shard the sums
    (runtime/bf16_optimizer.py, `fp32_groups_gradients_flat`).
    """
    usual = "bf16" if training.precision == "fp16" else "fp32"
    main = 4 if (training.gradients or usual) == "fp32" else 0
    return StateBytes(2, 2, 4 + moments, 2, 2, main_gradients=main, copied=6)


def _internevo(training: Training, moments: float) -> StateBytes:
    """Return the state of InternEvo.

    Its optimizers cast gradients to fp32, 4 bytes, and update flat tensors at once, so
    that AdamW's root and quotient are as large as its moments (InternEvo,
    solver/optimizer/fsdp_optimizer.py; of HybridZero the same is inferred).
    """
    return StateBytes(2, 2, 4 + moments, 2, 2, copied=4 + moments)


def _fsdp(training: Training, moments: float) -> StateBytes:
    """Return the state of FSDP: gradients of fp32 parameters, reduced as asked."""
    reduced = 2 if training.gradients == "bf16" else 4
    return StateBytes(4, 4, moments, 2, reduced)


_MIXED = {
    "megatron": _megatron,
    "deepspeed": _deepspeed,
    "internevo": _internevo,
    "torchtitan": _fsdp,
    "fsdp": _fsdp,
}

HAS_CAST_WEIGHTS: frozenset[Framework] = frozenset({"torchtitan", "fsdp"})
"""Frameworks whose compute weights are a cast copy of fp32 parameters."""

HAS_SEPARATE_GRADIENTS: frozenset[Framework] = frozenset({"megatron"})
"""Frameworks where a layer's gradients wait in the compute precision to be added to
those of the step, at every ZeRO stage."""

KEEPS_STAGE_OUTPUTS: frozenset[Framework] = frozenset({"deepspeed"})
"""Frameworks whose pipeline holds what a stage has sent on until its backward
(DeepSpeed, runtime/pipe/engine.py, `pipe_buffers['outputs']`); Megatron-LM frees it
(`deallocate_pipeline_outputs`)."""

PREFETCHED_PARAMS: dict[Framework, float] = {"deepspeed": 5e7}
"""Parameters that ZeRO-3 gathers ahead (DeepSpeed, `stage3_prefetch_bucket_size`);
elsewhere the layer after the one at work (PyTorch FSDP, `backward_prefetch`)."""

HAS_FUSED_LOSS: frozenset[Framework] = frozenset({"megatron", "internevo"})
"""Frameworks with a cross-entropy of one kernel: Transformer Engine's, flash-attn's."""

FUSED_LOSS_BYTES = 4
EAGER_LOSS_BYTES: dict[Framework, int] = {
    "megatron": 12,
    "deepspeed": 12,
    "internevo": 12,
    "torchtitan": 10,
    "fsdp": 12,
}


def loss_bytes(spec: Spec) -> int:
    """Return the bytes per logit of the loss at its peak, beside the logit itself.

    One kernel leaves the softmax in fp32. Megatron-LM's operations, which its forks
    for DeepSpeed have: an fp32 copy, the same less its maximum, and the exponentials.
    PyTorch's, in the backward: the logarithms they saved, the gradient of those, and
    that of the fp32 copy; torchtitan drops the 2 bytes of the logit itself before.
    """
    is_fused = spec.training.fused_loss
    if is_fused is None:
        is_fused = spec.framework in HAS_FUSED_LOSS
    return FUSED_LOSS_BYTES if is_fused else EAGER_LOSS_BYTES[spec.framework]


CONTEXT_GIB = 1.1
"""Of CUDA with its kernels: the least of what `OVERHEAD_GIB` is made of."""

OVERHEAD_GIB: dict[Framework, float] = {
    "megatron": 3.0,
    "deepspeed": 3.0,
    "internevo": 3.0,
    "torchtitan": 1.5,
    "fsdp": 1.5,
}
"""CUDA context (1.1 to 1.5 GiB with its kernels) and 0.25 to 0.4 GiB of buffers per
communicator: one or two for FSDP, about eight axes of ranks where pipelines and tensors
are split too, and DeepSpeed's two buckets of 5e8 elements."""

RESERVED_PER_ALLOCATED = 1.10
"""What PyTorch has reserved at the peak, over what is allocated then: 1.08 to 1.14 in
runs that print one and imply the other. The allocator gives it back before it fails, so
that it is expected of a reading and no need of a plan."""
