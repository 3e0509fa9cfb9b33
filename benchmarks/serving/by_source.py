"""A table of how far predictions of serving lie off, source by source."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from rich.table import Table

from benchmarks.serving.rows import Row
from meshwright.plans.columns import Floats

CLOSE = math.log(1.2)
"""Predictions within 20 %, either way."""


def by_source(title: str, found: list[Row], columns: Mapping[str, Floats]) -> Table:
    """Return the errors of rows under every heading, for every source and metric."""
    table = Table(title=title)
    table.add_column("source")
    for name in ("metric", "rows"):
        table.add_column(name, justify="right")
    for heading in columns:
        lead = f"{heading}: " if heading else ""
        for name in (f"{lead}within 20 %", "median", "p90", "bias"):
            table.add_column(name, justify="right")
    for metric in dict.fromkeys(row.metric for row in found):
        is_metric = np.array([row.metric == metric for row in found])
        for source in dict.fromkeys(r.source for r in found if r.metric == metric):
            result = is_metric & np.array([row.source == source for row in found])
            table.add_row(source, metric, *_cells(result, columns))
        table.add_row("all of these", metric, *_cells(is_metric, columns))
        table.add_section()
    return table


def _cells(given: np.ndarray, columns: Mapping[str, Floats]) -> list[str]:
    cells = [str(int(given.sum()))]
    for values in columns.values():
        off = values[given]
        median, p90 = np.expm1(np.percentile(abs(off), [50, 90]))
        bias = f"{math.expm1(np.median(off)):+.0%}"
        close = int((abs(off) <= CLOSE).sum())
        cells += [str(close), f"{median:.1%}", f"{p90:.0%}", bias]
    return cells
