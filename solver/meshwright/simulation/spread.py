"""Distributions over samples, in a few numbers."""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Floats
from meshwright.results.simulation import Histogram, Spread

BINS = 20


def spread(values: Floats) -> Spread:
    """Return mean and quantiles of some samples."""
    median, p90, p99 = np.quantile(values, [0.5, 0.9, 0.99])
    return Spread(
        mean=float(values.mean()),
        least=float(values.min()),
        median=float(median),
        p90=float(p90),
        p99=float(p99),
        most=float(values.max()),
    )


def histogram(values: Floats) -> Histogram:
    """Return how many samples lie where; a single bin if all are alike."""
    least, most = float(values.min()), float(values.max())
    if most - least <= 1e-9 * most:
        return Histogram(edges=(least, most), counts=(len(values),))
    counts, edges = np.histogram(values, bins=BINS)
    return Histogram(edges=tuple(edges.tolist()), counts=tuple(counts.tolist()))
