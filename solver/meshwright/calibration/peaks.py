"""What memory tells of switches: peaks, and runs that fitted or ran out of memory.

The logarithm of need over prediction is normal, as in `evidence.memory_spread`; its
bias and spread are unknown too, and are summed out on a small grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.calibration.hypotheses import Hypotheses
from meshwright.calibration.responses import Response
from meshwright.evidence.memory_spread import (
    ASTRAY,
    BIAS_SD,
    LOG_SIGMA_SD,
    MemoryRows,
    memory_rows,
    row_value,
)
from meshwright.evidence.price import Priced
from meshwright.plans.columns import Floats
from meshwright.spec.memory_spread import MemorySpread

BIASES = np.linspace(-2.5, 2.5, 15)
LOG_SIGMAS = np.linspace(-1.5, 1.5, 5)
"""Points of the grid, in standard deviations."""


def memory_likelihood(
    runs: Sequence[Priced],
    responses: Sequence[Response],
    switched: Hypotheses,
    prior: MemorySpread,
) -> Floats:
    """Return the log likelihood of what runs tell of memory, (hypotheses,)."""
    by_id = {one.run.id: index for index, one in enumerate(runs)}
    rows = memory_rows(runs, are_own=True)
    if not len(rows):
        return np.zeros(len(switched.departs))
    told = [responses[by_id[one.run.id]] for one in rows.runs]
    values = _values(rows, told, switched)
    grid = [(bias, sigma) for bias in BIASES for sigma in LOG_SIGMAS]
    logs = [_log_likelihood(rows, values, prior, *point) for point in grid]
    return np.asarray(np.logaddexp.reduce(np.array(logs), axis=0))


def _values(rows: MemoryRows, told: Sequence[Response], switched: Hypotheses) -> Floats:
    """Return `MemoryRows.value` under every hypothesis, (hypotheses, rows)."""
    allocated = switched.allocated_gib(told)
    result = np.empty_like(allocated)
    for row, (one, own) in enumerate(zip(rows.runs, told, strict=True)):
        gibs, place = np.unique(allocated[:, row], return_inverse=True)
        moved = [
            replace(one, allocated_gib=gib, peak_gib=gib + own.overhead_gib)
            for gib in gibs.tolist()
        ]
        values = [row_value(other, bool(rows.is_peak[row])) for other in moved]
        result[:, row] = np.array(values)[place]
    return result


def _log_likelihood(
    rows: MemoryRows,
    values: Floats,
    prior: MemorySpread,
    bias_sds: float,
    log_sigma_sds: float,
) -> Floats:
    """Return the log likelihood at a point of the grid, with the point's prior."""
    from scipy.special import ndtr

    sigma = prior.sigma * np.exp(LOG_SIGMA_SD * log_sigma_sds)
    scaled = (values - prior.bias - BIAS_SD * bias_sds) / sigma
    peaks = np.exp(-(scaled**2) / 2) / (sigma * np.sqrt(2 * np.pi))
    labels = ndtr(np.where(rows.fits, scaled, -scaled))
    likely = np.where(rows.is_peak, peaks, labels)
    belief = -(bias_sds**2 + log_sigma_sds**2) / 2
    return np.asarray(belief + np.log((1 - ASTRAY) * likely + ASTRAY / 2).sum(axis=1))
