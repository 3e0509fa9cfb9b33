"""The measured runs that benchmarks fit and judge."""

from __future__ import annotations

from pathlib import Path

from joblib import Parallel, delayed

from meshwright.evidence.price import Priced, price_runs
from meshwright.evidence.runs import read_runs

STRONG = Path(__file__).parent / "runs"
"""Runs of sources that count; runs/weak holds the others, runs/unfitted newer ones."""

PART = 100
"""Runs that are priced by one process at a time."""

SINGLE_NODE = "vtrain_single"


def priced_runs(folder: Path) -> list[Priced]:
    """Return the priced runs of a folder that have a sound step time."""
    runs = read_runs(folder)
    parts = [runs[i : i + PART] for i in range(0, len(runs), PART)]
    done = Parallel(n_jobs=-1)(delayed(price_runs)(part) for part in parts)
    priced = [one for found, _ in done for one in found]
    return [p for p in priced if p.run.step_s and not p.run.is_contradictory]
