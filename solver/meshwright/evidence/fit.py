"""Fits efficiencies to measured runs: least squares on the logarithm of step time.

Each GPU and each framework has a factor on every parameter. Factors are fitted as
logarithms and pulled to one, so that three runs already help and do no harm. The weight
of a source is the square root of its number of runs, and the loss grows linearly from
`OUTLIER` on, so that neither a large source nor an outlier decides alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.cost.hardware_efficiency import Efficiency
from meshwright.cost.profile import Profile
from meshwright.evidence.timed_runs import RunClass, TimedRuns
from meshwright.plans.columns import Floats

NAMES = tuple(Efficiency.model_fields)

PULL = 0.3
"""Weight of a factor that is e times off one: that of one run that is 30 % off."""

OUTLIER = 0.25
"""Error, as a logarithm, from which on errors count linearly."""

STEP = 1e-3
"""Change of a logarithm by which derivatives are computed."""

MOST_EVALUATIONS = 8
TOLERANCE = 1e-3

LEAST_EFFECT = 1e-3
"""Least effect of an identified parameter: the change of the logarithm of some step
time when the parameter changes by a factor of e."""


@dataclass(frozen=True)
class Factors:
    """Log factors on the efficiencies of a profile, by GPU and by framework."""

    base: Profile
    gpus: dict[str, Floats] = field(default_factory=dict)
    frameworks: dict[str, Floats] = field(default_factory=dict)
    effects: dict[RunClass, Floats] = field(default_factory=dict)
    """By class, the largest effect of each parameter on the time of any of its runs."""

    def of(self, run_class: RunClass) -> Floats:
        """Return the log factors of a class; 0 for GPUs or frameworks without runs."""
        none = np.zeros(len(NAMES))
        return self.gpus.get(run_class[0], none) + self.frameworks.get(
            run_class[1], none
        )

    def efficiency(
        self, run_class: RunClass, moved: Floats | float = 0.0
    ) -> Efficiency:
        """Return the efficiency of a class, with `moved` added to its log factors."""
        factors = np.exp(self.of(run_class) + moved).tolist()
        base = self.base.efficiency_of(*run_class)
        return base.times(dict(zip(NAMES, factors, strict=True)))

    def unidentified(self, run_class: RunClass) -> tuple[str, ...]:
        """Return the parameters that the runs of a class do not identify."""
        effect = self.effects.get(run_class, np.zeros(len(NAMES)))
        return tuple(NAMES[i] for i in np.flatnonzero(effect < LEAST_EFFECT))


def fit(cases: TimedRuns, base: Profile) -> Factors:
    """Return the factors on the efficiencies of a profile that fit the runs best."""
    from scipy.optimize import least_squares

    problem = _Problem(cases, base)
    found = least_squares(
        problem.residuals,
        np.zeros(problem.size),
        jac=problem.jacobian,
        loss="soft_l1",
        f_scale=OUTLIER,
        max_nfev=MOST_EVALUATIONS,
        x_scale="jac",
        ftol=TOLERANCE,
        xtol=TOLERANCE,
    )
    factors = problem.factors(np.asarray(found.x))
    return replace(factors, effects=problem.effects(factors))


class _Problem:
    """The least-squares problem, over log factors of GPUs, then of frameworks."""

    def __init__(self, cases: TimedRuns, base: Profile) -> None:
        self.cases, self.base = cases, base
        self.classes = sorted(set(cases.classes))
        self.gpus = sorted({gpu for gpu, _ in self.classes})
        self.frameworks = sorted({framework for _, framework in self.classes})
        self.size = (len(self.gpus) + len(self.frameworks)) * len(NAMES)
        self.weights = _weights(one.run.source_id for one in cases.runs)
        columns = [self._columns(run_class) for run_class in cases.classes]
        self.columns = np.array(columns).reshape(len(cases), 2)

    def residuals(self, vector: Floats) -> Floats:
        """Return the weighted errors of runs, then the pull of factors to one."""
        errors = self.cases.errors(self._efficiencies(self.factors(vector)))
        return np.concatenate([errors * self.weights, PULL * vector])

    def jacobian(self, vector: Floats) -> Floats:
        """Return the derivatives of the residuals, by finite differences."""
        slopes = self._slopes(self.factors(vector)) * self.weights[:, None]
        result = np.zeros((len(self.cases) + self.size, self.size))
        rows = np.arange(len(self.cases))
        for parameter in range(len(NAMES)):
            for part in range(2):
                column = self.columns[:, part] + parameter
                result[rows, column] = slopes[:, parameter]
        result[len(rows) :] = PULL * np.eye(self.size)
        return result

    def factors(self, vector: Floats) -> Factors:
        """Return the factors that a vector holds."""
        parts = vector.reshape(-1, len(NAMES))
        gpus = dict(zip(self.gpus, parts, strict=False))
        frameworks = dict(zip(self.frameworks, parts[len(self.gpus) :], strict=True))
        return Factors(self.base, gpus, frameworks)

    def effects(self, factors: Factors) -> dict[RunClass, Floats]:
        """Return, by class, the largest effect of each parameter on any of its runs."""
        slopes = np.abs(self._slopes(factors))
        class_index = np.array([self.classes.index(c) for c in self.cases.classes])
        return {
            c: slopes[class_index == i].max(axis=0) for i, c in enumerate(self.classes)
        }

    def _slopes(self, factors: Factors) -> Floats:
        """Return d ln(step) / d ln(parameter) of every run, (runs, parameters)."""
        here = self.cases.errors(self._efficiencies(factors))
        slopes = np.empty((len(self.cases), len(NAMES)))
        for parameter in range(len(NAMES)):
            step = STEP * (np.arange(len(NAMES)) == parameter)
            there = self.cases.errors(self._efficiencies(factors, step))
            slopes[:, parameter] = (there - here) / STEP
        return slopes

    def _efficiencies(
        self, factors: Factors, moved: Floats | float = 0.0
    ) -> dict[RunClass, Efficiency]:
        return {
            run_class: factors.efficiency(run_class, moved)
            for run_class in self.classes
        }

    def _columns(self, run_class: RunClass) -> tuple[int, int]:
        """Return where the factors of a class start in the vector."""
        gpu, framework = (
            self.gpus.index(run_class[0]),
            self.frameworks.index(run_class[1]),
        )
        count = len(NAMES)
        return gpu * count, (len(self.gpus) + framework) * count


def _weights(sources: Iterable[str]) -> Floats:
    """Return the weight of every run, so that n runs of a source weigh sqrt(n).

    Runs of the smallest source weigh one each.
    """
    names = list(sources)
    counts = Counter(names)
    least = min(counts.values())
    return np.array([(least / counts[name]) ** 0.25 for name in names])
