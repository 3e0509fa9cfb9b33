"""The JSON of a search: all rows, and the keys of the best and of the fronts."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

from pydantic import Field

from meshwright.errors import SpecError
from meshwright.reading.messages import shown
from meshwright.spec.base import SpecModel
from meshwright.sweeps.metrics import METRICS
from meshwright.sweeps.row import Row, Value
from meshwright.sweeps.summary import SearchResult, summarise


class PrintedFront(SpecModel):
    """The cases that no other beats in all metrics."""

    metrics: tuple[str, ...]
    rows: dict[str, tuple[str, ...]] = Field(description="Keys of rows, by group.")


class PrintedReason(SpecModel):
    """Rules that leave cases no plan."""

    rules: tuple[str, ...]
    cases: int
    first: str = Field(description="Key of the first of them.")


class PrintedSearch(SpecModel):
    """What `search --format json` prints."""

    search: str = Field(description="Its title.")
    counts: dict[str, int] = Field(
        description="Cases by status, and those `left` unsolved."
    )
    metric: str = Field(description="What makes a case best.")
    best: dict[str, str] = Field(description="Key of the best row, by group.")
    front: PrintedFront
    conflicts: tuple[PrintedReason, ...]
    rows: tuple[Row, ...]


def printed_search(found: SearchResult) -> dict[str, Any]:
    """Return the data that is printed of a search."""
    fronts = {
        str(name): tuple(row.key for row in rows) for name, rows in found.fronts.items()
    }
    conflicts = (
        PrintedReason(rules=reason.names, cases=reason.cases, first=reason.first.key)
        for reason in found.conflicts
    )
    printed = PrintedSearch(
        search=found.title,
        counts={**found.counts, "left": found.left},
        metric=found.metric,
        best={str(name): row.key for name, row in found.best.items()},
        front=PrintedFront(metrics=found.front_metrics, rows=fronts),
        conflicts=tuple(conflicts),
        rows=found.rows,
    )
    return printed.model_dump(mode="json")


def search_of(printed: PrintedSearch) -> SearchResult:
    """Return the result whose JSON this is.

    Raises:
        SpecError: a key has no row, or the metric is unknown.
    """
    rows = {row.key: row for row in reversed(printed.rows)}
    named = [*printed.best.values(), *chain.from_iterable(printed.front.rows.values())]
    for key in named:
        if key not in rows:
            raise SpecError(f"not the JSON of a search: no row has key {shown(key)}")
    if printed.metric not in METRICS:
        raise SpecError(f"not the JSON of a search: metric: {shown(printed.metric)}")
    found = summarise(
        printed.search, printed.rows, printed.metric, left=printed.counts.get("left", 0)
    )
    best: dict[Value, Row] = {name: rows[key] for name, key in printed.best.items()}
    fronts: dict[Value, tuple[Row, ...]] = {
        name: tuple(rows[key] for key in keys)
        for name, keys in printed.front.rows.items()
    }
    metrics = printed.front.metrics
    return replace(found, best=best, front_metrics=metrics, fronts=fronts)
