"""Reads evidence files: YAML lists and CSV tables, with the row in errors."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.evidence.run import Run
from meshwright.spec.places import Where

MAX_BYTES = 50_000_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_runs(path: Path) -> list[Run]:
    """Return the runs of a file, or of all YAML files in a folder.

    Raises:
        SpecError: a file cannot be read, or a row is not a run; names both.
    """
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files:
        raise SpecError(f"{Where(str(path))}: no YAML files in this folder")
    runs = [run for file in files for run in _runs_of(file)]
    seen: set[str] = set()
    for run in runs:
        if run.id in seen:
            raise SpecError(f"{Where(str(path))}: two runs have the id {run.id!r}")
        seen.add(run.id)
    return runs


def _runs_of(path: Path) -> Iterator[Run]:
    rows = _csv_rows(path) if path.suffix == ".csv" else _yaml_rows(path)
    for index, row in enumerate(rows, 1):
        yield _run(path, index, row)


def _run(path: Path, index: int, row: object) -> Run:
    try:
        return Run.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        name = row.get("id", index) if isinstance(row, dict) else index
        field = ".".join(map(str, first["loc"])) or "row"
        message = first["msg"][:1].lower() + first["msg"][1:]
        told = printable(f"run {name}: {field}: {message}")
        raise SpecError(f"{Where(str(path))}: {told}") from None


def _yaml_rows(path: Path) -> list[object]:
    try:
        data = yaml.load(_text(path), Loader=_Loader)
    except yaml.YAMLError as error:
        raise SpecError(f"{Where(str(path))}: not valid YAML: {error}") from None
    if not isinstance(data, list) or not data:
        raise SpecError(f"{Where(str(path))}: expected a list of runs")
    return data


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield one nested mapping per line; empty cells are left out."""
    for line in csv.DictReader(io.StringIO(_text(path))):
        row: dict[str, Any] = {}
        for column, cell in line.items():
            if cell:
                *parents, last = (column or "").split(".")
                target = row
                for parent in parents:
                    target = target.setdefault(parent, {})
                target[last] = _value(cell)
        yield row


def _value(cell: str) -> Any:
    """Return what a cell means in YAML, or its text where that is no YAML."""
    try:
        return yaml.load(cell, Loader=_Loader)
    except yaml.YAMLError:
        return cell


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SpecError(f"{Where(str(path))}: larger than {MAX_BYTES:,} bytes")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SpecError(f"{Where(str(path))}: not UTF-8 text") from None
    except OSError as error:
        raise SpecError(
            f"{Where(str(path))}: {(error.strerror or 'unreadable').lower()}"
        ) from None
