"""The summary of a search: the best of each group, fronts, and why plans fail."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.results.html_table import html_table
from meshwright.results.result import json_text, read_json
from meshwright.sweeps.front import front
from meshwright.sweeps.metrics import METRICS
from meshwright.sweeps.row import Row, Value

EVERY = "all cases"
"""Name of the only group where no axis makes groups."""


@dataclass(frozen=True)
class Reason:
    """Why some cases have no plan: rules or an error, with the first such row."""

    names: tuple[str, ...]
    cases: int
    first: Row


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Example:
        >>> import meshwright as mw
        >>> found = mw.search(
        ...     {"base": "llama3-8b-2xh100-nvlink", "sweep": {"pins.tp": [[1], [2]]}},
        ...     workers=1,
        ... )
        >>> [(row.status, row.plan.tp) for row in found.rows]
        [('optimal', 1), ('optimal', 2)]
    """

    title: str
    metric: str
    group: str | None
    rows: tuple[Row, ...]
    left: int
    """Cases that were not solved."""
    best: dict[Value, Row] = field(default_factory=dict)
    """The best row of each group that has a plan."""
    conflicts: tuple[Reason, ...] = ()
    errors: tuple[Reason, ...] = ()
    front_metrics: tuple[str, ...] = ()
    fronts: dict[Value, tuple[Row, ...]] = field(default_factory=dict)
    """The front of each group."""

    @property
    def counts(self) -> Counter[str]:
        """Return how many rows there are of each status."""
        return Counter(row.status for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the data that `search --format json` prints."""
        from meshwright.sweeps.search_json import printed_search

        return printed_search(self)

    def to_json(self) -> str:
        """Return the text that `search --format json` prints."""
        return json_text(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> SearchResult:
        """Return what a search found from the JSON text that was printed of it.

        `to_dict` of it is the same data again. Which axis makes groups is not printed:
        `group` is None, and the names of groups are text.

        Raises:
            SpecError: the text is no JSON, or is another kind of answer.
        """
        from meshwright.sweeps.search_json import PrintedSearch, search_of

        return search_of(read_json(PrintedSearch, text, cls.__name__))

    def _repr_html_(self) -> str:
        """Return a small HTML table for notebooks."""
        told = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        rows = [("cases", told, "")]
        for name, row in self.best.items():
            value = f"{self.metric} {getattr(row, self.metric):.4g}"
            rows.append((f"best: {name}", value, str(row.plan)))
        return html_table(self.title, rows)


def summarise(
    title: str,
    rows: Sequence[Row],
    metric: str,
    group: str | None = None,
    metrics: Sequence[str] = (),
    left: int = 0,
) -> SearchResult:
    """Return the result of a search whose rows these are."""
    return SearchResult(
        title=title,
        metric=metric,
        group=group,
        rows=tuple(rows),
        left=left,
        best=best_of_groups(rows, metric, group),
        conflicts=_reasons([row for row in rows if row.status == "infeasible"]),
        errors=_reasons([row for row in rows if row.status == "failed"]),
        front_metrics=tuple(metrics),
        fronts=_fronts(rows, metrics, group) if metrics else {},
    )


def best_of_groups(
    rows: Sequence[Row], metric: str, group: str | None
) -> dict[Value, Row]:
    """Return the best row of each group; of equal rows the first."""
    best: dict[Value, Row] = {}
    for row in rows:
        keep_best(best, row, metric, group)
    return best


def keep_best(best: dict[Value, Row], row: Row, metric: str, group: str | None) -> None:
    """Note a row as the best of its group, if it is better than the one noted."""
    name = group_of(row, group)
    if getattr(row, metric) is None:
        return
    if name not in best or is_better(row, best[name], metric):
        best[name] = row


def _fronts(
    rows: Sequence[Row], metrics: Sequence[str], group: str | None
) -> dict[Value, tuple[Row, ...]]:
    grouped: dict[Value, list[Row]] = defaultdict(list)
    for row in rows:
        grouped[group_of(row, group)].append(row)
    fronts = {name: tuple(front(rows, metrics)) for name, rows in grouped.items()}
    return {name: rows for name, rows in fronts.items() if rows}


def group_of(row: Row, group: str | None) -> Value:
    """Return the group of a row: its value on an axis."""
    return row.axes.get(group) if group else EVERY


def is_better(row: Row, other: Row, metric: str) -> bool:
    """Return whether a row beats another by a metric that both have."""
    value, known = getattr(row, metric), getattr(other, metric)
    return bool(value < known if METRICS[metric].better == "min" else value > known)


def _reasons(rows: Sequence[Row]) -> tuple[Reason, ...]:
    """Return the distinct reasons of rows, the most frequent first."""
    grouped: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row.conflict or (row.error,)].append(row)
    found = [Reason(names, len(rows), rows[0]) for names, rows in grouped.items()]
    return tuple(sorted(found, key=lambda reason: -reason.cases))
