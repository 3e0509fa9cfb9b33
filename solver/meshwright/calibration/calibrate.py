"""Calibrates a profile to a user's runs or logs: the switches, then the numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.calibration.beliefs import (
    MEASUREMENT_SD,
    CodeBase,
    code_base_of,
    prior_covariance,
)
from meshwright.cost.profile import NOTHING, LeftOut, Measured, Profile
from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.evidence.fit import calibrate as fit_numbers
from meshwright.evidence.memory_spread import with_calibrated_memory
from meshwright.evidence.price import Priced, price_runs
from meshwright.evidence.runs import Run
from meshwright.evidence.scoreboard import profile_sections
from meshwright.frameworks.base.framework import Setting
from meshwright.imports.logs.training_log import TrainingLog, read_log
from meshwright.imports.text import read_text
from meshwright.loading.load import load_spec
from meshwright.loading.plan_text import pins_of_launch
from meshwright.plans.columns import Floats
from meshwright.plans.plan import Plan
from meshwright.plans.simplicity import combination
from meshwright.report.tables import Lines, Section, Table
from meshwright.spec.goals import MemorySpread
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec

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
    """A profile of a user's cluster, and the findings it rests on."""

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
    """Return the profile that fits a user's runs, starting from `base`.

    Switches that the runs do not say are found first, as hypotheses with their
    probabilities; then the efficiencies with the likely switches, and the spread of
    predicted memory.
    """
    on_progress(f"pricing {len(runs)} runs")
    priced, unpriced = price_runs(runs, base)
    sound = [one for one in priced if not one.run.is_contradictory]
    on_progress("finding switches")
    found = {
        name: code_base_of(members, base) for name, members in _by_framework(sound)
    }
    profile = _with_switches(base, found)
    again, _ = price_runs([one.run for one in sound], profile)
    agreeing = [one for one in again if found[one.spec.framework].helps]
    fitted = fit_numbers(agreeing, profile, on_progress)
    fitted = with_calibrated_memory(fitted, again, base)
    after, _ = price_runs([one.run for one in sound], fitted)
    bands = tuple(
        _bands(name, code_base, base, fitted, _left_over(name, after))
        for name, code_base in found.items()
    )
    ran = [(one.spec, one.plan) for one in sound if one.run.measured.fits is not False]
    return Calibration(
        profile=with_runs(_with_spreads(fitted, bands), ran),
        code_bases=found,
        bands=bands,
        unpriced=tuple(unpriced),
        has_times=any(one.run.step_s for one in sound),
        over_full=tuple(one for one in sound if _is_over_full(one)),
    )


def with_runs(profile: Profile, runs: Iterable[tuple[Spec, Plan]]) -> Profile:
    """Return a profile that knows the combinations of a user's runs.

    One run takes the doubt away: on this cluster it is what counts.
    """
    known = {name: Counter(counts) for name, counts in profile.run_before.items()}
    for spec, plan in runs:
        counts = known.setdefault(spec.framework, Counter())
        counts[combination(spec, plan)] += 1
    run_before = {name: dict(counts) for name, counts in known.items()}
    return profile.model_copy(update={"run_before": run_before})


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
    for name, code_base in found.items():
        if code_base.settings:
            switches[name] = {**switches.get(name, {}), **code_base.settings}
    return base.model_copy(update={"switches": switches})


def _bands(
    name: str, code_base: CodeBase, base: Profile, fitted: Profile, left_over: float
) -> Bands:
    before, after = step_spreads(code_base)
    return Bands(
        framework=name,
        rows=len(code_base.runs),
        step_before=NINE_IN_TEN * float(np.median(before)),
        step_after=max(NINE_IN_TEN * float(np.median(after)), left_over),
        memory_before=base.memory_spread(name),
        memory_after=fitted.memory_spread(name),
    )


def step_spreads(code_base: CodeBase) -> tuple[Floats, Floats]:
    """Return the spreads of the log time of every run, before and after calibration.

    They are standard deviations of one more measurement.
    """
    covariance = prior_covariance(code_base.responses)
    shifts, prior = (
        code_base.switched.log_ratios(code_base.responses),
        code_base.switched.prior,
    )
    switched = prior @ shifts**2
    before = np.sqrt(np.diag(covariance) + switched + MEASUREMENT_SD**2)
    return before, code_base.spreads


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
    p90s = {band.framework: band.step_after for band in bands}
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


SURE = 0.995
"""Probabilities above it, and so near to 0, are not told with more digits."""

ASTRAY = 0.4
"""Logarithm of an error from which on runs are not what they are taken for."""


def calibration_sections(found: Calibration) -> list[Section]:
    """Return the sections of a calibration."""
    parts: list[Section] = []
    for name, code_base in found.code_bases.items():
        parts.append(_switch_table(name, code_base))
        parts.append(Lines(f"Likely settings of {name}", tuple(_settings(code_base))))
    if found.bands:
        parts.append(_band_table(found.bands))
    if told := tuple(doubts(found)):
        parts.append(Lines("Doubtful runs", told))
    if found.has_times:
        parts += profile_sections(found.profile)
    else:
        none = "No run has a step time: efficiencies stay as they were."
        parts.append(Lines("Step times", (none,)))
    if unpriced := len(found.unpriced):
        left = f"{unpriced} runs; `meshwright evidence` lists them with the reason."
        parts.append(Lines("Not priced", (left,)))
    return parts


def _switch_table(name: str, code_base: CodeBase) -> Table:
    """Return the positions of each switch with their probabilities, likely ones first.

    Switches of which the runs tell most come first.
    """
    rows = [
        (
            switch,
            *(
                f"{word(setting)}: {_probability(probability)}"
                for setting, probability in _ordered(settings)[:2]
            ),
        )
        for switch, settings in sorted(
            code_base.probabilities.items(), key=lambda item: -max(item[1].values())
        )
    ]
    title = f"Switches of {name}, as these runs suggest"
    return Table(title, ("switch", "likely", "else"), tuple(rows))


def _ordered(settings: dict[Setting, float]) -> list[tuple[Setting, float]]:
    return sorted(settings.items(), key=lambda item: -item[1])


def _probability(probability: float) -> str:
    if probability > SURE:
        return "> 0.99"
    return "< 0.01" if probability < 1 - SURE else f"{probability:.2f}"


def word(setting: Setting) -> str:
    """Return a position as a spec writes it."""
    return str(setting).lower() if isinstance(setting, bool) else str(setting)


def _settings(code_base: CodeBase) -> Iterator[str]:
    left = code_base.left_out
    if left is not None and not code_base.helps:
        yield (
            f"The runs disagree: each left out in turn, step times come out "
            f"{left.after:.1%} off calibrated on the others, {left.before:.1%} "
            "without. They stay as they were: calibrate runs of one code base, and of "
            "one kind (with experts, adapters, long sequences), apart."
        )
        return
    if not code_base.settings:
        yield "No switch is likely to differ from what was assumed."
    for name, setting in code_base.settings.items():
        yield (
            f"training.{name}: {word(setting)}. The profile sets it where a spec "
            "does not say it."
        )


def _band_table(bands: tuple[Bands, ...]) -> Table:
    rows = tuple(
        (
            band.framework,
            str(band.rows),
            _within(band.step_before),
            _within(band.step_after),
            _memory(band.memory_before),
            _memory(band.memory_after),
        )
        for band in bands
    )
    heading = (
        "framework", "runs", "step before", "step after", "memory before",
        "memory after",
    )  # fmt: skip
    return Table(
        "Nine in ten measurements of such plans will lie within", heading, rows
    )


def doubts(found: Calibration) -> Iterator[str]:
    """Yield a doubt for every group of runs that no calibration explains."""
    for one in found.over_full:
        gpu, peak = one.spec.cluster.topology.gpu, one.run.measured.peak_memory_gb
        yield (
            f"{printable(one.run.id)}: peak_memory_gb: {peak:g} is more than a "
            f"{gpu.name} has, {gpu.memory_gib:g}: is it in GiB?"
        )
    for band in found.bands:
        if band.step_after > ASTRAY:
            yield (
                f"{band.framework}: runs are {math.expm1(band.step_after):.0%} off "
                "after calibration: are model, batch, GPUs and times (in seconds) "
                "those that ran?"
            )


def _within(log_error: float) -> str:
    return f"{math.exp(-log_error) - 1:+.0%} to {math.expm1(log_error):+.0%}"


def _memory(spread: MemorySpread) -> str:
    low, high = (spread.bias + sign * NINE_IN_TEN * spread.sigma for sign in (-1, 1))
    return f"{math.expm1(low):+.0%} to {math.expm1(high):+.0%}"


DMON = "nvidia_smi_dmon"


def read_logs(paths: Sequence[Path]) -> list[TrainingLog]:
    """Return what logs tell; output of `nvidia-smi dmon` adds to the log before it.

    Raises:
        SpecError: a file is no log that is known; names file and line.
    """
    found: list[TrainingLog] = []
    for path in paths:
        log = read_log(read_text(path), printable(str(path)))
        if log.kind == DMON and found:
            before = found.pop()
            log = replace(
                before,
                peaks=(*before.peaks, *log.peaks),
                notes=(*before.notes, *log.notes),
            )
        found.append(log)
    return found


def runs_of_logs(spec: str, paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Return logs as runs of a spec, and notes on what they leave open.

    The plan of a run is what its log tells; the rest is that of the spec, or chosen.

    Raises:
        SpecError: a log contradicts the spec, or tells no time, peak or outcome.
    """
    notes: list[str] = []
    question = load_spec(spec, notes=notes)
    runs = [
        _run(spec, question, log, f"{Path(log.launch.name).stem}-{number}", notes)
        for number, log in enumerate(read_logs(paths), start=1)
    ]
    return runs, notes


def _run(
    spec: str, question: Spec, log: TrainingLog, name: str, notes: list[str]
) -> Run:
    if not log.measured:
        told = "tells no time of a step, no peak of memory and no outcome"
        raise SpecError(f"{log.launch.name}: {told}")
    pins = pins_of_launch(log.launch, question, notes)
    plan: dict[str, Any] = pins.model_dump(mode="json", exclude_none=True)
    if log.measured == {"fits": False} and not plan and question.pins == Pins():
        # The best plan, which would be taken, did not run.
        told = "says no plan, and memory ran out; pin what ran in the spec"
        raise SpecError(f"{log.launch.name}: {told}")
    notes += [*log.notes, *(f"{log.launch.name}: {told}" for told in log.told())]
    fields: dict[str, Any] = {
        "id": name[-100:],
        "source_id": "logs",
        "spec": spec,
        "measured": log.measured,
    }
    return Run.model_validate({**fields, "plan": plan} if plan else fields)
