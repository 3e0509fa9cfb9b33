"""Fits a profile to measured runs, and validates it on runs that were left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from meshwright.cost.profile import LeftOut, Measured, Profile, RunClass
from meshwright.evidence.fit import LEAST_SOURCES, Factors, Fit
from meshwright.evidence.price import Priced
from meshwright.evidence.ranking import rankings
from meshwright.evidence.timed_runs import TimedRuns
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

    It says nothing of the runs that were fitted.
    """
    user_time = _rounded(base.user_time * np.exp(factors.user_log))
    return Profile(
        gpus=_times(base.gpus, factors, "gpus"),
        kernels=_times(base.kernels, factors, "kernels"),
        frameworks=_times(base.frameworks, factors, "frameworks"),
        user_time=user_time,
        switches=base.switches,
    )


def _times(
    before: dict[str, dict[str, float]], factors: Factors, part: str
) -> dict[str, dict[str, float]]:
    """Return factors times fitted ones, without those that are one."""
    result = dict(before)
    for name, logs in factors.unknowns.factors(part, factors.values).items():
        moved = {p: value for p, value in logs.items() if abs(value) > LEAST_FACTOR}
        start = before.get(name, {})
        times = {p: _rounded(start.get(p, 1) * np.exp(log)) for p, log in moved.items()}
        result[name] = {**start, **times}
    return result


def _rounded(value: float) -> float:
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
    """Return how well the runs of a class are fitted.

    `errors` are those of all runs before, after, and under fits without them.
    """
    own = fit.cases.rows_of(run_class)
    before, after, unseen = (some[own] for some in errors)
    sources = Counter(fit.sources[own].tolist())
    return Measured(
        gpu=run_class.gpu,
        kernels=run_class.kernels,
        framework=run_class.framework,
        rows=len(own),
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
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        parts=parts,
    )


def _mape(errors: Floats) -> float:
    return float(np.mean(np.abs(np.expm1(errors))))
