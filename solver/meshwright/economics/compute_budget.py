"""FLOPs of a training run, and the compute-optimal model for them."""

from __future__ import annotations

import math

from meshwright.results.training_run import Chinchilla

DAY_S = 86_400.0

FLOPS_PER_PARAM_AND_TOKEN = 6
"""Two forward, four backward (Kaplan et al. 2020, section 2.1)."""

TOKENS_PER_PARAM = 20
"""Hoffmann et al. 2022 (Chinchilla), table 3: 20 to 21 for 10B to 175B parameters."""


def six_nd(params: float, tokens: float) -> float:
    """Return the model FLOPs of a run by C = 6 N D."""
    return FLOPS_PER_PARAM_AND_TOKEN * params * tokens


def affordable_tokens(params: float, flops: float) -> float:
    """Return the number of tokens on which a budget of FLOPs trains a model."""
    return flops / (FLOPS_PER_PARAM_AND_TOKEN * params)


def chinchilla(params: float, flops: float) -> Chinchilla:
    """Return the compute-optimal model of a budget, and how far a model is from it.

    C = 6 N D with D = 20 N gives N = sqrt(C / 120).
    """
    best_params = math.sqrt(flops / (FLOPS_PER_PARAM_AND_TOKEN * TOKENS_PER_PARAM))
    best_tokens = TOKENS_PER_PARAM * best_params
    tokens = affordable_tokens(params, flops)
    return Chinchilla(
        budget_flops=flops,
        params=best_params,
        tokens=best_tokens,
        overtrained=tokens / best_tokens,
        tokens_per_param=tokens / params,
    )
