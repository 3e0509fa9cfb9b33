"""Rows as files: CSV, Parquet, JSON, or a page."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from meshwright.errors import SpecError
from meshwright.escape import in_csv, printable
from meshwright.sweeps.metrics import METRICS
from meshwright.sweeps.row import Row

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
        from meshwright.sweeps.page import page_library

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
    from meshwright.sweeps.page import write_page

    write_page(rows, path, front=front)


_WRITERS: dict[str, Write] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".json": _json,
    ".html": _html,
}
