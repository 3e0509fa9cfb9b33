"""One code base: what its runs tell of its switches, of step times and of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.calibration.hypotheses import (
    Hypotheses,
    Probabilities,
    hypotheses,
    normalised,
)
from meshwright.calibration.peaks import memory_likelihood
from meshwright.calibration.responses import (
    Response,
    alternatives,
    responses_of,
)
from meshwright.calibration.step_times import StepTimes, believed_times
from meshwright.cost.profile import Profile
from meshwright.evidence.price import Priced
from meshwright.frameworks.base.switches import SWITCH, Setting
from meshwright.plans.columns import Floats


@dataclass(frozen=True)
class CodeBase:
    """What is believed of one framework, as a site has it, after some runs."""

    runs: tuple[Priced, ...]
    """Measured runs, then others whose predictions are asked for."""
    responses: tuple[Response, ...]
    switched: Hypotheses
    weights: Floats
    """The probability of every hypothesis."""
    times: StepTimes

    @cached_property
    def likely(self) -> int:
        """Return the hypothesis of which every switch is more likely than not."""
        return self.switched.likely(self.weights)

    @property
    def settings(self) -> dict[str, Setting]:
        """Return the switches that likely stand otherwise than was believed."""
        departs = self.switched.departs[self.likely]
        found = zip(self.switched.alternatives, departs.tolist(), strict=True)
        return {name: setting for (name, setting), is_set in found if is_set}

    @property
    def probabilities(self) -> Probabilities:
        """Return the probability of every position of the switches that matter."""
        found = self.switched.probabilities(self.weights)
        result: Probabilities = {}
        for (name, setting), probability in found.items():
            result.setdefault(name, {})[setting] = probability
        for name, own in result.items():
            others = [one for one in SWITCH[name].settings if one not in own]
            believed = self._believed(name)
            if believed is None and len(others) == 1:
                believed = others[0]
            if believed is not None and believed not in own:
                own[believed] = 1 - math.fsum(own.values())
        return result

    @property
    def log_steps(self) -> Floats:
        """Return the logarithm of the step time of every run, as it is likely."""
        believed = np.array([one.log_s for one in self.responses])
        return np.asarray(believed + self.times.means[self.likely])

    @property
    def spreads(self) -> Floats:
        """Return the standard deviation of the log time of every run, if repeated."""
        return self.times.spread(self.weights, self.likely)

    def _believed(self, name: str) -> Setting | None:
        positions = (one.settings.get(name) for one in self.responses)
        return next((own for own in positions if own is not None), None)


def code_base(
    runs: Sequence[Priced],
    responses: Sequence[Response],
    measured: int,
    profile: Profile,
) -> CodeBase:
    """Return what the first `measured` runs of a framework tell of all of them."""
    switched = hypotheses(alternatives(responses))
    seen, prior = runs[:measured], profile.memory_spread(runs[0].spec.framework)
    logs = switched.log_prior
    logs = logs + memory_likelihood(seen, responses[:measured], switched, prior)
    log_measured = np.full(len(runs), np.nan)
    log_measured[:measured] = [np.log(one.run.step_s or np.nan) for one in seen]
    times = believed_times(responses, log_measured, switched, logs)
    return CodeBase(
        runs=tuple(runs),
        responses=tuple(responses),
        switched=switched,
        weights=normalised(logs + times.log_likelihood),
        times=times,
    )


def code_base_of(runs: Sequence[Priced], profile: Profile) -> CodeBase:
    """Return what the measured runs of one framework tell of it."""
    return code_base(runs, responses_of(runs, profile), len(runs), profile)
