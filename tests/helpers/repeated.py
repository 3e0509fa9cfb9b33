"""Seconds that a recomputed layer repeats."""

from __future__ import annotations

import numpy as np

from meshwright.cost.compute import Kernels, of_bits
from meshwright.plans.columns import Floats


def repeated_s(took: Kernels, bits: int) -> Floats:
    return of_bits(took.repeated, np.full(len(took), bits))
