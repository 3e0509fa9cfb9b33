"""Time and memory of runs with a switch set otherwise, or an efficiency moved.

The plans of a spec are priced together: once as they are, once for every other position
of every open switch, and once for every efficiency. All beliefs of calibration are
worked out from these numbers, without pricing again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from meshwright.check.check import predict_together
from meshwright.cost.job import Efficiency, make_job
from meshwright.cost.profile import Profile, RunClass
from meshwright.evidence.price import Priced
from meshwright.evidence.timed_runs import NAMES, Tangents, TimedRuns
from meshwright.frameworks.base.framework import Setting
from meshwright.frameworks.base.switches import SWITCH, SWITCHES
from meshwright.plans.columns import Bools, Floats
from meshwright.spec.spec import Spec

Alternative = tuple[str, Setting]
"""A switch and one of its positions."""


@dataclass(frozen=True)
class Response:
    """The prediction for one plan, and its changes with switches and efficiencies."""

    run_class: RunClass
    log_s: float
    """Logarithm of the predicted step time, with everything as it is believed."""
    slopes: Floats
    """d ln(step time) / d ln(efficiency), in the order of `timed_runs.NAMES`."""
    allocated_gib: float
    overhead_gib: float
    settings: dict[str, Setting | None]
    """The believed position of every switch that the run leaves open."""
    slower: dict[Alternative, float]
    """By switch and other position, the relative increase of the step time."""
    more_gib: dict[Alternative, float]
    """By switch and other position, the additional memory."""


LEAST_SHARE = 0.002
"""Least change of a step time or of memory that counts as one."""


def responses_of(runs: Sequence[Priced], profile: Profile) -> tuple[Response, ...]:
    """Return the responses of runs, priced at the efficiencies of a profile."""
    cases = TimedRuns(list(runs))
    classes = set(cases.classes)
    vendors = {
        run_class: profile.efficiency_of(run_class, "vendor") for run_class in classes
    }
    _, slopes = Tangents(cases, vendors).at({c: np.zeros(len(NAMES)) for c in classes})
    found: dict[int, Response] = {}
    for index in _of_one_spec(runs, cases.classes):
        run_class = cases.classes[index[0]]
        responses = _responses(
            [runs[i] for i in index],
            run_class,
            profile.user_time,
            vendors[run_class],
            slopes[index],
        )
        found |= zip(index, responses, strict=True)
    return tuple(found[i] for i in range(len(runs)))


def _of_one_spec(
    runs: Sequence[Priced], classes: Sequence[RunClass]
) -> list[list[int]]:
    """Return the indices of runs in groups of one spec, which says the same, and class.

    Specs cannot be hashed, so that each is compared with the first one of every group.
    """
    groups: list[list[int]] = []
    keys = [(c, one.said, one.spec) for c, one in zip(classes, runs, strict=True)]
    for i, key in enumerate(keys):
        for group in groups:
            if keys[group[0]] == key:
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


def _responses(
    runs: Sequence[Priced],
    run_class: RunClass,
    user_time: float,
    efficiency: Efficiency,
    slopes: Floats,
) -> list[Response]:
    """Return the responses of runs of one spec and class, whose slopes are known."""
    spec, said = runs[0].spec, runs[0].said
    believed = _priced(runs, spec, efficiency)
    settings = {one.name: one.of(spec) for one in SWITCHES if one.name not in said}
    moved = {
        (name, setting): _priced(runs, SWITCH[name].at(spec, setting), efficiency)
        for name, now in settings.items()
        for setting in SWITCH[name].allowed(spec)
        if setting != now
    }
    by_user = spec.training.tuned == "user"
    tuned: dict[Alternative, float] = {}
    if "tuned" in settings:
        tuned["tuned", "vendor" if by_user else "user"] = (
            1 / user_time - 1 if by_user else user_time - 1
        )
    responses = []
    for i, one in enumerate(believed):
        others = {alternative: prices[i] for alternative, prices in moved.items()}
        slower = {a: float(np.expm1(p.log_s - one.log_s)) for a, p in others.items()}
        responses.append(
            Response(
                run_class=run_class,
                log_s=one.log_s + (np.log(user_time) if by_user else 0.0),
                slopes=slopes[i],
                allocated_gib=one.allocated_gib,
                overhead_gib=one.overhead_gib,
                settings=settings,
                slower=slower | tuned,
                more_gib={
                    a: p.allocated_gib - one.allocated_gib for a, p in others.items()
                },
            )
        )
    return responses


class _Price(NamedTuple):
    """The predicted time and memory of a plan."""

    log_s: float
    allocated_gib: float
    overhead_gib: float


def _priced(runs: Sequence[Priced], spec: Spec, efficiency: Efficiency) -> list[_Price]:
    """Return the prices of the plans of runs under a spec."""
    prices = []
    plans = [one.plan for one in runs]
    for step_s, stages in predict_together(make_job(spec, efficiency), plans):
        fullest = max(stages, key=lambda stage: stage.total_gib)
        allocated_gib, whole_gib = fullest.allocated_gib, fullest.total_gib
        log_s = float(np.log(step_s))
        prices.append(_Price(log_s, allocated_gib, whole_gib - allocated_gib))
    return prices


def alternatives(responses: Sequence[Response]) -> tuple[Alternative, ...]:
    """Return the positions of open switches that change some prediction.

    No measurement tells anything about the others.
    """
    found: dict[Alternative, bool] = {}
    for one in responses:
        for alternative, share in one.slower.items():
            is_felt = (
                abs(share) > LEAST_SHARE
                or abs(one.more_gib[alternative]) > LEAST_SHARE * one.allocated_gib
            )
            found[alternative] = found.get(alternative, False) or is_felt
    return tuple(alternative for alternative, is_felt in found.items() if is_felt)


DEPARTURE = 0.1
"""Prior probability of every position of a switch that is not the believed one."""

RARE = {"attention": 0.02}
"""Probability of that for switches that nearly all code of today sets alike."""

MOST_DEPARTURES = 3
"""Most switches that a hypothesis sets otherwise."""

LEAST_RATIO = 0.3
"""Least share of its step time that a run takes with switches set otherwise."""

LEAST_GIB = 0.1
"""Least memory that a run needs with switches set otherwise."""

Probabilities = dict[str, dict[Setting, float]]
"""By switch and position."""


@dataclass(frozen=True)
class Hypotheses:
    """Sets of switches that are set otherwise, one a row; the first row has none."""

    alternatives: tuple[Alternative, ...]
    departs: Bools
    """(hypotheses, alternatives)."""

    @property
    def log_prior(self) -> Floats:
        """Return the logarithms of the prior probabilities, but for a constant."""
        chances = departures(self.alternatives)
        return np.asarray(self.departs @ np.log(chances / (1 - chances)))

    @property
    def prior(self) -> Floats:
        """Return the prior probabilities."""
        return normalised(self.log_prior)

    def log_ratios(self, runs: Sequence[Response]) -> Floats:
        """Return ln(step time / believed step time), (hypotheses, runs).

        Seconds that switches cost or save add up.
        """
        slower = [
            [one.slower.get(alternative, 0.0) for one in runs]
            for alternative in self.alternatives
        ]
        shares = self.departs @ np.array(slower).reshape(-1, len(runs))
        return np.asarray(np.log(np.maximum(1 + shares, LEAST_RATIO)))

    def allocated_gib(self, runs: Sequence[Response]) -> Floats:
        """Return the memory that PyTorch allocates, (hypotheses, runs)."""
        more = [
            [one.more_gib.get(alternative, 0.0) for one in runs]
            for alternative in self.alternatives
        ]
        believed = np.array([one.allocated_gib for one in runs])
        added = self.departs @ np.array(more).reshape(-1, len(runs))
        return np.asarray(np.maximum(believed + added, LEAST_GIB))

    def probabilities(self, weights: Floats) -> dict[Alternative, float]:
        """Return the probability of every alternative, given those of hypotheses."""
        return dict(
            zip(self.alternatives, (weights @ self.departs).tolist(), strict=True)
        )

    def likely(self, weights: Floats) -> int:
        """Return the hypothesis of which every switch is more likely than not."""
        wanted = weights @ self.departs > 0.5
        found = np.flatnonzero((self.departs == wanted).all(axis=1))
        return int(found[0]) if len(found) else int(np.argmax(weights))


def departures(alternatives: Sequence[Alternative]) -> Floats:
    """Return the prior probability of every alternative."""
    return np.array([RARE.get(name, DEPARTURE) for name, _ in alternatives])


def normalised(logs: Floats) -> Floats:
    """Return probabilities, given their logarithms but for a constant."""
    shares = np.exp(logs - logs.max())
    return np.asarray(shares / shares.sum())


def hypotheses(alternatives: Sequence[Alternative]) -> Hypotheses:
    """Return all hypotheses on some switches."""
    sets = list(_sets(alternatives))
    departs = np.zeros((len(sets), len(alternatives)), dtype=bool)
    for row, members in enumerate(sets):
        departs[row, list(members)] = True
    return Hypotheses(tuple(alternatives), departs)


def _sets(alternatives: Sequence[Alternative]) -> Iterator[tuple[int, ...]]:
    """Yield sets of alternatives with one position of each switch, small ones first."""
    for size in range(MOST_DEPARTURES + 1):
        for members in combinations(range(len(alternatives)), size):
            if len({alternatives[i][0] for i in members}) == size:
                yield members
