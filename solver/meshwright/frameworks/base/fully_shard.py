"""State of a parameter under PyTorch's `fully_shard`."""

from __future__ import annotations

from meshwright.frameworks.base.framework import StateBytes
from meshwright.spec.training import Training


def fully_shard_state(training: Training, moments: float) -> StateBytes:
    """Return the state in mixed precision, 4 + 4 + 8 bytes with Adam.

    Parameters and gradients are in fp32. Parameters are cast for compute, and gradients
    are reduced in the precision that the spec gives (PyTorch's `MixedPrecisionPolicy`).
    """
    reduced = 2 if training.gradients == "bf16" else 4
    return StateBytes(4, 4, moments, 2, reduced)
