"""Fits the spread of ln(memory needed / predicted) to peaks, and to what fitted or not.

The logarithm is normal. A measured peak is one value of it. Of a run that fitted, the
value lies below ln(card / prediction); of a run that ran out of memory, above it. Bias
and sigma maximise the posterior density.

Runs of one source share software, machines and the people who chose the plans, so that
all plans of a source together weigh no more than a few independent ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.cost.profile import Profile
from meshwright.evidence.price import Priced
from meshwright.evidence.score import memory_kind, predicted_gib
from meshwright.plans.columns import Bools, Floats
from meshwright.spec.goals import Basis, MemorySpread, card_gib

SOURCE_WEIGHT = 4.0
"""Most that all runs of one published source weigh together, in independent runs."""

KNOWN = MemorySpread(sigma=0.074, basis="known")
"""Prior for a framework with published peaks: residuals of a model of its memory, with
the right switches, on sizes, sequence lengths and kernels that it has not seen."""

BIAS_SD = 0.05
LOG_SIGMA_SD = 0.3
"""How far bias and ln sigma are believed to lie from the prior ones: standard
deviations."""

ASTRAY = 0.01
"""Share of runs that no spread explains, for instance out of memory for another reason:
their logarithms lie anywhere from -1 to 1, and their labels carry no information."""

FULL = 0.98
"""A reading of nvidia-smi says no more than "it fits" above this share of the card: the
allocator keeps what it once had."""


@dataclass(frozen=True)
class MemoryRows:
    """Memory of runs as columns: a measured peak, or whether the run fitted."""

    runs: tuple[Priced, ...]
    is_peak: Bools
    """Whether the run has a measured peak; else only whether it fitted is known."""
    value: Floats
    """ln(measured / predicted) of a peak, ln(card / predicted) of a label."""
    fits: Bools

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.runs)

    @property
    def sources(self) -> list[str]:
        """Return the source of each row."""
        return [one.run.source_id for one in self.runs]

    def weights(self, most: float) -> Floats:
        """Return the weights of rows, those of a source together at most `most`.

        Runs of a source that are predicted alike are one plan, and weigh as one: what
        the prediction lacks is the same in all of them.
        """
        if math.isinf(most):
            return np.ones(len(self))
        plans = [(one.run.source_id, f"{one.peak_gib:.6g}") for one in self.runs]
        alike, of_source = Counter(plans), Counter(source for source, _ in {*plans})
        return np.array(
            [min(1.0, most / of_source[plan[0]]) / alike[plan] for plan in plans]
        )


def memory_rows(runs: Iterable[Priced], are_users: bool = False) -> MemoryRows:
    """Return the rows of the runs that measure memory, or whether it suffices.

    A source that publishes only runs that fitted shows nothing by that: it has left
    out the plans that did not fit. Its peaks are used, its labels are not. Of a
    user's runs (`are_users`) all labels count, and a run with a step time did fit.
    """
    agreeing = [one for one in runs if not one.run.is_contradictory]
    sound = [one for one in agreeing if are_users or one.has_profile]
    fail = {_who(one) for one in sound if one.run.measured.fits is False}
    if are_users:
        told = [one for one in sound if _peak_gib(one) or _ran_or_failed(one)]
    else:
        told = [one for one in sound if _peak_gib(one) or _tells_fit(one, fail)]
    is_peak = [_peak_gib(one) is not None for one in told]
    values = [
        row_value(one, row_is_peak)
        for one, row_is_peak in zip(told, is_peak, strict=True)
    ]
    return MemoryRows(
        tuple(told),
        np.array(is_peak, dtype=bool),
        np.array(values, dtype=np.float64),
        np.array([one.run.measured.fits is not False for one in told], dtype=bool),
    )


def row_value(one: Priced, is_peak: bool) -> float:
    """Return `MemoryRows.value` of a run, of its peak or of its label."""
    if is_peak:
        peak = one.run.measured.peak_memory_gb or np.nan
        return float(np.log(peak / predicted_gib(one)))
    return float(np.log(_card(one) / one.peak_gib))


def _ran_or_failed(one: Priced) -> bool:
    return one.run.measured.fits is not None or one.run.step_s is not None


def _who(one: Priced) -> tuple[str, str]:
    return one.run.source_id, one.spec.framework


def _tells_fit(one: Priced, fail: set[tuple[str, str]]) -> bool:
    return one.run.measured.fits is not None and _who(one) in fail


def _card(one: Priced) -> float:
    return card_gib(one.spec.cluster.topology.gpu.memory_gib)


def _peak_gib(one: Priced) -> float | None:
    """Return the measured peak of a run, unless its card was as good as full."""
    peak = one.run.measured.peak_memory_gb
    if peak is None or one.run.measured.fits is False:
        return None
    fullest = max(peak, predicted_gib(one))
    is_full = memory_kind(one) == "device" and fullest > FULL * _card(one)
    return None if is_full else peak


def fit_spread(
    rows: MemoryRows,
    prior: MemorySpread,
    basis: Basis,
    source_weight: float = SOURCE_WEIGHT,
) -> MemorySpread:
    """Return the spread of some rows, given a prior spread."""
    from scipy.optimize import minimize
    from scipy.stats import norm

    weights, start = rows.weights(source_weight), np.log(prior.sigma)

    def cost(point: Floats) -> float:
        bias, log_sigma = float(point[0]), float(point[1])
        sigma = np.exp(log_sigma)
        scaled = (rows.value - bias) / sigma
        peaks = norm.pdf(scaled) / sigma
        labels = norm.cdf(np.where(rows.fits, scaled, -scaled))
        likely = np.where(rows.is_peak, peaks, labels)
        likelihood = weights @ np.log((1 - ASTRAY) * likely + ASTRAY / 2)
        belief = ((bias - prior.bias) / BIAS_SD) ** 2
        belief += ((log_sigma - start) / LOG_SIGMA_SD) ** 2
        return float(belief / 2 - likelihood)

    found = minimize(cost, [prior.bias, start], method="Nelder-Mead").x
    bias, sigma = np.clip(found[0], -1, 1), np.clip(np.exp(found[1]), 1e-3, 1)
    return MemorySpread(
        bias=round(float(bias), 4),
        sigma=round(float(sigma), 4),
        basis=basis,
        peaks=int(rows.is_peak.sum()),
        labels=int((~rows.is_peak).sum()),
        sources=dict(sorted(Counter(rows.sources).items())),
    )


def with_calibrated_memory(
    profile: Profile, runs: Sequence[Priced], base: Profile
) -> Profile:
    """Return a profile with the memory spreads that fit a user's runs.

    Frameworks without runs keep the spread of `base`. A user's runs are like those
    that the profile will predict, so each of them counts in full.
    """
    calibrated = {
        name: fit_spread(
            memory_rows(of_framework, are_users=True),
            base.memory_spread(name),
            "calibrated",
            np.inf,
        )
        for name, of_framework in by_framework(
            memory_rows(runs, are_users=True).runs
        ).items()
    }
    return profile.model_copy(update={"memory": {**base.memory, **calibrated}})


def by_framework(runs: Iterable[Priced]) -> dict[str, list[Priced]]:
    """Return runs by the framework that they are priced as, in alphabetical order."""
    groups: dict[str, list[Priced]] = {}
    for one in sorted(runs, key=lambda one: one.spec.framework):
        groups.setdefault(one.spec.framework, []).append(one)
    return groups


DECILES = 10


@dataclass(frozen=True)
class Decile:
    """The runs that were said to fit with a probability between two tenths."""

    low: float
    high: float
    rows: int
    """Runs of which it is known whether they ran."""
    stated: float | None
    """Mean of the probabilities that were stated; None where there are no runs."""
    ran: float | None
    """Share of the runs that did run."""
    peaks_below: float | None
    """Share of measured peaks that lie below the level that the spread puts at
    probability `high`. Where the spread is right it is `high`; None without peaks."""


def reliability(priced: Sequence[Priced]) -> tuple[Decile, ...]:
    """Return stated probabilities of fitting against what was observed, by decile.

    Publications hardly show runs that failed, so the share that ran is biased. Measured
    peaks are the better test.
    """
    known = [one for one in priced if one.run.measured.fits is not None]
    stated = np.array([one.fit_probability for one in known])
    ran = np.array([one.run.measured.fits is True for one in known])
    place = np.minimum((stated * DECILES).astype(np.int64), DECILES - 1)
    ranks = np.array(_peak_ranks(priced))
    result = []
    for decile in range(DECILES):
        is_in, high = place == decile, (decile + 1) / DECILES
        result.append(
            Decile(
                low=decile / DECILES,
                high=high,
                rows=int(is_in.sum()),
                stated=float(stated[is_in].mean()) if is_in.any() else None,
                ran=float(ran[is_in].mean()) if is_in.any() else None,
                peaks_below=float(np.mean(ranks <= high)) if len(ranks) else None,
            )
        )
    return tuple(result)


def _peak_ranks(priced: Iterable[Priced]) -> list[float]:
    """Return, for each measured peak, how likely a need was said to be below it."""
    rows = memory_rows(priced)
    return [
        one.spec.memory_spread.fit_probability(float(np.exp(value)), 1.0)
        for one, is_peak, value in zip(rows.runs, rows.is_peak, rows.value, strict=True)
        if is_peak
    ]
