"""Fits how far predicted memory is from what the runs in benchmarks/runs needed.

`python -m benchmarks.fit_memory` writes the section `memory` of every profile in
profiles/: the spread of ln(need / prediction) of each framework with measured peaks or
runs out of memory, and that of all other frameworks. It prints them, and how many runs
are accepted at some risks by spreads that have not seen their source. Takes a minute.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.runs_of import STRONG
from meshwright.cost.profile import ANY_FRAMEWORK, Profile, load_profile
from meshwright.evidence.memory_spread import (
    KNOWN,
    by_framework,
    fit_spread,
    memory_rows,
)
from meshwright.evidence.price import Priced, price_runs
from meshwright.evidence.runs import read_runs
from meshwright.spec.limits import GENERIC, MemorySpread, card_gib

PROFILES = Path(__file__).parents[1] / "profiles"

RISKS = (0.01, 0.05, 0.2)


def main() -> None:
    """Fit, write and print."""
    runs, _ = price_runs(read_runs(STRONG))
    spreads = published_spreads(runs)
    for path in sorted(PROFILES.glob("*.yaml")):
        _write(path, load_profile(path.stem), spreads)
    console = Console(width=120)
    console.print(_spread_table(spreads))
    console.print(_left_out_table(runs))


def published_spreads(runs: Sequence[Priced]) -> dict[str, MemorySpread]:
    """Return the spread of each framework that runs tell of, and that of all others."""
    rows = memory_rows(runs)
    if not len(rows):
        return {}
    spreads = {ANY_FRAMEWORK: fit_spread(rows, GENERIC, "pooled")}
    for name, of_framework in by_framework(rows.runs).items():
        spreads[name] = fit_spread(memory_rows(of_framework), KNOWN, "known")
    return spreads


def _write(path: Path, profile: Profile, spreads: dict[str, MemorySpread]) -> None:
    """Write a profile with these spreads, below the comment that it starts with."""
    comment = re.match(r"(#.*\n)*", path.read_text(encoding="utf-8"))
    changed = profile.model_copy(update={"memory": spreads})
    data = changed.model_dump(mode="json", exclude_none=True)
    text = yaml.safe_dump(data, sort_keys=False)
    path.write_text((comment[0] if comment else "") + text, encoding="utf-8")


def _spread_table(spreads: dict[str, MemorySpread]) -> Table:
    table = Table(title="ln(memory that runs need / predicted memory)")
    table.add_column("framework")
    for heading in ("bias", "sigma", "peaks", "labels", "usable at 0.05"):
        table.add_column(heading, justify="right")
    table.add_column("runs by source")
    for name, own in spreads.items():
        sources = (f"{source} {count}" for source, count in own.sources.items())
        table.add_row(
            "all others" if name == ANY_FRAMEWORK else name,
            f"{own.bias:+.3f}",
            f"{own.sigma:.3f}",
            str(own.peaks),
            str(own.labels),
            f"{own.usable_gib(1.0, 0.05):.1%}",
            ", ".join(sources),
        )
    return table


def _left_out_table(runs: list[Priced]) -> Table:
    """Return how many runs each source has accepted, by spreads of other sources."""
    table = Table(title="Runs accepted by spreads that have not seen their source")
    table.add_column("source")
    for heading in ("ran", *(f"at {risk:g}" for risk in RISKS)):
        table.add_column(heading, justify="right")
    table.add_column("out of memory", justify="right")
    for risk in RISKS:
        table.add_column(f"at {risk:g}", justify="right")
    sound = [one for one in runs if one.has_profile]
    told = [one for one in sound if one.run.measured.fits is not None]
    totals = np.zeros(2 * (1 + len(RISKS)), dtype=np.int64)
    for source in sorted({one.run.source_id for one in told}):
        others = Profile(
            memory=published_spreads(
                [one for one in runs if one.run.source_id != source]
            )
        )
        own = [one for one in told if one.run.source_id == source]
        cells = []
        for fits in (True, False):
            same = [one for one in own if one.run.measured.fits is fits]
            cells += [len(same), *(_accepted(same, others, risk) for risk in RISKS)]
        table.add_row(source, *map(str, cells))
        totals += cells
    table.add_section()
    table.add_row("all of these", *map(str, totals))
    return table


def _accepted(runs: list[Priced], profile: Profile, risk: float) -> int:
    """Return how many of the runs fit at a risk under the spreads of a profile."""
    return sum(
        one.peak_gib
        <= profile.memory_spread(one.spec.framework).usable_gib(
            card_gib(one.spec.cluster.topology.gpu.memory_gib), risk
        )
        for one in runs
    )


if __name__ == "__main__":
    main()
