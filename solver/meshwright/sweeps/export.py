"""Rows as files: CSV, Parquet, JSON, or an HTML page.

The page has charts, a table with filters, and every plan in full. It needs no network,
and its scripts set values as text, never as HTML.
"""

from __future__ import annotations

import csv
import json
import re
from base64 import b85encode
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from zlib import compress

from pydantic_core import to_json

from meshwright.errors import SpecError
from meshwright.escape import in_csv, printable
from meshwright.plans.plan import Plan
from meshwright.report.html_page import filled_page
from meshwright.report.plan_text import plan_lines
from meshwright.report.proof import claim_lines
from meshwright.sweeps.cases import Row
from meshwright.sweeps.metrics import METRICS

Write = Callable[[Sequence[Row], Path, Sequence[str]], None]


def check_kind(path: Path) -> None:
    """Refuse a file of a kind that rows cannot be written to, before any solve.

    Raises:
        SpecError: names the kinds, or the library that is missing.
    """
    if path.suffix not in _WRITERS:
        accepted = ", ".join(f"NAME{suffix}" for suffix in _WRITERS)
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
    try:
        _WRITERS[path.suffix](rows, path, front)
    except OSError as error:
        reason = (error.strerror or "cannot be written").lower()
        raise SpecError(f"--output {printable(str(path))}: {reason}") from None


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


def _csv(rows: Sequence[Row], path: Path, _front: Sequence[str]) -> None:
    path.write_text(csv_text([flat(row) for row in rows]), encoding="utf-8")


class _Lines:
    r"""Collects rows of CSV, with `\n` at their ends.

    The csv module quotes a carriage return in a cell only where rows end with `\r\n`.
    """

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, row: str) -> None:
        self.written.append(row.removesuffix("\r\n") + "\n")


def _json(rows: Sequence[Row], path: Path, _front: Sequence[str]) -> None:
    data = [row.model_dump(mode="json") for row in rows]
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        told = "needs pyarrow: pip install 'meshwright[parquet]'"
        raise SpecError(f"--output: .parquet {told}") from None
    return pyarrow


def _parquet(rows: Sequence[Row], path: Path, _front: Sequence[str]) -> None:
    pyarrow = _pyarrow()
    flats = [flat(row) for row in rows]
    columns = {
        name: _of_one_kind([cells.get(name) for cells in flats])
        for name in _columns(flats)
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def _of_one_kind(values: list[Any]) -> list[Any]:
    """Return a column unchanged, or as text where numbers and text are mixed."""
    is_text = any(isinstance(value, str) for value in values)
    if not is_text:
        return values
    return [None if value is None else str(value) for value in values]


def _html(rows: Sequence[Row], path: Path, front: Sequence[str]) -> None:

    write_page(rows, path, front=front)


_WRITERS: dict[str, Write] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".json": _json,
    ".html": _html,
}


FILES = Path(__file__).with_name("page_files")


SCRIPTS = (
    *("library", "data", "filters", "table", "details"),
    *("front", "chart", "scatter", "parallel", "heat", "page"),
)
"""Scripts in the order in which the page runs them, after the plot library."""


def write_page(
    rows: Sequence[Row],
    path: Path,
    title: str = "Meshwright search",
    front: Sequence[str] = (),
) -> None:
    """Write rows as one HTML file that needs no network; it opens on a front.

    Raises:
        SpecError: a library is missing, or the file is not writable.
    """
    content = _page(rows, title, front).encode()
    try:
        path.write_bytes(content)
    except OSError as error:
        reason = (error.strerror or "cannot be written").lower()
        raise SpecError(f"--output {printable(str(path))}: {reason}") from None


def _page(rows: Sequence[Row], title: str, front: Sequence[str]) -> str:
    return filled_page(
        _file("page.html"),
        title,
        to_json(page_data(rows, front), inf_nan_mode="null").decode(),
        [_packed(page_library()), *(_file(f"{name}.js") for name in SCRIPTS)],
        _file("page.css"),
    )


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


def _file(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


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
        yield from claim_lines(row.status, row.certificate, row.step_s)
        yield f"Seed {row.certificate.seed}."
