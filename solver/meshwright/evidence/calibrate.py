"""Fits a profile to measured runs, and validates it on runs that were left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from meshwright.cost.profile import LeftOut, Measured, Profile
from meshwright.evidence.fit import NAMES, Factors, fit
from meshwright.evidence.price import Priced
from meshwright.evidence.timed_runs import RunClass, TimedRuns
from meshwright.plans.columns import Floats, Ints

LEAST_ROWS_TO_VALIDATE = 9
LEAST_SOURCES = 3
"""Sources from which on one is left out at a time; with fewer, a third of the runs."""

LEAST_FACTOR = 1e-4
"""Logarithm below which a factor counts as one and is not written."""


def calibrate(
    priced: list[Priced],
    base: Profile | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
    workers: int = 1,
) -> Profile:
    """Return the profile that fits the runs.

    Runs without a consistent time are left out, as are those of code bases without a
    profile. Factors start from those of `base` and are pulled to them. Validation fits
    again for every source, or third of the runs, that is left out, on `workers`
    processes.
    """
    base = base or Profile()
    sound = [p for p in priced if p.run.step_s and not p.run.is_contradictory]
    cases = TimedRuns([p for p in sound if p.has_profile])
    if not len(cases):
        return base
    on_progress(f"fitting {len(cases)} runs")
    factors = fit(cases, base)
    unseen, parts = np.full(len(cases), np.nan), ""
    if len(cases) >= LEAST_ROWS_TO_VALIDATE:
        on_progress("fitting without each source in turn")
        unseen, parts = left_out_errors(cases, base, workers)
    return profile_of(cases, factors, unseen, parts)


def profile_of(
    cases: TimedRuns, factors: Factors, unseen: Floats, parts: str
) -> Profile:
    """Return fitted factors as a profile; `unseen` are errors of runs left out."""
    base, classes = factors.base, sorted(set(cases.classes))
    measured = (
        _measured(run_class, cases, factors, unseen, parts) for run_class in classes
    )
    return Profile(
        gpus=_times(base.gpus, factors.gpus),
        frameworks=_times(base.frameworks, factors.frameworks),
        measured=tuple(measured),
        left_out=_summary(unseen, parts),
    )


def _times(
    before: dict[str, dict[str, float]], log_factors: dict[str, Floats]
) -> dict[str, dict[str, float]]:
    """Return factors times fitted ones, without those that are one."""
    result = dict(before)
    for name, logs in log_factors.items():
        factors = dict(before.get(name, {}))
        for parameter, value in zip(NAMES, logs, strict=True):
            if abs(value) > LEAST_FACTOR:
                factors[parameter] = float(
                    f"{factors.get(parameter, 1) * np.exp(value):.4g}"
                )
        result[name] = factors
    return result


def left_out_errors(
    cases: TimedRuns, base: Profile, workers: int
) -> tuple[Floats, str]:
    """Return the error of every run under a fit without it, and what was left out."""
    from joblib import Parallel, delayed

    errors = np.empty(len(cases))
    sources = sorted({one.run.source_id for one in cases.runs})
    by_source = len(sources) >= LEAST_SOURCES
    folds = list(_sources(cases, sources) if by_source else _thirds(cases))
    each = (delayed(_errors_without)(cases, base, out) for out in folds)
    for out, fold_errors in zip(folds, Parallel(n_jobs=workers)(each), strict=True):
        errors[out] = fold_errors
    return errors, "a source" if by_source else "a third"


def _errors_without(cases: TimedRuns, base: Profile, out: Ints) -> Floats:
    """Return the errors of some runs under a fit to all others."""
    kept = np.setdiff1d(np.arange(len(cases)), out)
    factors, left_out = fit(cases.take(kept), base), cases.take(out)
    return left_out.errors({c: factors.efficiency(c) for c in left_out.classes})


def _sources(cases: TimedRuns, sources: list[str]) -> Iterator[Ints]:
    names = np.array([one.run.source_id for one in cases.runs])
    for source in sources:
        yield np.flatnonzero(names == source)


def _thirds(cases: TimedRuns) -> Iterator[Ints]:
    order = np.argsort([one.run.id for one in cases.runs], kind="stable")
    for third in range(3):
        yield order[third::3]


def _measured(
    run_class: RunClass, cases: TimedRuns, factors: Factors, unseen: Floats, parts: str
) -> Measured:
    index = np.array([i for i, c in enumerate(cases.classes) if c == run_class])
    runs = cases.take(index)
    start = factors.base.efficiency_of(*run_class)
    before, after = (
        runs.errors({run_class: e}) for e in (start, factors.efficiency(run_class))
    )
    return Measured(
        gpu=run_class[0],
        framework=run_class[1],
        rows=len(runs),
        sources=dict(sorted(Counter(p.run.source_id for p in runs.runs).items())),
        mape_before=_mape(before),
        mape_fitted=_mape(after),
        left_out=_summary(unseen[index], parts),
        unidentified=factors.unidentified(run_class),
    )


def _summary(errors: Floats, parts: str) -> LeftOut | None:
    if not parts:
        return None
    size = np.abs(errors)
    return LeftOut(
        rows=len(errors),
        mape=_mape(errors),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        parts=parts,
    )


def _mape(errors: Floats) -> float:
    return float(np.mean(np.abs(np.expm1(errors))))
