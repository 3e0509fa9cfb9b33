"""The result of a search as tables and files: CSV, Parquet, JSON, or an HTML page.

The page has charts, a table with filters, and every plan in full. It needs no network,
and its scripts set values as text, never as HTML.
"""

from __future__ import annotations

import csv
import io
import json
import re
from base64 import b85encode
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from zlib import compress

from pydantic_core import to_json

from meshwright.errors import SpecError
from meshwright.escape import in_csv, printable
from meshwright.plans.plan import Plan
from meshwright.report.pages.skeleton import POLICY, file_text, filled_page
from meshwright.report.solve import claim_lines
from meshwright.report.tables import Lines, Section, Table
from meshwright.results.claims import plan_lines, short_plan_text
from meshwright.sweeps.cases import Row
from meshwright.sweeps.metrics import METRICS
from meshwright.sweeps.summary import SearchResult, compared
from meshwright.writing import write_whole

Content = Callable[[Sequence[Row], Sequence[str]], bytes]

TITLE = "Meshwright search"
"""Of the page."""


def check_kind(path: Path) -> None:
    """Refuse a file of a kind that rows cannot be written to, before any solve.

    Raises:
        SpecError: names the kinds, or the library that is missing.
    """
    if path.suffix not in _CONTENTS:
        accepted = ", ".join(f"NAME{suffix}" for suffix in _CONTENTS)
        raise SpecError(f"--output {printable(str(path))}: expected {accepted}")
    if path.suffix == ".parquet":
        _pyarrow()
    if path.suffix == ".html":
        page_library()


def export(rows: Sequence[Row], path: Path, front: Sequence[str] = ()) -> None:
    """Write rows to a file, of the kind that the suffix of its name says.

    A page opens on the front of these metrics; the other kinds are columns alone.

    Raises:
        SpecError: the file cannot be written.
    """
    write_whole(_CONTENTS[path.suffix](rows, front), path, "--output")


def flat(row: Row) -> dict[str, Any]:
    """Return a row as columns of plain values: axes first, then name and metrics."""
    cells: dict[str, Any] = {f"axis.{name}": value for name, value in row.axes.items()}
    cells |= {"name": row.name, "status": row.status}
    cells |= {name: getattr(row, name) for name in METRICS}
    plan = row.plan.model_dump(mode="json") if row.plan else {}
    cells |= {f"plan.{name}": _plain(value) for name, value in plan.items()}
    cells |= {f"time.{name}": value for name, value in row.time_parts.items()}
    if row.memory:
        cells |= {f"memory.{name}": gib for name, gib in row.memory.parts.items()}
    if row.certificate:
        cells |= {"bound_s": row.certificate.bound_s, "gap": row.certificate.gap}
    reason = {"conflict": " ".join(row.conflict), "sentence": row.sentence}
    return cells | reason | {"error": row.error, "key": row.key}


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _columns(flats: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for cells in flats for name in cells))


def csv_text(flats: Sequence[dict[str, Any]]) -> str:
    """Return rows of columns as CSV."""
    names = _columns(flats)
    lines = _Lines()
    writer = csv.writer(lines)
    writer.writerow(map(in_csv, names))
    writer.writerows([in_csv(cells.get(name)) for name in names] for cells in flats)
    return "".join(lines.written)


def _csv(rows: Sequence[Row], _front: Sequence[str]) -> bytes:
    return csv_text([flat(row) for row in rows]).encode()


class _Lines:
    r"""Collects rows of CSV, with `\n` at their ends.

    The csv module quotes a carriage return in a cell only where rows end with `\r\n`.
    """

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, row: str) -> None:
        self.written.append(row.removesuffix("\r\n") + "\n")


def _json(rows: Sequence[Row], _front: Sequence[str]) -> bytes:
    data = [row.model_dump(mode="json") for row in rows]
    return (json.dumps(data, indent=2) + "\n").encode()


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        told = "needs pyarrow: pip install 'meshwright[parquet]'"
        raise SpecError(f"--output: .parquet {told}") from None
    return pyarrow


def _parquet(rows: Sequence[Row], _front: Sequence[str]) -> bytes:
    pyarrow = _pyarrow()
    flats = [flat(row) for row in rows]
    columns = {
        name: _of_one_kind([cells.get(name) for cells in flats])
        for name in _columns(flats)
    }
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), content)
    return content.getvalue()


def _of_one_kind(values: list[Any]) -> list[Any]:
    """Return a column unchanged, or as text where numbers and text are mixed."""
    is_text = any(isinstance(value, str) for value in values)
    if not is_text:
        return values
    return [None if value is None else str(value) for value in values]


FILES = Path(__file__).with_name("page_files")


SCRIPTS = (
    *("library", "data", "filters", "table", "details"),
    *("front", "chart", "scatter", "parallel", "heat", "page"),
)
"""Scripts in the order in which the page runs them, after the plot library."""


def _html(rows: Sequence[Row], front: Sequence[str]) -> bytes:
    page = filled_page(
        file_text("search.html", FILES),
        TITLE,
        to_json(page_data(rows, front), inf_nan_mode="null").decode(),
        [
            _packed(page_library()),
            *(file_text(f"{name}.js", FILES) for name in SCRIPTS),
        ],
        file_text("search.css", FILES),
        POLICY,
    )
    return page.encode()


_CONTENTS: dict[str, Content] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".json": _json,
    ".html": _html,
}


def page_library() -> str:
    """Return the script of the plot library.

    Raises:
        SpecError: the library is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        told = "a page needs a library more: pip install 'meshwright[html]'"
        raise SpecError(f"--output: {told}") from None
    return str(get_plotlyjs())


def _packed(library: str) -> str:
    """Return a script that holds the library in less than half of its size.

    `library.js` of the page unpacks and runs it, as the policy of the page allows. The
    digits are those of RFC 1924, with a comma for `<`, which may begin markup.
    """
    packed = compress(library.encode(), 9)
    text = b85encode(packed, pad=True).decode().replace("<", ",")
    return f'"use strict";\nconst [BYTES, LIBRARY] = [{len(packed)}, "{text}"];'


_BETWEEN = re.compile(r", | on (?=\d)|(?: \(|\)$|\)(?=,))")
"""Separators of the words in the name of a case: model, GPUs, machine, ..."""


PLAN_FIELDS = tuple(
    name for name in Plan.model_fields if name not in ("stages", "mesh", "seats")
)
"""Plan fields that hold a single value."""


def page_data(rows: Sequence[Row], front: Sequence[str] = ()) -> dict[str, Any]:
    """Return columns with a value per case, and the details of every case.

    `front` names the metrics on whose front the page opens; only two can be drawn.
    """
    return {
        "columns": list(_page_columns(rows)),
        "cases": [_case(row) for row in rows],
        "labels": _labels([row.name for row in rows]),
        "front": front[:2],
    }


def _labels(names: Sequence[str]) -> list[str]:
    """Return names without the words that all of them share.

    Names stay as they are where nothing would be left to tell them apart.
    """
    words = [[word for word in _BETWEEN.split(name) if word] for name in names]
    shared = set.intersection(*map(set, words)) if len(words) > 1 else set()
    if not shared:
        return [*names]
    labels = [", ".join(word for word in name if word not in shared) for name in words]
    return labels if len(set(labels)) == len(set(names)) and all(labels) else [*names]


def _page_columns(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    yield _page_column("case", "name", [row.name for row in rows])
    yield _page_column("status", "status", [row.status for row in rows])
    for axis in dict.fromkeys(axis for row in rows for axis in row.axes):
        yield _page_column(axis, "axis", [row.axes.get(axis) for row in rows])
    for name, metric in METRICS.items():
        values = [getattr(row, name) for row in rows]
        if any(value is not None for value in values):
            yield _page_column(name, "metric", values) | {"best": metric.better}
    yield from _plan_columns(rows)
    reasons = [row.error or ", ".join(row.conflict) or row.sentence for row in rows]
    if any(reasons):
        yield _page_column("why no plan", "reason", reasons)


def _plan_columns(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield a column for each field in which plans differ."""
    for name in PLAN_FIELDS:
        values = [getattr(row.plan, name, None) for row in rows]
        if len({value for value in values if value is not None}) > 1:
            yield _page_column(name, "plan", values)


def _page_column(name: str, kind: str, values: list[Any]) -> dict[str, Any]:
    told = [
        str(value).lower() if isinstance(value, bool) else value for value in values
    ]
    return {"name": name, "kind": kind, "values": told}


def _case(row: Row) -> dict[str, Any]:
    return {
        "reason": list(_reason(row)),
        "plan": [*plan_lines(row.plan), *_stage_lines(row.plan)] if row.plan else [],
        "json": row.plan,
        "time": row.time_parts,
        "memory": row.memory,
        "certificate": list(_certificate(row)),
    }


def _reason(row: Row) -> Iterator[str]:
    if row.error:
        yield row.error
    if row.sentence:
        yield row.sentence
    if row.conflict:
        yield f"Rules in conflict: {', '.join(row.conflict)}"


def _stage_lines(plan: Plan) -> Iterator[str]:
    """Yield the stages of a pipeline, equal neighbours in one line."""
    if plan.pp == 1:
        return
    first = 0
    for stage, group in groupby(plan.stages):
        last = first + len(list(group)) - 1
        span = f"stage {first}" if first == last else f"stages {first}-{last}"
        again = f", {stage.recompute_layers} of them recomputed"
        gpu = f" on {stage.gpu}" if stage.gpu else ""
        layers = f"{stage.layers} layers{again if stage.recompute_layers else ''}"
        yield f"{span}: {layers}{gpu}"
        first = last + 1


def _certificate(row: Row) -> Iterator[str]:
    if row.certificate and row.step_s is not None:
        takes_s = row.doubted_s or row.step_s
        yield from claim_lines(row.status, row.certificate, takes_s)
        yield f"Seed {row.certificate.seed}."


MOST_CASES = 20
"""Most cases that a table lists."""

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
    if len(summary.rows) > 1:
        parts.append(_cases_table(summary))
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


def _compared_metrics(summary: SearchResult) -> tuple[list[str], str]:
    """Return the metrics of a table, and the words at which step cases are compared.

    Where doubt makes a step longer, cases are in the order of that step, and it is
    shown: the order would else contradict the numbers.
    """
    metrics = _metrics(summary.metric)
    is_doubted = METRICS[summary.metric].is_of_step and any(
        row.doubted_s and row.step_s and row.doubted_s > row.step_s * (1 + 1e-9)
        for row in summary.rows
    )
    if not is_doubted:
        return metrics, ""
    return _metrics(*metrics, "doubted_s"), " at the doubted step"


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
        """Return the axes that tell a case from the others of its table."""
        return _axes(row, self._same | self._group) or "-"

    @property
    def shared(self) -> str:
        """Return the axes that all cases of the table share, for its title."""
        if not self._rows:
            return ""
        others = set(self._rows[0].axes) - (self._same - self._group)
        told = _axes(self._rows[0], others)
        return f", all with {told}" if told else ""


def _plan(row: Row) -> str:
    return row.plan.brief if row.plan else ""


def _best_table(summary: SearchResult) -> Table:
    metrics, at = _compared_metrics(summary)
    cases = _Cases(list(summary.best.values()), summary.group)
    rows = tuple(
        (str(group), cases.name(row), *_cells(row, metrics), _plan(row))
        for group, row in summary.best.items()
    )
    heading = (summary.group or "of", "case", *metrics, "plan")
    return Table(f"Best {summary.metric}{at}{cases.shared}", heading, rows)


def _cases_table(summary: SearchResult) -> Table:
    """Return the cases of a search, the best first, then those without a plan."""
    metrics, at = _compared_metrics(summary)
    cases = _Cases(summary.rows, None)
    sign = 1.0 if METRICS[summary.metric].better == "min" else -1.0

    def order(row: Row) -> tuple[bool, float]:
        value = compared(row, summary.metric)
        return value is None, 0.0 if value is None else sign * value

    shown = sorted(summary.rows, key=order)[:MOST_CASES]
    rows = tuple(
        (cases.name(row), *_cells(row, metrics), _plan_or_reason(row)) for row in shown
    )
    more = len(summary.rows) - len(shown)
    title = f"Cases by {summary.metric}{at}{cases.shared}"
    title += f" ({more:,} more in --format json and -o)" if more else ""
    return Table(title, ("case", *metrics, "plan"), rows)


def _plan_or_reason(row: Row) -> str:
    """Return a plan in few words, or why there is none."""
    if row.plan:
        return short_plan_text(row.plan)
    if row.error:
        return "failed"
    rules = ", ".join(row.conflict)
    return f"none fits: {rules}" if rules else row.status


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
