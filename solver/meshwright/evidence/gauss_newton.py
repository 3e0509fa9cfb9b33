"""Robust least squares on the logarithm of step time, by Gauss and Newton."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.plans.columns import Floats

OUTLIER = 0.25
"""Error, as a logarithm, from which on errors count linearly."""

MOST_STEPS = 12
LONGEST_STEP = 1.0
"""Most that any unknown moves in one step."""

TOLERANCE = 3e-3
"""Change of every error below which the search ends."""

MOST_REWEIGHTINGS = 4

Errors = Callable[[Floats], tuple[Floats, Floats]]
"""Returns errors of runs at some unknowns, and their slopes, (runs, unknowns)."""


def minimum(errors: Errors, weights: Floats, pulls: Floats, start: Floats) -> Floats:
    """Return the unknowns with the least loss.

    The loss of a run is soft in its error and has the weight of the run squared; that
    of an unknown is the square of its pull times the unknown.
    """
    here = start
    for _ in range(MOST_STEPS):
        found, slopes = errors(here)
        there = _on_tangent(found, slopes, weights, pulls, here)
        step = there - here
        here = here + step * min(1.0, LONGEST_STEP / (np.abs(step).max() + 1e-12))
        if np.abs(slopes @ step).max(initial=0.0) < TOLERANCE:
            break
    return here


def _on_tangent(
    errors: Floats, slopes: Floats, weights: Floats, pulls: Floats, here: Floats
) -> Floats:
    """Return the best unknowns where errors follow their tangent, by reweighting.

    The weight of a soft square falls as the error grows (Huber's M-estimate with
    the loss 2 (sqrt(1 + z) - 1)).
    """
    there = here
    for _ in range(MOST_REWEIGHTINGS):
        now = errors + slopes @ (there - here)
        soft = weights**2 / np.sqrt(1 + (now / OUTLIER) ** 2)
        curvature = slopes.T @ (soft[:, None] * slopes) + np.diag(pulls**2)
        down = slopes.T @ (soft * now) + pulls**2 * there
        step = np.linalg.solve(curvature, down)
        there = there - step
        if np.abs(slopes @ step).max(initial=0.0) < TOLERANCE / 10:
            break
    return np.asarray(there)
