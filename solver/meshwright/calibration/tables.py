"""A calibration as tables, and the part of a spec that says the same."""

from __future__ import annotations

import math
from collections.abc import Iterator

from meshwright.calibration.calibrate import NINE_IN_TEN, Bands, Calibration
from meshwright.calibration.code_base import CodeBase
from meshwright.escape import printable
from meshwright.evidence.tables import profile_sections
from meshwright.frameworks.base.switches import Setting
from meshwright.report.tables import Lines, Section, Table
from meshwright.spec.memory_spread import MemorySpread

SURE = 0.995
"""Probabilities above it, and so near to 0, are not told with more digits."""


ASTRAY = 0.4
"""Logarithm of an error from which on runs are not what they are taken for."""


def calibration_sections(found: Calibration) -> list[Section]:
    """Return the sections of a calibration."""
    parts: list[Section] = []
    for name, own in found.code_bases.items():
        parts.append(_switch_table(name, own))
        parts.append(Lines(f"Likely settings of {name}", tuple(_settings(own))))
    if found.bands:
        parts.append(_band_table(found.bands))
    if told := tuple(doubts(found)):
        parts.append(Lines("Hardly to be believed", told))
    if found.has_times:
        parts += profile_sections(found.profile)
    else:
        none = "No run has a step time: efficiencies stay as they were."
        parts.append(Lines("Step times", (none,)))
    if unpriced := len(found.unpriced):
        left = f"{unpriced} runs; `meshwright evidence` lists them with the reason."
        parts.append(Lines("Not priced", (left,)))
    return parts


def _switch_table(name: str, own: CodeBase) -> Table:
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
            own.probabilities.items(), key=lambda item: -max(item[1].values())
        )
    ]
    title = f"Switches of {name} that these runs could tell"
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


def _settings(own: CodeBase) -> Iterator[str]:
    if not own.settings:
        yield "No switch likely stands otherwise than was believed."
    for name, setting in own.settings.items():
        yield (
            f"training.{name}: {word(setting)}. The profile sets it where a spec "
            "does not say it."
        )


def _band_table(bands: tuple[Bands, ...]) -> Table:
    rows = tuple(
        (
            own.framework,
            str(own.rows),
            _within(own.step_before),
            _within(own.step_after),
            _memory(own.memory_before),
            _memory(own.memory_after),
        )
        for own in bands
    )
    heading = (
        "framework", "runs", "step before", "step after", "memory before",
        "memory after",
    )  # fmt: skip
    return Table(
        "Nine in ten measurements of such plans will lie within", heading, rows
    )


def doubts(found: Calibration) -> Iterator[str]:
    """Yield what is to be said of runs that no calibration explains."""
    for one in found.over_full:
        gpu, peak = one.spec.cluster.topology.gpu, one.run.measured.peak_memory_gb
        yield (
            f"{printable(one.run.id)}: peak_memory_gb: {peak:g} is more than a "
            f"{gpu.name} has, {gpu.memory_gib:g}: is it in GiB?"
        )
    for own in found.bands:
        if own.step_after > ASTRAY:
            yield (
                f"{own.framework}: runs are {math.expm1(own.step_after):.0%} off after "
                "calibration: are model, batch, GPUs and times (in seconds) those "
                "that ran?"
            )


def _within(log_error: float) -> str:
    return f"{math.exp(-log_error) - 1:+.0%} to {math.expm1(log_error):+.0%}"


def _memory(spread: MemorySpread) -> str:
    low, high = (spread.bias + sign * NINE_IN_TEN * spread.sigma for sign in (-1, 1))
    return f"{math.expm1(low):+.0%} to {math.expm1(high):+.0%}"
