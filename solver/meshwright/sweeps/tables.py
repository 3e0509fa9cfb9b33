"""The result of a search as tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from meshwright.report.tables import Lines, Section, Table
from meshwright.sweeps.cases import Row
from meshwright.sweeps.metrics import METRICS
from meshwright.sweeps.summary import SearchResult

MOST_POINTS = 40
"""Most points of a front that a table lists."""

_SHOWN = ("gpus", "step_s", "tokens_per_s_per_gpu")
"""Metrics of every table, beside those that were asked for."""


def search_sections(summary: SearchResult) -> list[Section]:
    """Return the sections of a result: counts, best rows, fronts, and failures."""
    parts: list[Section] = [Lines(summary.title, (_counts(summary),))]
    if summary.best:
        parts.append(_best_table(summary))
    parts += _front_tables(summary)
    if summary.conflicts:
        parts.append(_conflict_table(summary))
    if summary.errors:
        parts.append(Lines("Failed", tuple(_error_lines(summary))))
    return parts


def _counts(summary: SearchResult) -> str:
    counts = summary.counts
    feasible = counts["optimal"] + counts["feasible"]
    cases = len(summary.rows)
    told = [f"{cases:,} case{'' if cases == 1 else 's'}: {feasible:,} feasible"]
    told.append(f"{counts['infeasible']:,} infeasible")
    unproven = counts["feasible"]
    told += [f"{unproven:,} of the feasible not proven"] if unproven else []
    told += [f"{counts[n]:,} {n}" for n in ("unknown", "failed") if counts[n]]
    told += [f"{summary.left:,} left"] if summary.left else []
    return ", ".join(told)


def _metrics(*asked: str) -> list[str]:
    return list(dict.fromkeys((*asked, *_SHOWN)))


def _cells(row: Row, metrics: list[str]) -> tuple[str, ...]:
    return tuple(_text(row, name) for name in metrics)


def _text(row: Row, metric: str) -> str:
    value = getattr(row, metric)
    return "-" if value is None else METRICS[metric].text(value)


def _axes(row: Row, but: Collection[str] = ()) -> str:
    """Return where a row lies, in the last words of its axes."""
    axes = {name: value for name, value in row.axes.items() if name not in but}
    return " ".join(f"{name.rsplit('.')[-1]}={value}" for name, value in axes.items())


class _Cases:
    """The cases of a table, named by the axes in which they differ."""

    def __init__(self, rows: Sequence[Row], group: str | None) -> None:
        names = rows[0].axes if rows else {}
        is_same = len(rows) > 1
        self._rows, self._group = rows, {group} if group else set()
        self._same = {
            name
            for name in names
            if is_same and len({str(row.axes.get(name)) for row in rows}) == 1
        }

    def name(self, row: Row) -> str:
        """Return what tells a case from the others of its table."""
        return _axes(row, self._same | self._group) or "-"

    @property
    def shared(self) -> str:
        """Return what all cases of the table have in common, for its title."""
        if not self._rows:
            return ""
        others = set(self._rows[0].axes) - (self._same - self._group)
        told = _axes(self._rows[0], others)
        return f", all with {told}" if told else ""


def _plan(row: Row) -> str:
    return row.plan.brief if row.plan else ""


def _best_table(summary: SearchResult) -> Table:
    metrics = _metrics(summary.metric)
    cases = _Cases(list(summary.best.values()), summary.group)
    rows = tuple(
        (str(group), cases.name(row), *_cells(row, metrics), _plan(row))
        for group, row in summary.best.items()
    )
    heading = (summary.group or "of", "case", *metrics, "plan")
    return Table(f"Best {summary.metric}{cases.shared}", heading, rows)


def _front_tables(summary: SearchResult) -> Iterator[Table]:
    metrics = _metrics(*summary.front_metrics)
    names = " and ".join(summary.front_metrics)
    for group, front in summary.fronts.items():
        cases = _Cases(front, summary.group)
        rows = tuple(
            (cases.name(row), *_cells(row, metrics), _plan(row))
            for row in front[:MOST_POINTS]
        )
        more = len(front) - len(rows)
        title = f"Front of {names}: {group}{cases.shared}"
        title += f" ({more:,} more points in --format json and -o)" if more else ""
        yield Table(title, ("case", *metrics, "plan"), rows)


def _conflict_table(summary: SearchResult) -> Table:
    rows = tuple(
        (
            ", ".join(reason.names) or "-",
            f"{reason.cases:,}",
            _axes(reason.first) or reason.first.name,
            reason.first.sentence or "-",
        )
        for reason in summary.conflicts
    )
    heading = ("nearest miss breaks", "cases", "first of them", "rule")
    return Table("No plan fits", heading, rows)


def _error_lines(summary: SearchResult) -> Iterator[str]:
    for error in summary.errors:
        first, *more = error.names[0].split("\n")
        yield f"{error.cases:,} x {first}"
        yield from (f"    {line}" for line in more)
