"""FLOPs of a run, and the model that they are best spent on."""

from __future__ import annotations

import math

from meshwright.results.training_run import Chinchilla

DAY_S = 86_400.0

FLOPS_PER_PARAM_AND_TOKEN = 6
"""Two forward, four backward (Kaplan et al. 2020, section 2.1)."""

TOKENS_PER_PARAM = 20
"""Hoffmann et al. 2022 (Chinchilla), table 3: 20 to 21 for 10B to 175B parameters."""


def budget_flops(gpus: int, peak_flops: float, mfu: float, days: float) -> float:
    """Return the model FLOPs of so many GPUs in so many days."""
    return gpus * peak_flops * mfu * days * DAY_S


def six_nd(params: float, tokens: float) -> float:
    """Return the model FLOPs of a run by C = 6 N D."""
    return FLOPS_PER_PARAM_AND_TOKEN * params * tokens


def tokens_of(params: float, flops: float) -> float:
    """Return the tokens for which a budget trains a model."""
    return flops / (FLOPS_PER_PARAM_AND_TOKEN * params)


def chinchilla(params: float, flops: float) -> Chinchilla:
    """Return the compute-optimal point of a budget, and how far a model is from it.

    C = 6 N D with D = 20 N gives N = sqrt(C / 120).
    """
    best = math.sqrt(flops / (FLOPS_PER_PARAM_AND_TOKEN * TOKENS_PER_PARAM))
    tokens = tokens_of(params, flops)
    return Chinchilla(
        budget_flops=flops,
        params=best,
        tokens=TOKENS_PER_PARAM * best,
        overtrained=tokens / (TOKENS_PER_PARAM * best),
        tokens_per_param=tokens / params,
    )
