"""Fits efficiencies to measured runs: least squares on the logarithm of step time.

Each parameter is fitted as the logarithm of its ratio to the default, within its own
limits, and pulled to the default: a run that is 15 % off weighs as much as a parameter
that is e times its default. So three runs already help, and do no harm.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.check import row_of, split_of
from meshwright.cost.arrays import Floats
from meshwright.cost.efficiency import Efficiency
from meshwright.cost.price import Split, step_parts
from meshwright.cost.timing import time_costs
from meshwright.evidence.price import Priced
from meshwright.job import Job, make_job
from meshwright.profile import Fitted, Profile
from meshwright.skeleton import Skeletons

PULL = 0.15
"""Weight of a parameter's logarithm against one run's."""

FOLDS = 3
LEAST_ROWS_TO_VALIDATE = 9
MOST_EVALUATIONS = 25

LEAST_EFFECT = 1e-3
"""A parameter that moves no prediction by more, for a change by a factor of e, is not
identified."""

NAMES = tuple(Efficiency.model_fields)


@dataclass(frozen=True)
class _Case:
    """A run, ready to be priced at any efficiency."""

    run: Priced
    job: Job
    rows: Skeletons
    split: Split

    def log_step(self, efficiency: Efficiency) -> float:
        job = Job(self.job.spec, self.job.fabric, efficiency)
        parts = step_parts(self.rows, time_costs(job, self.rows), self.split)
        return float(np.log(sum(parts.values())))

    @property
    def log_measured(self) -> float:
        return float(np.log(self.run.run.step_s or np.nan))


def calibrate(
    priced: list[Priced],
    on_progress: Callable[[str], None] = lambda _: None,
    is_validating: bool = True,
) -> Profile:
    """Return a profile with one fit for every GPU and framework among the runs.

    Validation fits three times more, each time without a third of the runs.
    """
    groups: dict[tuple[str, str], list[Priced]] = defaultdict(list)
    for one in priced:
        if one.run.step_s and not one.run.is_contradictory:
            gpu = one.spec.cluster.topology.gpu.name
            groups[gpu, one.spec.framework].append(one)
    fits = []
    for (gpu, framework), runs in sorted(groups.items()):
        on_progress(f"fitting {gpu} with {framework} to {len(runs)} runs")
        cases = [_case(run) for run in runs]
        left_out = cross_validated(cases) if is_validating else None
        fits.append(_fitted(gpu, framework, cases, left_out))
    return Profile(profiles=tuple(fits))


def _case(run: Priced) -> _Case:
    job = make_job(run.spec)
    return _Case(run, job, row_of(job, run.plan)[0], split_of(run.plan))


def _fitted(
    gpu: str, framework: str, cases: list[_Case], left_out: float | None
) -> Fitted:
    ratios, unidentified = fit(cases)
    return Fitted(
        gpu=gpu,
        framework=framework,
        efficiency=efficiency_at(ratios),
        rows=len(cases),
        sources=dict(sorted(Counter(case.run.run.source_id for case in cases).items())),
        mape_before=_mape(_errors(cases, np.zeros(len(NAMES)))),
        mape_fitted=_mape(_errors(cases, ratios)),
        mape_cross_validated=left_out,
        unidentified=unidentified,
    )


def fit(cases: list[_Case]) -> tuple[Floats, tuple[str, ...]]:
    """Return log ratios to the defaults, and the parameters that stay there."""
    from scipy.optimize import least_squares

    def residuals(ratios: Floats) -> Floats:
        return np.concatenate([_errors(cases, ratios), PULL * ratios])

    found = least_squares(
        residuals,
        np.zeros(len(NAMES)),
        bounds=_limits(),
        diff_step=np.full(len(NAMES), 1e-3),
        max_nfev=MOST_EVALUATIONS,
    )
    effect = np.abs(np.asarray(found.jac)[: len(cases)]).max(axis=0)
    is_known = effect >= LEAST_EFFECT
    unknown = [NAMES[i] for i in np.flatnonzero(~is_known)]
    return np.where(is_known, found.x, 0.0), tuple(unknown)


def cross_validated(cases: list[_Case]) -> float | None:
    """Return the mean error on runs left out of the fit; None for a few runs."""
    if len(cases) < LEAST_ROWS_TO_VALIDATE:
        return None
    order = sorted(cases, key=lambda case: case.run.run.id)
    errors = []
    for fold in range(FOLDS):
        kept = [case for i, case in enumerate(order) if i % FOLDS != fold]
        errors.append(_errors(order[fold::FOLDS], fit(kept)[0]))
    return _mape(np.concatenate(errors))


def efficiency_at(ratios: Floats) -> Efficiency:
    """Return the efficiency at log ratios to the defaults."""
    default = Efficiency().model_dump()
    low, high = _ranges()
    values = np.array([default[name] for name in NAMES]) * np.exp(ratios)
    clipped = np.clip(values, low, high).tolist()
    return Efficiency(**dict(zip(NAMES, clipped, strict=True)))


def _errors(cases: list[_Case], ratios: Floats) -> Floats:
    """Return ln(predicted / measured) of every case."""
    efficiency = efficiency_at(ratios)
    return np.array([case.log_step(efficiency) - case.log_measured for case in cases])


def _mape(errors: Floats) -> float:
    return float(np.mean(np.abs(np.expm1(errors))))


def _ranges() -> tuple[Floats, Floats]:
    """Return the least and the most that each parameter may be."""
    schema = Efficiency.model_json_schema()["properties"]
    low = np.array([schema[name]["minimum"] for name in NAMES])
    return low, np.array([schema[name]["maximum"] for name in NAMES])


def _limits() -> tuple[Floats, Floats]:
    """Return the ranges as log ratios, a hair wider: the default may be on an end."""
    default = Efficiency().model_dump()
    values = np.array([default[name] for name in NAMES])
    low, high = _ranges()
    return np.log(low / values) - 1e-9, np.log(high / values) + 1e-9
