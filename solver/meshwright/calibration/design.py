"""Greedy choice of the runs that are expected to give the most information.

Log times, log needs of memory and switches are taken as jointly normal, which leaves
covariances alone: a switch has the variance of its prior. A measured time or peak
conditions them in closed form. A run that ran out of memory has no step time. It tells
one thing: it needed more memory than the GPU has. Its expected gain is that of a
truncated normal. A run is valued by its mutual information with the quantities that
decide between plans (Lindley 1956; greedy as in Krause, Singh and Guestrin 2008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from meshwright.calibration.beliefs import NOISE, prior_covariance
from meshwright.calibration.responses import (
    LEAST_GIB,
    LEAST_RATIO,
    Alternative,
    Response,
    alternatives,
    departures,
)
from meshwright.evidence.memory_spread import BIAS_SD
from meshwright.plans.columns import Floats
from meshwright.spec.goals import normal_cdf

_NORMAL = NormalDist()

FAR = 6.0
"""Standard deviations beyond which a tail carries no information."""


@dataclass(frozen=True)
class Choice:
    """A run that was picked."""

    index: int
    nats: float
    """Expected information about all quantities that count."""
    fits: float
    """How likely it fits, before any run."""
    tells_of: tuple[Alternative, ...]
    """Switches whose remaining uncertainty it removes most."""


@dataclass(frozen=True)
class Prior:
    """Normal beliefs about plans before any of them is run."""

    responses: tuple[Response, ...]
    sigma: float
    """Standard deviation of ln(need / prediction) of memory."""
    bias: float
    card_gib: float

    @cached_property
    def switches(self) -> tuple[Alternative, ...]:
        """Return the positions of switches that matter to some plan."""
        return alternatives(self.responses)

    @cached_property
    def covariance(self) -> Floats:
        """Return the covariance of log times, log needs and switches, in this order."""
        count = len(self.responses)
        chances = departures(self.switches)
        effects = np.concatenate(
            [self._on_times(), self._on_needs(), np.eye(len(self.switches))], axis=1
        )
        variances = chances * (1 - chances)
        result = effects.T @ (variances[:, None] * effects)
        result[:count, :count] += prior_covariance(self.responses)
        result[count : 2 * count, count : 2 * count] += BIAS_SD**2
        return np.asarray(result)

    @cached_property
    def noise(self) -> Floats:
        """Return the variance of measurements around beliefs."""
        count = len(self.responses)
        return np.repeat([NOISE**2, self.sigma**2], count)

    @cached_property
    def log_room(self) -> Floats:
        """Return ln(card / need), as expected, of every plan."""
        needs = [one.allocated_gib + one.overhead_gib for one in self.responses]
        return np.asarray(math.log(self.card_gib) - np.log(needs) - self.bias)

    @cached_property
    def fits(self) -> Floats:
        """Return how likely each plan fits."""
        count = len(self.responses)
        variance = np.diag(self.covariance)[count : 2 * count] + self.sigma**2
        scaled = self.log_room / np.sqrt(variance)
        return np.array([normal_cdf(room) for room in scaled.tolist()])

    def _on_times(self) -> Floats:
        """Return the change of log times by every switch, (switches, plans)."""
        ratios = [
            [
                max(1 + one.slower.get(switch, 0.0), LEAST_RATIO)
                for one in self.responses
            ]
            for switch in self.switches
        ]
        return np.asarray(np.log(np.reshape(ratios, (-1, len(self.responses)))))

    def _on_needs(self) -> Floats:
        """Return the change of log needs by every switch, (switches, plans)."""
        needs = [one.allocated_gib + one.overhead_gib for one in self.responses]
        more = [
            [
                max(need + one.more_gib.get(switch, 0.0), LEAST_GIB) / need
                for one, need in zip(self.responses, needs, strict=True)
            ]
            for switch in self.switches
        ]
        return np.asarray(np.log(np.reshape(more, (-1, len(self.responses)))))


@dataclass(frozen=True)
class Quantities:
    """Quantities that decide: weighted sums of log times and log memory needs."""

    sums: Floats
    """(quantities, 2 x plans): coefficients of log times, then of log needs."""
    weights: Floats

    def variances(self, covariance: Floats, noise: Floats) -> Floats:
        """Return the variance of each, if it were measured."""
        inner = covariance[: len(noise), : len(noise)] + np.diag(noise)
        return np.asarray(np.einsum("qi,ij,qj->q", self.sums, inner, self.sums))


def decisions(
    prior: Prior, steps: Sequence[float], rivals: Sequence[int]
) -> Quantities:
    """Return the quantities that decide which plan is best, and which plans fit.

    They are the step times of the rivals relative to the fastest of them, its step
    time, and the memory needs of the rivals. Uncertain needs weigh most.
    """
    count = len(prior.responses)
    best = min(rivals, key=lambda index: steps[index])
    sums, weights = [], []
    for rival in rivals:
        time = np.zeros(2 * count)
        time[rival] = 1.0
        if rival != best:
            time[best] -= 1.0
        need = np.zeros(2 * count)
        need[count + rival] = 1.0
        doubt = 4 * prior.fits[rival] * (1 - prior.fits[rival])
        sums += [time, need]
        weights += [1.0, doubt]
    return Quantities(np.array(sums), np.array(weights))


def predictions(prior: Prior) -> Quantities:
    """Return the step times of all plans as the quantities that count."""
    count = len(prior.responses)
    return Quantities(np.eye(count, 2 * count), np.ones(count))


def choose(
    prior: Prior, wanted: Quantities, candidates: Sequence[int], count: int
) -> list[Choice]:
    """Return up to `count` candidates; each adds most to those before it.

    Of equal candidates the first is picked.
    """
    covariance, left, found = prior.covariance, list(candidates), list[Choice]()
    while left and len(found) < count:
        before = wanted.variances(covariance, prior.noise)
        after = [measured(prior, covariance, index) for index in left]
        nats = [
            float(wanted.weights @ np.log(before / wanted.variances(one, prior.noise)))
            for one in after
        ]
        place = int(np.argmax(np.round(nats, 9)))
        index = left.pop(place)
        told = _told(prior, covariance, after[place])
        fits = float(prior.fits[index])
        found.append(Choice(index, nats[place] / 2, fits, told))
        covariance = after[place]
    return found


def measured(prior: Prior, covariance: Floats, index: int) -> Floats:
    """Return the expected covariance after a plan was run."""
    count = len(prior.responses)
    fits = float(prior.fits[index])
    covariance = _conditioned(covariance, index, prior.noise[index], fits)
    need = count + index
    variance = covariance[need, need] + prior.noise[need]
    share = fits + (1 - fits) * _told_by_failure(
        float(prior.log_room[index] / math.sqrt(variance))
    )
    return _conditioned(covariance, need, prior.noise[need], share)


def _conditioned(covariance: Floats, index: int, noise: float, share: float) -> Floats:
    """Return a covariance after a measurement that gives a share of its information."""
    column = covariance[:, index]
    gain = share / (covariance[index, index] + noise)
    return np.asarray(covariance - gain * np.outer(column, column))


def _told_by_failure(scaled_room: float) -> float:
    """Return the share by which a variance falls once a value is known to pass a bound.

    The bound is in standard deviations from the mean.
    """
    if abs(scaled_room) > FAR:
        return 0.0 if scaled_room < 0 else 1.0
    hazard = _NORMAL.pdf(scaled_room) / (1 - normal_cdf(scaled_room))
    return hazard * (hazard - scaled_room)


MOST_TOLD = 3
LEAST_TOLD = 0.25
"""Share of its variance that a switch must lose to be named."""


def _told(prior: Prior, before: Floats, after: Floats) -> tuple[Alternative, ...]:
    first = 2 * len(prior.responses)
    lost = 1 - np.diag(after)[first:] / np.maximum(np.diag(before)[first:], 1e-12)
    order = np.argsort(-lost, kind="stable")[:MOST_TOLD]
    return tuple(prior.switches[i] for i in order if lost[i] > LEAST_TOLD)
