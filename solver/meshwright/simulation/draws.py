"""Random factors on compute: of the slowest among GPUs that wait for each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Floats
from meshwright.results.simulation import Disturbance


@dataclass(frozen=True)
class Draws:
    """What slows the compute of stages, for GPUs in lockstep."""

    disturbance: Disturbance
    lockstep_gpus: int
    rng: np.random.Generator

    def jitter(self, samples: int) -> Floats | float:
        """Return the factor on the compute of one task, (samples,).

        A GPU's factor is log-normal with mean 1. Of n GPUs the slowest is at the
        quantile u^(1/n) of that, for a uniform u: one draw stands for all n.
        """
        share = self.disturbance.jitter
        if not share:
            return 1.0
        sigma = float(np.sqrt(np.log1p(share**2)))
        return np.asarray(np.exp(sigma * self._slowest(samples) - sigma**2 / 2))

    def _slowest(self, samples: int) -> Floats:
        """Return the largest of n normal numbers, (samples,)."""
        if self.lockstep_gpus == 1:
            return self.rng.standard_normal(samples)
        from scipy.special import ndtri_exp

        log_u = np.log1p(-self.rng.random(samples))
        return np.asarray(ndtri_exp(log_u / self.lockstep_gpus))

    def slow_stages(self, stages: int, samples: int) -> Floats:
        """Return the factor on all compute of stages in a step, (stages, samples).

        A stage is slow if any of its GPUs is.
        """
        told = self.disturbance
        none_slow = (1 - told.slow_gpus) ** self.lockstep_gpus
        is_slow = self.rng.random((stages, samples)) >= none_slow
        return np.where(is_slow, 1 + told.slowdown, 1.0)
