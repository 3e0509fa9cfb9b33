"""State of a parameter in mixed precision, as in the literature."""

from __future__ import annotations

from meshwright.frameworks.base.framework import StateBytes
from meshwright.frameworks.base.small_state import master_bytes
from meshwright.spec.training import Training


def mixed_precision_state(training: Training, moments: float) -> StateBytes:
    """Return the state with 16-bit weights and gradients, and an fp32 copy of weights.

    That is 2 + 2 + 12 bytes with Adam (Rajbhandari et al. 2019, section 3.1). Gradients
    have 4 bytes if the spec asks for sums in fp32.
    """
    gradients = 4 if training.gradients == "fp32" else 2
    return StateBytes(2, gradients, master_bytes(training) + moments, 2, gradients)
