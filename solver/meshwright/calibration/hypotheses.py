"""Hypotheses: which switches of a code base stand otherwise than is believed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from meshwright.calibration.responses import Alternative, Response
from meshwright.frameworks.base.switches import Setting
from meshwright.plans.columns import Bools, Floats

DEPARTURE = 0.1
"""Prior probability of every position of a switch that is not the believed one."""

RARE = {"attention": 0.02}
"""That of switches which hardly any code has otherwise today."""

MOST_DEPARTURES = 3
"""Switches that may stand otherwise together."""

LEAST_RATIO = 0.3
"""Least share of its step time that a run takes with switches set otherwise."""

LEAST_GIB = 0.1
"""Least memory that a run needs with switches set otherwise."""

Probabilities = dict[str, dict[Setting, float]]
"""By switch and position."""


@dataclass(frozen=True)
class Hypotheses:
    """Sets of switches that stand otherwise, one a row; the first has none."""

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
            [one.slower.get(own, 0.0) for one in runs] for own in self.alternatives
        ]
        shares = self.departs @ np.array(slower).reshape(-1, len(runs))
        return np.asarray(np.log(np.maximum(1 + shares, LEAST_RATIO)))

    def allocated_gib(self, runs: Sequence[Response]) -> Floats:
        """Return the memory that PyTorch allocates, (hypotheses, runs)."""
        more = [
            [one.more_gib.get(own, 0.0) for one in runs] for own in self.alternatives
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
