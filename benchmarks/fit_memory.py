"""Fits how far predicted memory is from what the runs in benchmarks/runs needed.

`python -m benchmarks.fit_memory` writes the section `memory` of every profile in
profiles/: the spread of ln(need / prediction) of each framework with measured peaks or
runs out of memory, and that of all other frameworks, and prints them; `python -m
benchmarks.truth` judges them. Takes a minute.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks import without_options
from benchmarks.runs_of import STRONG, all_runs
from meshwright.cost.profile import ANY_FRAMEWORK, load_profile
from meshwright.evidence.memory_spread import (
    KNOWN,
    by_framework,
    fit_spread,
    memory_rows,
)
from meshwright.evidence.price import Priced
from meshwright.spec.goals import GENERIC, MemorySpread

PROFILES = Path(__file__).parents[1] / "profiles"


def main() -> None:
    """Fit, write and print."""
    spreads = published_spreads(all_runs(STRONG).priced)
    for path in sorted(PROFILES.glob("*.yaml")):
        rewrite(path.stem, memory=spreads)
    Console(width=120).print(_spread_table(spreads))


def published_spreads(runs: Sequence[Priced]) -> dict[str, MemorySpread]:
    """Return the spread of each framework that runs tell of, and that of all others."""
    rows = memory_rows(runs)
    if not len(rows):
        return {}
    spreads = {ANY_FRAMEWORK: fit_spread(rows, GENERIC, "pooled")}
    for name, of_framework in by_framework(rows.runs).items():
        spreads[name] = fit_spread(memory_rows(of_framework), KNOWN, "known")
    return spreads


def rewrite(name: str, **sections: object) -> Path:
    """Write a bundled profile with other sections, below the comment at its head."""
    path = PROFILES / f"{name}.yaml"
    head = re.match(r"(#.*\n)*", path.read_text(encoding="utf-8"))
    data = load_profile(name).model_copy(update=sections)
    text = yaml.safe_dump(
        data.model_dump(mode="json", exclude_none=True), sort_keys=False
    )
    path.write_text((head[0] if head else "") + text, encoding="utf-8")
    return path


def _spread_table(spreads: dict[str, MemorySpread]) -> Table:
    table = Table(title="ln(memory that runs need / predicted memory)")
    table.add_column("framework")
    for heading in ("bias", "sigma", "peaks", "labels", "usable at 0.05"):
        table.add_column(heading, justify="right")
    table.add_column("runs by source")
    for name, spread in spreads.items():
        sources = (f"{source} {count}" for source, count in spread.sources.items())
        table.add_row(
            "all others" if name == ANY_FRAMEWORK else name,
            f"{spread.bias:+.3f}",
            f"{spread.sigma:.3f}",
            str(spread.peaks),
            str(spread.labels),
            f"{spread.usable_gib(1.0, 0.05):.1%}",
            ", ".join(sources),
        )
    return table


if __name__ == "__main__":
    without_options(__doc__)
    main()
