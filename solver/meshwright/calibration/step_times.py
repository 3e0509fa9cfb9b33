"""Beliefs about step times: normal log factors, given which switches are set.

The logarithm of a measured time is that of the predicted one, plus log factors of the
GPU, the kernels and the framework (see `evidence.unknowns`), plus one of the site, plus
noise. All of these are normal, so that what rows tell follows in closed form. The noise
of a row grows with its error, so that outliers do not decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.calibration.hypotheses import Hypotheses, normalised
from meshwright.calibration.responses import Response
from meshwright.evidence.gauss_newton import OUTLIER
from meshwright.evidence.unknowns import SITE, unknowns
from meshwright.plans.columns import Floats

NOISE = 0.06
"""Standard deviation of the log time of an ordinary run around the right formula."""

MEASUREMENT_SD = 0.1
"""Standard deviation of the log time of any further run, outliers among them.

As large as makes stated bands true: calibrated on five runs, nine in ten of the others
lie within theirs (`benchmarks.calibrate_few`).
"""

REWEIGHTINGS = 3


@dataclass(frozen=True)
class StepTimes:
    """What is believed of ln(measured / predicted) of some runs: means and variances.

    The noise of the next measurement is not part of the covariance.
    """

    means: Floats
    """Under every hypothesis, (hypotheses, runs)."""
    covariance: Floats
    """(runs, runs), the same under every hypothesis."""
    log_likelihood: Floats
    """Of the rows that were seen, under every hypothesis."""

    def spread(self, weights: Floats, likely: int) -> Floats:
        """Return the standard deviation of a measurement around the likely mean."""
        away = weights @ (self.means - self.means[likely]) ** 2
        return np.asarray(np.sqrt(np.diag(self.covariance) + away + MEASUREMENT_SD**2))


def prior_covariance(runs: Sequence[Response]) -> Floats:
    """Return the covariance of log times that factors cause, before any row."""
    classes = list(dict.fromkeys(one.run_class for one in runs))
    found = unknowns(classes, (), users=None)
    slopes = np.concatenate(
        [found.slopes(one.run_class, one.slopes[None, :]) for one in runs]
    )
    scaled = slopes * found.spreads
    return np.asarray(scaled @ scaled.T + SITE[1] ** 2)


def believed_times(
    runs: Sequence[Response],
    log_measured: Floats,
    switched: Hypotheses,
    log_prior: Floats,
) -> StepTimes:
    """Return what is believed of the times of runs, some of which were measured.

    Args:
        runs: Measured runs and others.
        log_measured: Logarithms of their times; nan where none was measured.
        switched: The hypotheses.
        log_prior: What else is known of the hypotheses, as logarithms.
    """
    shifts, covariance = switched.log_ratios(runs), prior_covariance(runs)
    seen = np.flatnonzero(np.isfinite(log_measured))
    if not len(seen):
        return StepTimes(shifts, covariance, np.zeros(len(shifts)))
    believed = np.array([one.log_s for one in runs])
    apart = (log_measured - believed)[seen] - shifts[:, seen]
    noise = np.full(len(seen), NOISE**2)
    for _ in range(REWEIGHTINGS):
        total = covariance[np.ix_(seen, seen)] + np.diag(noise)
        gain = np.linalg.solve(total, covariance[seen]).T
        fitted = apart @ gain.T
        likelihood = (
            -np.einsum("hi,hi->h", apart, np.linalg.solve(total, apart.T).T) / 2
        )
        weights = normalised(log_prior + likelihood)
        errors = np.sqrt(weights @ (apart - fitted[:, seen]) ** 2)
        noise = NOISE**2 * np.sqrt(1 + (errors / OUTLIER) ** 2)
    left = covariance - gain @ covariance[seen]
    return StepTimes(shifts + fitted, left, likelihood)
