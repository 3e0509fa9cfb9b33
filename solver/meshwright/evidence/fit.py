"""Fits efficiencies to measured runs: robust least squares on the log of step time.

Log factors are pulled towards zero, so that three runs already help and do no harm. The
weight of a source is the square root of its number of runs. The loss grows linearly
from `OUTLIER` on. Each source has one more factor on all its times, which predictions
leave out. So neither a large source nor an outlier decides alone.

`calibrate` makes a profile of a fit, with its errors on runs that the fit has not seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.cost.job import Efficiency
from meshwright.cost.profile import LeftOut, Measured, Profile, RunClass
from meshwright.evidence.price import Priced
from meshwright.evidence.score import rankings
from meshwright.evidence.timed_runs import (
    NAMES,
    SITE,
    SOURCE,
    USER,
    USERS,
    Tangents,
    TimedRuns,
    Unknowns,
    times_exp,
    unknowns,
)
from meshwright.plans.columns import Bools, Floats

LEAST_ROWS_TO_VALIDATE = 9

LEAST_FACTOR = 1e-4
"""Logarithm below which a factor counts as one and is not written."""


def calibrate(
    priced: list[Priced],
    base: Profile | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
    workers: int = 1,
) -> Profile:
    """Return the profile that fits the runs.

    Runs without a consistent time are left out. Factors start from those of `base` and
    are pulled to them. Validation fits again for every source, or third of the runs,
    that is left out, on `workers` processes.
    """
    base = base or Profile()
    sound = [p for p in priced if p.run.step_s and not p.run.is_contradictory]
    cases = TimedRuns(sound)
    if not len(cases):
        return base
    on_progress(f"fitting {len(cases)} runs")
    fit = Fit(cases, base)
    unseen, parts = np.full(len(cases), np.nan), ""
    if len(cases) >= LEAST_ROWS_TO_VALIDATE:
        on_progress("fitting without each source in turn")
        unseen, parts = left_out_errors(fit, workers)
    return profile_of(fit, unseen, parts)


def profile_of(fit: Fit, unseen: Floats, parts: str) -> Profile:
    """Return a fit as a profile; `unseen` are errors of runs left out."""
    factors, before = fit.factors(), fit.before()
    after = factors.errors(fit.cases)
    measured = (
        _measured(run_class, fit, (before, after, unseen), parts)
        for run_class in fit.classes
    )
    found: dict[str, object] = {
        "measured": tuple(measured),
        "left_out": _summary(unseen, parts),
    }
    if parts:
        found["ranking"] = tuple(rankings(fit.cases.runs, unseen))
    return with_factors(fit.base, factors).model_copy(update=found)


def with_factors(base: Profile, factors: Factors) -> Profile:
    """Return a profile whose efficiencies are multiplied by fitted factors.

    It has no record of the runs that were fitted.
    """
    user_time = rounded(base.user_time * np.exp(factors.user_log))
    return Profile(
        gpus=_times(base.gpus, factors, "gpus"),
        kernels=_times(base.kernels, factors, "kernels"),
        frameworks=_times(base.frameworks, factors, "frameworks"),
        user_time=user_time,
        switches=base.switches,
        run_before=base.run_before,
        doubt=base.doubt,
        names_published=base.names_published,
    )


def _times(
    before: dict[str, dict[str, float]], factors: Factors, part: str
) -> dict[str, dict[str, float]]:
    """Return factors times fitted ones, without those that are one."""
    result = dict(before)
    for name, logs in factors.unknowns.factors(part, factors.values).items():
        moved = {p: value for p, value in logs.items() if abs(value) > LEAST_FACTOR}
        start = before.get(name, {})
        times = {p: rounded(start.get(p, 1) * np.exp(log)) for p, log in moved.items()}
        result[name] = {**start, **times}
    return result


def rounded(value: float) -> float:
    """Return a number as profiles have it, in which machines do not differ."""
    return float(f"{value:.4g}")


def left_out_errors(fit: Fit, workers: int) -> tuple[Floats, str]:
    """Return the error of every run under a fit without it, and what was left out."""
    from joblib import Parallel, delayed

    errors = np.empty(len(fit.cases))
    sources = np.unique(fit.sources)
    by_source = len(sources) >= LEAST_SOURCES
    folds = [fit.sources == source for source in sources]
    if not by_source:
        folds = list(_thirds(fit.cases))
    each = (delayed(errors_without)(fit, out) for out in folds)
    for out, fold_errors in zip(folds, Parallel(n_jobs=workers)(each), strict=True):
        errors[out] = fold_errors
    return errors, "a source" if by_source else "a third"


def errors_without(fit: Fit, out: Bools) -> Floats:
    """Return the errors of some runs under a fit to all others."""
    return fit.factors_without(out).errors(fit.cases.take(np.flatnonzero(out)))


def _thirds(cases: TimedRuns) -> Iterator[Bools]:
    order = np.argsort([one.run.id for one in cases.runs], kind="stable")
    for third in range(3):
        yield np.isin(np.arange(len(cases)), order[third::3])


def _measured(
    run_class: RunClass, fit: Fit, errors: tuple[Floats, Floats, Floats], parts: str
) -> Measured:
    """Return the quality of the fit to the runs of a class.

    `errors` has three rows: errors of all runs before the fit, after it, and under
    fits that left the run out.
    """
    rows = fit.cases.rows_of(run_class)
    before, after, unseen = (some[rows] for some in errors)
    sources = Counter(fit.sources[rows].tolist())
    return Measured(
        gpu=run_class.gpu,
        kernels=run_class.kernels,
        framework=run_class.framework,
        rows=len(rows),
        sources=dict(sorted(sources.items())),
        mape_before=_mape(before),
        mape_fitted=_mape(after),
        left_out=_summary(unseen, parts),
        unidentified=fit.unidentified(run_class),
    )


def _summary(errors: Floats, parts: str) -> LeftOut | None:
    if not parts:
        return None
    size = np.abs(errors)
    return LeftOut(
        rows=len(errors),
        mape=_mape(errors),
        median=rounded(float(np.median(size))),
        p90=rounded(float(np.quantile(size, 0.9))),
        parts=parts,
    )


def _mape(errors: Floats) -> float:
    return rounded(float(np.mean(np.abs(np.expm1(errors)))))


NOISE = 0.1
"""Standard deviation of the log time of a run, where its source is known."""

LEAST_SOURCES = 3
"""Number of sources from which on every source has a factor of its times."""

LEAST_HARMED = 10
"""Least runs of a source that a fit must not harm."""

MOST_HARM = 0.01
"""Most that a fit may raise the mean error of a source with so many runs."""

MOST_TRIES = 40
HEAVIER = 1.2
"""Factor on the weight of a harmed source in the next try; the spread of the source's
factor is divided by it."""

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
    """Log factor on the times of users' runs, over that of the profile."""

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

    It keeps the prices of runs, so that a fit without some runs, which starts from the
    fit to all, prices few runs again.
    """

    def __init__(self, cases: TimedRuns, base: Profile) -> None:
        """Fit all runs."""
        self.cases, self.base = cases, base
        self.classes = sorted(set(cases.classes))
        self.sources = np.array([one.run.source_id for one in cases.runs])
        names = np.unique(self.sources).tolist()
        self._with_factor = names if len(names) >= LEAST_SOURCES else []
        classes = np.array([" ".join(parts) for parts in cases.classes])
        self._unharmed = self.sources if self._with_factor else classes
        self.unknowns = unknowns(self.classes, self._with_factor, self._users())
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
        """Return the prior of the log factor on the times of users' runs, if any.

        The runs of one user are of one site; among publications, runs of users are
        distinguished from those of vendors.
        """
        if not self._with_factor:
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

        Also return how often the weight of each source had to be raised for that. In
        a fit to one user's runs, classes take the place of sources: no large class is
        harmed for the sake of another one that shares its GPU or kernels.
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
            for name, in_class in runs_of.items()
            if in_class.sum() >= LEAST_HARMED and harm[in_class].mean() > MOST_HARM
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
        """Return the sum of some log factors on the time of every run."""
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
        power = 0.25 if self._with_factor else 0.0
        weights = [
            HEAVIER ** tries[name] / max(counts[source], 1) ** power
            for source, name in zip(
                self.sources.tolist(), self._unharmed.tolist(), strict=True
            )
        ]
        return np.where(kept, weights, 0.0) / NOISE


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
