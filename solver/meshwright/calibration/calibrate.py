"""Calibrates to a user's own runs: first the switches, then the numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.calibration.code_base import CodeBase, code_base_of
from meshwright.calibration.step_times import MEASUREMENT_SD, prior_covariance
from meshwright.cost.profile import NOTHING, LeftOut, Measured, Profile
from meshwright.evidence.calibrate import calibrate as fit_numbers
from meshwright.evidence.memory_spread import with_calibrated_memory
from meshwright.evidence.price import Priced, price_runs
from meshwright.evidence.run import Run
from meshwright.plans.columns import Floats
from meshwright.spec.memory_spread import MemorySpread

NINE_IN_TEN = 1.645
ONE_IN_TWO = 0.6745
MEAN_SIZE = 0.798
"""Of the size of a normal error: its 90th percentile, its median and its mean, in
standard deviations."""


@dataclass(frozen=True)
class Bands:
    """How far measurements will lie from predictions, nine times in ten."""

    framework: str
    rows: int
    step_before: float
    """|ln(measured / predicted)| of the step time, of a plan like those that ran."""
    step_after: float
    memory_before: MemorySpread
    memory_after: MemorySpread


@dataclass(frozen=True)
class Calibration:
    """A profile of a user's own cluster, and what the runs told."""

    profile: Profile
    code_bases: dict[str, CodeBase]
    """By framework."""
    bands: tuple[Bands, ...]
    unpriced: tuple[tuple[Run, str], ...]
    has_times: bool
    """Whether some run has a step time; without one no efficiency is fitted."""
    over_full: tuple[Priced, ...] = ()
    """Runs whose peak is above the memory of their GPU."""


def calibrate(
    runs: list[Run], base: Profile, on_progress: Callable[[str], None] = lambda _: None
) -> Calibration:
    """Return the profile that fits a user's own runs, from that of `base` on.

    Switches that the runs do not say are found first, as hypotheses with their
    probabilities; then the efficiencies with the likely switches, and the spread of
    predicted memory.
    """
    on_progress(f"pricing {len(runs)} runs")
    priced, unpriced = price_runs(runs, base)
    sound = [p for p in priced if p.has_profile and not p.run.is_contradictory]
    on_progress("finding switches")
    found = {name: code_base_of(own, base) for name, own in _by_framework(sound)}
    profile = _with_switches(base, found)
    again, _ = price_runs([one.run for one in sound], profile)
    fitted = fit_numbers(again, profile, on_progress)
    fitted = with_calibrated_memory(fitted, again, base)
    after, _ = price_runs([one.run for one in sound], fitted)
    bands = tuple(
        _bands(name, own, base, fitted, _left_over(name, after))
        for name, own in found.items()
    )
    return Calibration(
        profile=_with_spreads(fitted, bands),
        code_bases=found,
        bands=bands,
        unpriced=tuple(unpriced),
        has_times=any(one.run.step_s for one in sound),
        over_full=tuple(one for one in sound if _is_over_full(one)),
    )


UNITS_APART = 1.1
"""Peaks in GB are so much above those in GiB, at most."""


def _is_over_full(one: Priced) -> bool:
    peak_gib = one.run.measured.peak_memory_gb or 0.0
    return peak_gib > UNITS_APART * one.spec.cluster.topology.gpu.memory_gib


def _by_framework(runs: Sequence[Priced]) -> list[tuple[str, list[Priced]]]:
    names = sorted({one.spec.framework for one in runs})
    return [(name, [o for o in runs if o.spec.framework == name]) for name in names]


def _with_switches(base: Profile, found: dict[str, CodeBase]) -> Profile:
    """Return a profile with the switches of each framework that are likely set."""
    switches = dict(base.switches)
    for name, own in found.items():
        if own.settings:
            switches[name] = {**switches.get(name, {}), **own.settings}
    return base.model_copy(update={"switches": switches})


def _bands(
    name: str, own: CodeBase, base: Profile, fitted: Profile, left_over: float
) -> Bands:
    before, after = step_spreads(own)
    return Bands(
        framework=name,
        rows=len(own.runs),
        step_before=NINE_IN_TEN * float(np.median(before)),
        step_after=max(NINE_IN_TEN * float(np.median(after)), left_over),
        memory_before=base.memory_spread(name),
        memory_after=fitted.memory_spread(name),
    )


def step_spreads(own: CodeBase) -> tuple[Floats, Floats]:
    """Return the spreads of the log time of every run, before and after calibration.

    They are standard deviations of one more measurement.
    """
    covariance = prior_covariance(own.responses)
    shifts, prior = own.switched.log_ratios(own.responses), own.switched.prior
    switched = prior @ shifts**2
    before = np.sqrt(np.diag(covariance) + switched + MEASUREMENT_SD**2)
    return before, own.spreads


def _left_over(framework: str, runs: Sequence[Priced]) -> float:
    """Return |ln(predicted / measured)| of runs after calibration, nine in ten.

    Where it is above what the spread lets expect, the runs are not what they are taken
    for, and no narrow band is honest.
    """
    errors = [
        abs(float(np.log(one.step_s / one.run.step_s)))
        for one in runs
        if one.run.step_s and one.spec.framework == framework
    ]
    return min(float(np.quantile(errors, 0.9)), LARGEST) if errors else 0.0


LARGEST = 10.0
"""Largest logarithm of an error that is told."""


def _with_spreads(profile: Profile, bands: Sequence[Bands]) -> Profile:
    """Return a profile whose classes without validation have the band of a step."""
    p90s = {own.framework: own.step_after for own in bands}
    measured = (
        one.model_copy(update={"left_out": _left_out(one, p90s[one.framework])})
        if one.left_out is None and one.framework in p90s
        else one
        for one in profile.measured
    )
    return profile.model_copy(update={"measured": tuple(measured)})


def _left_out(one: Measured, p90: float) -> LeftOut:
    spread = p90 / NINE_IN_TEN
    return LeftOut(
        rows=one.rows,
        mape=MEAN_SIZE * spread,
        median=ONE_IN_TWO * spread,
        p90=p90,
        parts=NOTHING,
    )
