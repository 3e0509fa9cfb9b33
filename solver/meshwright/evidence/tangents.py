"""Step times of runs at many efficiencies, priced seldom and extrapolated otherwise.

A fit prices the same runs hundreds of times at efficiencies that hardly differ, and the
logarithm of a step time is smooth in the logarithms of efficiencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost.hardware_efficiency import Efficiency
from meshwright.cost.profile import RunClass
from meshwright.evidence.timed_runs import TimedRuns
from meshwright.plans.columns import Floats

NAMES = tuple(Efficiency.model_fields)

CLOSE = 0.02
"""Change of a log step time up to which step times follow their tangent."""

FAR = 0.15
"""Change of a log step time from which on derivatives are computed again."""

STEP = 1e-3
"""Change of a logarithm by which derivatives are computed."""


def times_exp(base: Efficiency, log_factors: Floats) -> Efficiency:
    """Return an efficiency times factors, given as logarithms in the order of NAMES."""
    return base.times(dict(zip(NAMES, np.exp(log_factors).tolist(), strict=True)))


@dataclass(frozen=True)
class _Tangent:
    """Log step times of the runs of a class, priced at one place."""

    place: Floats
    log_steps: Floats
    slopes_place: Floats
    slopes: Floats
    """d ln(step) / d ln(efficiency), (runs, parameters)."""

    def change(self, one: Floats, other: Floats) -> float:
        """Return about how much some log step time changes between two places."""
        return float((np.abs(self.slopes) @ np.abs(one - other)).max())


class Tangents:
    """Log step times of runs as functions of the log factors of their classes."""

    def __init__(self, cases: TimedRuns, base: Mapping[RunClass, Efficiency]) -> None:
        """Price nothing yet; `base` has the efficiency of each class at no factors."""
        self.cases, self._base = cases, base
        self._rows = {c: cases.rows_of(c) for c in base}
        self._cases_of = {c: cases.take(rows) for c, rows in self._rows.items()}
        self._found: dict[RunClass, _Tangent] = {}

    def copy(self) -> Tangents:
        """Return a copy that remembers what was priced, and moves on its own."""
        result = object.__new__(Tangents)
        result.__dict__.update(self.__dict__)
        result._found = dict(self._found)
        return result

    def at(self, places: Mapping[RunClass, Floats]) -> tuple[Floats, Floats]:
        """Return the log step times of all runs, and their slopes."""
        log_steps = np.empty(len(self.cases))
        slopes = np.empty((len(self.cases), len(NAMES)))
        for run_class, place in places.items():
            found = self._found[run_class] = self._near(run_class, place)
            rows = self._rows[run_class]
            log_steps[rows] = found.log_steps + found.slopes @ (place - found.place)
            slopes[rows] = found.slopes
        return log_steps, slopes

    def slopes(self, run_class: RunClass, place: Floats) -> Floats:
        """Return the slopes of the runs of a class, (runs, parameters)."""
        return self._near(run_class, place).slopes

    def _near(self, run_class: RunClass, place: Floats) -> _Tangent:
        found = self._found.get(run_class)
        if found is None or found.change(found.slopes_place, place) > FAR:
            return self._priced(run_class, place)
        if found.change(found.place, place) > CLOSE:
            log_steps = self._log_steps(run_class, place)
            return replace(found, place=place, log_steps=log_steps)
        return found

    def _priced(self, run_class: RunClass, place: Floats) -> _Tangent:
        here = self._log_steps(run_class, place)
        steps = STEP * np.eye(len(NAMES))
        there = [self._log_steps(run_class, place + step) for step in steps]
        slopes = (np.stack(there, axis=1) - here[:, None]) / STEP
        return _Tangent(place, here, place, slopes)

    def _log_steps(self, run_class: RunClass, place: Floats) -> Floats:
        efficiency = times_exp(self._base[run_class], place)
        return self._cases_of[run_class].log_steps({run_class: efficiency})
