"""Reads CSV tables with dotted columns, `config.tp`, and cells of YAML or text."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.errors import SpecError
from meshwright.reading.document import Document, FieldPath, Where
from meshwright.reading.files import read_text
from meshwright.reading.guard import MAX_DEPTH, Limits
from meshwright.reading.messages import shown
from meshwright.reading.yaml_text import NotYaml, parse_yaml


def read_table(path: Path, limits: Limits) -> Document:
    """Return one nested mapping for each row; empty cells are left out.

    Raises:
        SpecError: the file cannot be read or passes a limit, or a row does not match
            the heading; names the line, and the column where there is one.
    """
    text = read_text(path, limits.most_bytes, "a CSV table")
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    table = _Table(str(path), limits)
    try:
        for cells in rows:
            table.add(cells, rows.line_num)
    except csv.Error as error:
        where = Where(str(path), rows.line_num)
        raise SpecError(f"{where}: not valid CSV: {error}") from None
    return Document(table.rows, table.places)


class _Table:
    """The heading and the rows read so far."""

    def __init__(self, name: str, limits: Limits) -> None:
        self.name, self.limits = name, limits
        self.rows: list[dict[str, Any]] = []
        self.places: dict[FieldPath, Where] = {(): Where(name)}
        self.columns: list[str] = []
        self.count = 0
        self.known: dict[str, Any] = {}
        """Values of cells by their text, since most texts are in many rows."""

    def add(self, cells: Sequence[str], line: int) -> None:
        """Take the cells of a line: the heading, a row, or an empty line."""
        where = Where(self.name, line)
        if not any(cells):
            return
        if not self.columns:
            self.columns = _heading(cells, where)
            return
        if len(cells) > len(self.columns):
            told = f"expected at most {len(self.columns)}, as there are columns"
            raise SpecError(f"{where}: {len(cells)} cells; {told}")
        self.places[len(self.rows),] = where
        self.rows.append(self._row(cells, where))

    def _row(self, cells: Sequence[str], where: Where) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for column, cell in zip(self.columns, cells, strict=False):
            if cell.strip():
                *parents, last = column.split(".")
                target = row
                for parent in parents:
                    target = target.setdefault(parent, {})
                target[last] = self._value(cell, column, where)
        return row

    def _value(self, cell: str, column: str, where: Where) -> Any:
        self.count += 1
        if self.count > self.limits.most_values:
            most = f"{self.limits.most_values:,}"
            raise SpecError(f"{where}: expected at most {most} values")
        if cell not in self.known:
            place = f"{where}: {shown(column)[1:-1]}"
            self.known[cell] = _meaning(cell, place)
        return self.known[cell]


def _meaning(cell: str, place: str) -> Any:
    """Return the value of a cell as YAML, or its text where that is no YAML."""
    try:
        return parse_yaml(cell, place, has_lines=False).data
    except NotYaml:
        return cell


def _heading(cells: Sequence[str], where: Where) -> list[str]:
    """Return the names of columns, none of which contains another.

    Raises:
        SpecError: a name stands twice, contains another, or is nested too deep.
    """
    columns = [cell.strip() for cell in cells]
    seen: set[str] = set()
    above = {path for column in columns for path in _above(column)}
    for column in columns:
        told = f"{where}: column {shown(column)}"
        if column in seen:
            raise SpecError(f"{told}: stands twice; expected each field once")
        if column in above:
            raise SpecError(f"{told}: given beside fields of it; keep one or the other")
        if column.count(".") > MAX_DEPTH:
            raise SpecError(f"{told}: expected at most {MAX_DEPTH} levels of nesting")
        seen.add(column)
    return columns


def _above(column: str) -> list[str]:
    """Return the fields that contain a dotted one, up to the accepted depth."""
    parts = column.split(".", MAX_DEPTH + 1)[:-1]
    return [".".join(parts[:size]) for size in range(1, len(parts) + 1)]
