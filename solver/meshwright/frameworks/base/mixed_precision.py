"""State of a parameter in mixed precision as the literature counts it."""

from __future__ import annotations

from meshwright.frameworks.base.framework import StateBytes
from meshwright.spec.training import Training


def mixed_precision_state(training: Training, moments: float) -> StateBytes:
    """Return 2 bytes of weight and gradient each, and an fp32 copy beside the moments.

    That is 2 + 2 + 12 with Adam (Rajbhandari et al. 2019, section 3.1); gradients have
    4 bytes where a spec asks for sums in fp32.
    """
    gradients = 4 if training.gradients == "fp32" else 2
    return StateBytes(2, gradients, 4 + moments, 2, gradients)
