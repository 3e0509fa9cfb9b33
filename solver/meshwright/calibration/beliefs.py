"""Beliefs about one framework at one site: switches, step times and memory.

Step times: the logarithm of a measured time is that of the predicted one, plus log
factors of the GPU, the kernels and the framework (`evidence.timed_runs`), plus one of
the site, plus noise. All of these are normal, so the posterior has a closed form. The
noise of a run grows with its error, so outliers do not decide.

Memory: the logarithm of need over prediction is normal, as in `evidence.memory_spread`.
Its bias and spread are unknown too; they are summed out on a small grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.calibration.responses import (
    Hypotheses,
    Probabilities,
    Response,
    alternatives,
    hypotheses,
    normalised,
    responses_of,
)
from meshwright.cost.profile import Profile
from meshwright.evidence.fit import OUTLIER
from meshwright.evidence.memory_spread import (
    ASTRAY,
    BIAS_SD,
    LOG_SIGMA_SD,
    MemoryRows,
    memory_rows,
    row_value,
)
from meshwright.evidence.price import Priced
from meshwright.evidence.timed_runs import SITE, unknowns
from meshwright.frameworks.base.framework import Setting
from meshwright.frameworks.base.switches import SWITCH
from meshwright.plans.columns import Floats
from meshwright.spec.goals import MemorySpread

FEWEST_TO_JUDGE, MOST_TO_JUDGE = 3, 50
"""Runs that are left out one by one to see whether calibration helps: fewer tell
nothing, and of more the fit itself reports errors on parts left out."""

HARMLESS = 0.005
"""Most that calibration may raise the mean error of runs that it has not seen."""


@dataclass(frozen=True)
class LeftOutErrors:
    """Mean |ln(predicted / measured)| of runs, each left out of a calibration."""

    before: float
    """Without any calibration."""
    after: float
    """Calibrated on the others."""


@dataclass(frozen=True)
class CodeBase:
    """Beliefs about one framework, as one site runs it, after some runs."""

    runs: tuple[Priced, ...]
    """Measured runs, then others whose predictions are asked for."""
    responses: tuple[Response, ...]
    switched: Hypotheses
    weights: Floats
    """The probability of every hypothesis."""
    times: StepTimes
    left_out: LeftOutErrors | None = None
    """Errors of runs left out one by one; None of too few."""

    @property
    def helps(self) -> bool:
        """Return whether calibration predicts runs that it has not seen better.

        Where runs disagree, each alone would pull the others astray: nothing of step
        times is changed then.
        """
        left = self.left_out
        return left is None or left.after <= left.before + HARMLESS

    @cached_property
    def likely(self) -> int:
        """Return the hypothesis of which every switch is more likely than not.

        Where calibration does not help it is that of no switch.
        """
        if not self.helps:
            return int(np.argmin(self.switched.departs.sum(axis=1)))
        return self.switched.likely(self.weights)

    @property
    def settings(self) -> dict[str, Setting]:
        """Return the switches that are likely set otherwise than was believed."""
        departs = self.switched.departs[self.likely]
        found = zip(self.switched.alternatives, departs.tolist(), strict=True)
        return {name: setting for (name, setting), is_set in found if is_set}

    @property
    def probabilities(self) -> Probabilities:
        """Return the probability of every position of the switches that matter."""
        found = self.switched.probabilities(self.weights)
        result: Probabilities = {}
        for (name, setting), probability in found.items():
            result.setdefault(name, {})[setting] = probability
        for name, known in result.items():
            others = [one for one in SWITCH[name].settings if one not in known]
            believed = self._believed(name)
            if believed is None and len(others) == 1:
                believed = others[0]
            if believed is not None and believed not in known:
                known[believed] = 1 - math.fsum(known.values())
        return result

    @property
    def log_steps(self) -> Floats:
        """Return the likely logarithm of the step time of every run."""
        believed = np.array([one.log_s for one in self.responses])
        moved = self.times.means[self.likely] if self.helps else 0.0
        return np.asarray(believed + moved)

    @property
    def spreads(self) -> Floats:
        """Return the standard deviation of the log time of every run, if repeated."""
        if self.helps:
            return self.times.spread(self.weights, self.likely)
        before = np.diag(prior_covariance(self.responses)) + MEASUREMENT_SD**2
        return np.asarray(np.sqrt(before))

    def _believed(self, name: str) -> Setting | None:
        positions = (one.settings.get(name) for one in self.responses)
        return next((position for position in positions if position is not None), None)


def code_base(
    runs: Sequence[Priced],
    responses: Sequence[Response],
    measured: int,
    profile: Profile,
) -> CodeBase:
    """Return beliefs about runs of a framework, of which the first were measured."""
    switched = hypotheses(alternatives(responses))
    seen, prior = runs[:measured], profile.memory_spread(runs[0].spec.framework)
    logs = switched.log_prior
    logs = logs + memory_likelihood(seen, responses[:measured], switched, prior)
    log_measured = np.full(len(runs), np.nan)
    log_measured[:measured] = [np.log(one.run.step_s or np.nan) for one in seen]
    times = believed_times(responses, log_measured, switched, logs)
    return CodeBase(
        runs=tuple(runs),
        responses=tuple(responses),
        switched=switched,
        weights=normalised(logs + times.log_likelihood),
        times=times,
        left_out=_left_out(responses, log_measured, switched, logs),
    )


def _left_out(
    responses: Sequence[Response],
    log_measured: Floats,
    switched: Hypotheses,
    logs: Floats,
) -> LeftOutErrors | None:
    """Return the errors of measured runs, each by a calibration on the others."""
    seen = np.flatnonzero(np.isfinite(log_measured))
    if not FEWEST_TO_JUDGE <= len(seen) <= MOST_TO_JUDGE:
        return None
    before, after = [], []
    for one in seen.tolist():
        others = log_measured.copy()
        others[one] = np.nan
        times = believed_times(responses, others, switched, logs)
        likely = switched.likely(normalised(logs + times.log_likelihood))
        error = responses[one].log_s - log_measured[one]
        before.append(abs(error))
        after.append(abs(error + times.means[likely][one]))
    return LeftOutErrors(float(np.mean(before)), float(np.mean(after)))


def code_base_of(runs: Sequence[Priced], profile: Profile) -> CodeBase:
    """Return beliefs about one framework after its measured runs."""
    return code_base(runs, responses_of(runs, profile), len(runs), profile)


NOISE = 0.06
"""Standard deviation of the log time of an ordinary run around the right formula."""

MEASUREMENT_SD = 0.1
"""Standard deviation of the log time of any further run, outliers included.

It is so large that stated bands are true: after calibration on five runs, nine in ten
of the other runs lie within their bands (`benchmarks.calibrate_few`).
"""

REWEIGHTINGS = 3


@dataclass(frozen=True)
class StepTimes:
    """Normal beliefs about ln(measured / predicted) of some runs.

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
    """Return beliefs about the times of runs, some of which were measured.

    Args:
        runs: Measured runs and others.
        log_measured: Logarithms of their times; nan where none was measured.
        switched: The hypotheses.
        log_prior: Log probabilities of the hypotheses without these times.
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


BIASES = np.linspace(-2.5, 2.5, 15)
LOG_SIGMAS = np.linspace(-1.5, 1.5, 5)
"""Points of the grid, in standard deviations."""


def memory_likelihood(
    runs: Sequence[Priced],
    responses: Sequence[Response],
    switched: Hypotheses,
    prior: MemorySpread,
) -> Floats:
    """Return the log likelihood of measured memory, (hypotheses,)."""
    by_id = {one.run.id: index for index, one in enumerate(runs)}
    rows = memory_rows(runs, are_users=True)
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
    for row, (one, response) in enumerate(zip(rows.runs, told, strict=True)):
        gibs, place = np.unique(allocated[:, row], return_inverse=True)
        moved = [
            replace(one, allocated_gib=gib, peak_gib=gib + response.overhead_gib)
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
