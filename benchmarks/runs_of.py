"""The measured runs that benchmarks fit and judge."""

from __future__ import annotations

from pathlib import Path

from meshwright.evidence.price import Priced, price_runs
from meshwright.evidence.read_runs import read_runs

STRONG = Path(__file__).parent / "runs"
"""Runs of sources that count; runs/weak holds the others."""

SINGLE_NODE = "vtrain_single"


def priced_runs(folder: Path) -> list[Priced]:
    """Return the priced runs of a folder that have a sound step time."""
    priced, _ = price_runs(read_runs(folder))
    return [p for p in priced if p.run.step_s and not p.run.is_contradictory]
