"""Fits efficiencies to measured runs: least squares on the logarithm of step time.

Log factors are pulled to none, so that three runs already help and do no harm. The
weight of a source is the square root of its number of runs, the loss grows linearly
from `gauss_newton.OUTLIER` on, and each source has a factor of its own on all its
times, which no prediction uses: neither a large source nor an outlier decides alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from meshwright.cost.hardware_efficiency import Efficiency
from meshwright.cost.profile import Profile, RunClass
from meshwright.evidence.gauss_newton import minimum
from meshwright.evidence.tangents import NAMES, Tangents, times_exp
from meshwright.evidence.timed_runs import TimedRuns
from meshwright.evidence.unknowns import (
    SITE,
    SOURCE,
    USER,
    USERS,
    Unknowns,
    unknowns,
)
from meshwright.plans.columns import Bools, Floats

NOISE = 0.1
"""Standard deviation of the log time of a run, where its source is known."""

LEAST_SOURCES = 3
"""Sources from which on each has a factor of its own."""

LEAST_HARMED = 10
"""Least runs of a source that a fit must not harm."""

MOST_HARM = 0.01
"""By how much a fit may raise the mean error of such a source."""

MOST_TRIES = 40
HEAVIER = 1.2
"""What multiplies the weight of a harmed source in the next try, and divides the spread
of its own factor."""

LEAST_EFFECT = 1e-3
"""Least effect of an identified parameter: the change of the logarithm of some step
time when the parameter changes by a factor of e."""


@dataclass(frozen=True)
class Factors:
    """Log factors on the efficiencies of a profile."""

    base: Profile
    unknowns: Unknowns
    values: Floats
    user_log: float
    """Of the time of users' runs, beside that of the profile."""

    def efficiency(self, run_class: RunClass) -> Efficiency:
        """Return the efficiency of a class, tuned by its vendor."""
        start = self.base.efficiency_of(run_class, "vendor")
        return times_exp(start, self.unknowns.place(run_class, self.values))

    def errors(self, cases: TimedRuns) -> Floats:
        """Return ln(predicted / measured) of every run."""
        found = cases.log_steps({c: self.efficiency(c) for c in set(cases.classes)})
        users_log = np.log(self.base.user_time) + self.user_log
        return np.asarray(found + users_log * cases.by_user - cases.log_measured)


class Fit:
    """The fit of a profile to runs, and fits without some of them.

    It remembers what it priced, so that a fit without some runs, which starts from the
    fit to all, prices little again.
    """

    def __init__(self, cases: TimedRuns, base: Profile) -> None:
        """Fit all runs."""
        self.cases, self.base = cases, base
        self.classes = sorted(set(cases.classes))
        self.sources = np.array([one.run.source_id for one in cases.runs])
        names = np.unique(self.sources).tolist()
        self._own = names if len(names) >= LEAST_SOURCES else []
        classes = np.array([" ".join(own) for own in cases.classes])
        self._unharmed = self.sources if self._own else classes
        self.unknowns = unknowns(self.classes, self._own, self._users())
        start = {c: base.efficiency_of(c, "vendor") for c in self.classes}
        self._tangents = Tangents(cases, start)
        nowhere = {c: np.zeros(len(NAMES)) for c in self.classes}
        log_steps, _ = self._tangents.at(nowhere)
        users = np.where(cases.by_user, USER, "").tolist()
        self._on_all = {
            SOURCE: self.unknowns.index_of(SOURCE, self.sources.tolist()),
            USER: self.unknowns.index_of(USER, users),
        }
        self._start = self.unknowns.means
        self._before = log_steps + self._logs(self._start) - cases.log_measured
        self._tries: Counter[str] = Counter()
        everything = np.ones(len(cases), dtype=bool)
        self._start, self._tries = self._harmless(self._tangents, everything)

    def _users(self) -> tuple[float, float] | None:
        """Return the prior of what multiplies the times of users' runs, if anything.

        Somebody's own runs are of one site; among publications, users are told from
        vendors.
        """
        if not self._own:
            return SITE if self.cases.by_user.any() else None
        return USERS if len(set(self.cases.by_user.tolist())) > 1 else None

    def before(self) -> Floats:
        """Return ln(predicted / measured) of every run under the base profile."""
        return np.asarray(self._before)

    def factors(self) -> Factors:
        """Return the factors that fit all runs best."""
        return self._factors(self._start)

    def factors_without(self, out: Bools) -> Factors:
        """Return the factors that fit best the runs that are not `out`."""
        values, _ = self._harmless(self._tangents.copy(), ~out)
        return self._factors(values)

    def unidentified(self, run_class: RunClass) -> tuple[str, ...]:
        """Return the parameters that the runs of a class do not identify."""
        place = self.unknowns.place(run_class, self._start)
        slopes = self._tangents.slopes(run_class, place)
        effect = np.abs(slopes).max(axis=0)
        return tuple(NAMES[i] for i in np.flatnonzero(effect < LEAST_EFFECT))

    def _factors(self, values: Floats) -> Factors:
        index = self.unknowns.index_of(USER, [USER])
        user_log = float(values[index[0]]) if index[0] >= 0 else 0.0
        return Factors(self.base, self.unknowns, values, user_log)

    def _harmless(self, tangents: Tangents, kept: Bools) -> tuple[Floats, Counter[str]]:
        """Return the unknowns that fit some runs best and harm no large source.

        Beside them, how often the weight of each source had to be raised for that. Of
        somebody's own runs no large class is harmed, for the sake of another one that
        shares its GPU or kernels.
        """
        tries, values = Counter(self._tries), self._start
        for _ in range(MOST_TRIES):
            values = self._minimum(tangents, kept, tries, values)
            harmed = self._harmed(tangents, kept, values)
            if not harmed:
                break
            tries.update(harmed)
        return values, tries

    def _harmed(self, tangents: Tangents, kept: Bools, values: Floats) -> list[str]:
        """Return the sources or classes whose mean error a fit raises too much."""
        log_steps, _ = tangents.at(self._places(values))
        after = log_steps + self._logs(values, USER) - self.cases.log_measured
        harm = np.abs(np.expm1(after)) - np.abs(np.expm1(self._before))
        names = np.unique(self._unharmed).tolist()
        runs_of = {name: kept & (self._unharmed == name) for name in names}
        return [
            name
            for name, own in runs_of.items()
            if own.sum() >= LEAST_HARMED and harm[own].mean() > MOST_HARM
        ]

    def _minimum(
        self, tangents: Tangents, kept: Bools, tries: Counter[str], start: Floats
    ) -> Floats:
        """Return the unknowns that fit some runs best, harmed sources weighing more."""
        weights = self._weights(kept, tries)
        heavier = np.array([HEAVIER ** tries[key[1]] for key in self.unknowns.keys])
        pulls, means = heavier / self.unknowns.spreads, self.unknowns.means

        def errors(moved: Floats) -> tuple[Floats, Floats]:
            return self._errors(tangents, means + moved)

        return means + minimum(errors, weights, pulls, start - means)

    def _errors(self, tangents: Tangents, values: Floats) -> tuple[Floats, Floats]:
        """Return errors with the factors of sources, and slopes by every unknown."""
        log_steps, by_efficiency = tangents.at(self._places(values))
        slopes = np.zeros((len(self.cases), len(values)))
        for run_class in self.classes:
            rows = self.cases.rows_of(run_class)
            slopes[rows] = self.unknowns.slopes(run_class, by_efficiency[rows])
        for index in self._on_all.values():
            (rows,) = np.nonzero(index >= 0)
            slopes[rows, index[rows]] = 1.0
        logs = self._logs(values, USER, SOURCE)
        return log_steps + logs - self.cases.log_measured, slopes

    def _logs(self, values: Floats, *parts: str) -> Floats:
        """Return what some parts add to the log time of every run."""
        logs = np.log(self.base.user_time) * self.cases.by_user
        for index in (self._on_all[part] for part in parts):
            logs = logs + np.where(index >= 0, values[index], 0.0)
        return np.asarray(logs)

    def _places(self, values: Floats) -> dict[RunClass, Floats]:
        return {c: self.unknowns.place(c, values) for c in self.classes}

    def _weights(self, kept: Bools, tries: Counter[str]) -> Floats:
        """Return the weight of every run, so that n runs of a source weigh sqrt(n).

        Where there are few sources every run weighs the same.
        """
        counts = Counter(self.sources[kept].tolist())
        power = 0.25 if self._own else 0.0
        weights = [
            HEAVIER ** tries[name] / max(counts[source], 1) ** power
            for source, name in zip(
                self.sources.tolist(), self._unharmed.tolist(), strict=True
            )
        ]
        return np.where(kept, weights, 0.0) / NOISE
