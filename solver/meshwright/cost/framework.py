"""Bytes of model state per parameter, as each framework keeps it.

Mixed precision with AdamW. Sources: Rajbhandari et al. 2019, section 3.1 (DeepSpeed,
2 + 2 + 12); Megatron-LM, docs on the distributed optimizer (fp32 main gradients,
2 + 4 + 12); PyTorch FSDP2 `MixedPrecisionPolicy` (fp32 parameters that are cast for
compute, 4 + 4 + 8).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cost.arrays import Floats, Ints
from meshwright.spec.spec import Framework, Spec

MOMENT_BYTES = {"adamw": 8, "sgd": 4}
"""fp32 moments per parameter: two for Adam, the momentum for SGD."""


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

    @property
    def total(self) -> float:
        """Return the bytes per parameter without sharding."""
        return self.weights + self.gradients + self.optimizer

    @property
    def updated(self) -> float:
        """Return what an update moves: state read and written, gradients read."""
        return 2 * (self.optimizer + self.weights) + self.gradients


def state_bytes(spec: Spec) -> StateBytes:
    """Return the state of one parameter under the spec's framework and precision."""
    moments = MOMENT_BYTES[spec.training.optimizer]
    if spec.training.precision in ("fp32", "tf32"):
        return StateBytes(4, 4, moments, 4, 4)
    return _MIXED[spec.framework](moments)


def sharded_bytes(
    state: StateBytes, zero: Ints, dp_shard: Ints
) -> tuple[Floats, Floats, Floats]:
    """Return bytes per parameter of weights, gradients and optimizer under ZeRO.

    Stage 1 shards the optimizer, 2 gradients too, 3 weights too (Rajbhandari et al.
    2019, section 5 and figure 1).
    """
    weights = state.weights / np.where(zero >= 3, dp_shard, 1)
    gradients = state.gradients / np.where(zero >= 2, dp_shard, 1)
    optimizer = state.optimizer / np.where(zero >= 1, dp_shard, 1)
    return weights, gradients, optimizer


def _megatron(moments: int) -> StateBytes:
    return StateBytes(2, 4, 4 + moments, 2, 4)


def _deepspeed(moments: int) -> StateBytes:
    return StateBytes(2, 2, 4 + moments, 2, 2)


def _fsdp(moments: int) -> StateBytes:
    return StateBytes(4, 4, moments, 2, 4)


_MIXED = {
    "megatron": _megatron,
    "deepspeed": _deepspeed,
    "torchtitan": _fsdp,
    "fsdp": _fsdp,
}

HAS_CAST_WEIGHTS: frozenset[Framework] = frozenset({"torchtitan", "fsdp"})
"""Frameworks whose compute weights are a cast copy of fp32 parameters."""

OVERHEAD_GIB = 1.5
"""CUDA context (0.5-0.6 GiB), cuBLAS workspaces and NCCL buffers (Megatron-Bridge's
guides quote 1-2 GiB in all)."""
