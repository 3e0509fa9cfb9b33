"""Training runs with failures at random: Daly's model, drawn instead of averaged.

Work goes on in segments, each an interval and the stall of its checkpoint. A failure
loses the segment so far, and restarting may fail too (Daly 2006, section 3).
"""

from __future__ import annotations

import numpy as np

from meshwright.economics.checkpoint_interval import goodput
from meshwright.economics.failures import failures, restart_s
from meshwright.economics.planned_run import PlannedRun
from meshwright.plans.columns import Floats, Ints
from meshwright.results.simulation import FailedRuns
from meshwright.simulation.spread import spread
from meshwright.spec.units import DAY_S, HOUR_S

MOST_LOST = 20_000_000
"""Most failures that are drawn, in all samples together."""


def failed_runs(
    run: PlannedRun, days: float, samples: int, rng: np.random.Generator
) -> FailedRuns | None:
    """Return what failures do to runs of some useful days.

    None if the spec does not say how often GPUs fail or how checkpoints are written,
    or where failures leave nothing to speak of.
    """
    told, asked = failures(run), run.asked.checkpoint
    if told is None or asked is None or told.interval_s is None:
        return None
    stall_s, write_s = told.stall_s or 0.0, told.write_s or 0.0
    mtbf_s, again_s = told.mtbf_hours * HOUR_S, restart_s(asked, write_s)
    segments = max(round(days * DAY_S / told.interval_s), 1)
    segment_s = told.interval_s + stall_s
    expected = segments * np.expm1(min((segment_s + again_s) / mtbf_s, 700.0))
    if expected * samples > MOST_LOST:
        return None
    lost = _failed(rng, np.full(samples, segments), segment_s, mtbf_s)
    failed = _failed(rng, lost.count, again_s, mtbf_s)
    whole_s = segments * segment_s + lost.seconds
    whole_s = whole_s + lost.count * again_s + failed.seconds
    useful_s = segments * told.interval_s
    return FailedRuns(
        days=useful_s / DAY_S,
        mtbf_hours=told.mtbf_hours,
        interval_s=told.interval_s,
        failures=spread((lost.count + failed.count).astype(np.float64)),
        goodput=spread(useful_s / whole_s),
        expected_goodput=goodput(told.interval_s, stall_s, again_s, mtbf_s),
    )


class _Failed:
    """Failures before some tries of equal length have all gone well, (samples,)."""

    def __init__(self, count: Ints, seconds: Floats) -> None:
        self.count, self.seconds = count, seconds


def _failed(
    rng: np.random.Generator, tries: Ints, try_s: float, mtbf_s: float
) -> _Failed:
    """Return the failed tries and their seconds; a try ends at its failure."""
    goes_well = float(np.exp(-try_s / mtbf_s))
    some = np.maximum(tries, 1)
    count = np.where(tries > 0, rng.negative_binomial(some, goes_well), 0)
    count = count.astype(np.int64)
    which = np.repeat(np.arange(len(tries)), count)
    early = rng.random(len(which)) * (1 - goes_well)
    seconds = -mtbf_s * np.log1p(-early)
    lost_s = np.bincount(which, weights=seconds, minlength=len(tries))
    return _Failed(count, lost_s.astype(np.float64))
