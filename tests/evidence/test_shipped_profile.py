"""The profile that ships does no harm to the runs that it has seen.

The gate looks at some runs of each source, `--all` at every run.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from benchmarks.runs_of import STRONG, UNFITTED

from meshwright import DEFAULT_PROFILE
from meshwright.cost.profile import Profile, load_profile
from meshwright.evidence.fit import LEAST_HARMED, MOST_HARM
from meshwright.evidence.price import Priced, price_runs
from meshwright.evidence.runs import Run
from meshwright.evidence.timed_runs import TimedRuns
from tests.evidence.test_runs import shipped
from tests.helpers.extent import gate

ROUNDING = 0.002
"""Of factors, which files keep to four digits."""


def mean_errors(cases: TimedRuns, profile: Profile) -> dict[str, float]:
    """Return the mean error of step time by source, of sources with enough runs."""
    errors = np.abs(np.expm1(cases.errors(profile)))
    sources = np.array([one.run.source_id for one in cases.runs])
    names, counts = np.unique(sources, return_counts=True)
    return {
        name: float(errors[sources == name].mean())
        for name, count in zip(names.tolist(), counts, strict=True)
        if count >= LEAST_HARMED
    }


def runs_of_sources(most: int | None) -> list[Priced]:
    """Return priced runs of all sources: about so many of each, evenly spread."""
    by_source: dict[str, list[Run]] = {}
    for run in shipped(STRONG):
        by_source.setdefault(run.source_id, []).append(run)
    few = [
        run
        for runs in by_source.values()
        for run in runs[:: max(1, len(runs) // most) if most else 1]
    ]
    priced, _ = price_runs(few)
    return [one for one in priced if one.run.step_s and not one.run.is_contradictory]


@pytest.mark.slow
def test_no_source_is_worse_off_than_without_it() -> None:
    cases = TimedRuns(
        [p for p in runs_of_sources(gate(40, everything=None)) if p.has_profile]
    )
    shipped = load_profile(DEFAULT_PROFILE)
    before, after = (mean_errors(cases, p) for p in (Profile(), shipped))
    assert len(before) > 10
    harm = {name: after[name] - before[name] for name in before}
    assert max(harm.values()) < MOST_HARM + ROUNDING, harm


def test_published_adapters_are_said_and_not_only_named() -> None:
    """No fact is read from an id, so that a row of LoRA says it in `task`."""
    runs = [run for folder in (STRONG, UNFITTED) for run in shipped(folder)]
    named = [
        run for run in runs if {"lora", "qlora"} & {*re.split(r"\W", run.id.lower())}
    ]
    assert len(named) >= 23
    assert [run.id for run in named if run.config.task is None] == []
