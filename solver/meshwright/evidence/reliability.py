"""Whether stated probabilities of fitting come true: stated against observed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.evidence.memory_spread import memory_rows
from meshwright.evidence.price import Priced

DECILES = 10


@dataclass(frozen=True)
class Decile:
    """The runs that were said to fit with a probability between two tenths."""

    low: float
    high: float
    rows: int
    """Runs of which it is known whether they ran."""
    stated: float | None
    """Mean of the probabilities that were stated; None where there are no runs."""
    ran: float | None
    """Share of the runs that did run."""
    peaks_below: float | None
    """Share of measured peaks that are said to lie below with the probability `high`
    and do, which is `high` where the spread is right; None without peaks."""


def reliability(priced: Sequence[Priced]) -> tuple[Decile, ...]:
    """Return stated probabilities of fitting against what was observed, by decile.

    Most runs that are published ran, also of those that were unlikely to: peaks, which
    say how much was needed, are the better test.
    """
    known = [one for one in priced if one.run.measured.fits is not None]
    stated = np.array([one.fit_probability for one in known])
    ran = np.array([one.run.measured.fits is True for one in known])
    place = np.minimum((stated * DECILES).astype(np.int64), DECILES - 1)
    ranks = np.array(_peak_ranks(priced))
    result = []
    for decile in range(DECILES):
        own, high = place == decile, (decile + 1) / DECILES
        result.append(
            Decile(
                low=decile / DECILES,
                high=high,
                rows=int(own.sum()),
                stated=float(stated[own].mean()) if own.any() else None,
                ran=float(ran[own].mean()) if own.any() else None,
                peaks_below=float(np.mean(ranks <= high)) if len(ranks) else None,
            )
        )
    return tuple(result)


def _peak_ranks(priced: Iterable[Priced]) -> list[float]:
    """Return, for each measured peak, how likely a need was said to be below it."""
    rows = memory_rows(priced)
    return [
        one.spec.memory_spread.fit_probability(float(np.exp(value)), 1.0)
        for one, is_peak, value in zip(rows.runs, rows.is_peak, rows.value, strict=True)
        if is_peak
    ]
